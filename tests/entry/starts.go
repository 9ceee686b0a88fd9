// starts PROGRAM [ARGUMENT...]: has it as its child, and ends as it does.
package main

import (
	"fmt"
	"os"
	"os/exec"
)

func main() {
	child := exec.Command(os.Args[1], os.Args[2:]...)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	err := child.Run()
	fmt.Println(err)
	if child.ProcessState == nil {
		os.Exit(99)
	}
	os.Exit(child.ProcessState.ExitCode())
}
