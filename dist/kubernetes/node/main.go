// Command shunpike-node puts Shunpike onto a node of Kubernetes: its files and the CDI specification, and the device for pods that ask for it.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
)

// The one device of the specification that `shunpike cdi generate` writes.
const cdiDevice = "shunpike.dev/lane=all"

const usage = `usage: shunpike-node COMMAND [OPTION...]

  install         copies library and command onto the node, and writes the CDI specification
  device-plugin   has kubelet hand out the device to containers that have the resource ` + resource + `
  nri-plugin      gives the device to all containers of pods that have the annotation or label ` + wish + `: "true"

'shunpike-node COMMAND -h' shows a command's options.`

func main() {
	log.SetFlags(0)
	log.SetPrefix("shunpike-node: ")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

// run does what the arguments say, until it is done or the context ends.
func run(ctx context.Context, arguments []string) error {
	command := ""
	if len(arguments) > 0 {
		command, arguments = arguments[0], arguments[1:]
	}
	flags := flag.NewFlagSet(command, flag.ExitOnError)
	switch command {
	case "install":
		var it installation
		flags.StringVar(&it.from, "from", "/usr/local", "the prefix that has bin and lib")
		flags.StringVar(&it.to, "to", "/opt/shunpike", "the prefix to make: the same path here and on the node")
		flags.StringVar(&it.specification, "cdi", "/etc/cdi/shunpike.json", "the CDI specification to write")
		flags.StringVar(&it.socket, "socket", "/run/shunpike/broker.sock", "where the broker listens on the node")
		flags.Parse(arguments)
		return it.install(ctx)
	case "device-plugin":
		var plugin devicePlugin
		flags.StringVar(&plugin.directory, "kubelet", "/var/lib/kubelet/device-plugins", "kubelet's directory of device plugins")
		flags.StringVar(&plugin.specification, "cdi", "/etc/cdi/shunpike.json", "the CDI specification: without it the device is unhealthy")
		flags.IntVar(&plugin.count, "devices", 1000, "how many containers of the node may have the device at once")
		flags.Parse(arguments)
		return plugin.run(ctx)
	case "nri-plugin":
		var plugin nriPlugin
		flags.StringVar(&plugin.socket, "nri", "/var/run/nri/nri.sock", "the engine's socket for NRI plugins")
		flags.StringVar(&plugin.specification, "cdi", "/etc/cdi/shunpike.json", "the CDI specification: without it no pod gets the device")
		flags.Parse(arguments)
		return plugin.run(ctx)
	default:
		return fmt.Errorf("no command %q\n%s", command, usage)
	}
}
