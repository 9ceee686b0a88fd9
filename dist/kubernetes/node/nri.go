package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// A pod that has this annotation or label, with "true", has the device in each of its containers.
const wish = "shunpike.dev/lane"

// nriPlugin gives the device to pods that say so, without a word in their containers. It gives no other, and mounts nothing that a pod names.
type nriPlugin struct {
	socket, specification string
}

// run serves the engine, and each that comes after it.
func (plugin *nriPlugin) run(ctx context.Context) error {
	// Without a function for it, the library ends the goroutine that sees the connection's end.
	closed := stub.WithOnClose(func() {})
	session, err := stub.New(plugin, stub.WithSocketPath(plugin.socket), stub.WithPluginName("shunpike"), stub.WithPluginIdx("50"), closed)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, session.Stop)()
	for told := ""; ctx.Err() == nil; {
		text := "it has closed the connection"
		if err := session.Run(ctx); err != nil {
			text = err.Error()
		}
		if text != told && ctx.Err() == nil {
			log.Printf("waiting for the engine at %s: %s", plugin.socket, text)
			told = text
		}
		select {
		case <-ctx.Done():
		case <-time.After(look):
		}
	}
	return nil
}

// CreateContainer is asked for each container before it is made. An engine refuses one with a device that no specification has, so without one
// the container goes as it is: its programs stay on TCP.
func (plugin *nriPlugin) CreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if pod.GetAnnotations()[wish] != "true" && pod.GetLabels()[wish] != "true" {
		return nil, nil, nil
	}
	name := pod.GetNamespace() + "/" + pod.GetName() + "/" + container.GetName()
	if _, err := os.Stat(plugin.specification); err != nil {
		log.Printf("%s does not get the device: no specification: %v", name, err)
		return nil, nil, nil
	}
	adjustment := &api.ContainerAdjustment{}
	adjustment.AddCDIDevice(&api.CDIDevice{Name: cdiDevice})
	log.Printf("%s gets the device", name)
	return adjustment, nil, nil
}
