package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

// engine is NRI's half of one, as containerd and CRI-O have it.
type engine struct {
	*adaptation.Adaptation
	joined chan struct{}
}

func newEngine(t *testing.T, directory string) *engine {
	t.Helper()
	engine := &engine{joined: make(chan struct{}, 8)}
	synchronize := func(ctx context.Context, tell adaptation.SyncCB) error {
		_, err := tell(ctx, nil, nil)
		engine.joined <- struct{}{}
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	real, none := filepath.Join(directory, "nri.sock"), filepath.Join(directory, "none")
	made, err := adaptation.New("test", "1", synchronize, update, adaptation.WithSocketPath(real), adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none))
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Stop)
	engine.Adaptation = made
	// Once for the plugins that an engine starts itself, of which there are none.
	<-engine.joined
	return engine
}

// waits until a plugin is on the engine's list: it gives one of these pods the device.
func (engine *engine) waits(t *testing.T, pod *api.PodSandbox) {
	t.Helper()
	select {
	case <-engine.joined:
	case <-time.After(30 * time.Second):
		t.Fatal("no plugin came")
	}
	for range 1000 {
		if names := engine.gives(t, pod); len(names) == 1 && names[0] == "shunpike.dev/lane=all" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the plugin gives nothing")
}

// gives tells which devices a container of the pod gets.
func (engine *engine) gives(t *testing.T, pod *api.PodSandbox) []string {
	t.Helper()
	pod.Id, pod.Name, pod.Namespace = "1", "cache", "default"
	container := &api.Container{Id: "2", PodSandboxId: "1", Name: "redis"}
	answer, err := engine.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: pod, Container: container})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, device := range answer.GetAdjust().GetCDIDevices() {
		names = append(names, device.Name)
	}
	if mounts := answer.GetAdjust().GetMounts(); len(mounts) != 0 {
		t.Errorf("mounts: %v", mounts)
	}
	return names
}

func TestPodsThatSaySoGetTheDevice(t *testing.T) {
	directory, err := os.MkdirTemp("", "shunpike-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	specification := filepath.Join(directory, "shunpike.json")
	if err := os.WriteFile(specification, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	// Before there is an engine.
	go func() {
		ended <- run(ctx, []string{"nri-plugin", "-nri", filepath.Join(directory, "nri.sock"), "-cdi", specification})
	}()
	yes, no := map[string]string{"shunpike.dev/lane": "true"}, map[string]string{"shunpike.dev/lane": "false"}
	engine := newEngine(t, directory)
	engine.waits(t, &api.PodSandbox{Annotations: yes})
	if names := engine.gives(t, &api.PodSandbox{Labels: yes}); len(names) != 1 {
		t.Errorf("by a label: %v", names)
	}
	for _, pod := range []*api.PodSandbox{{}, {Annotations: no}, {Labels: no}, {Annotations: map[string]string{"mounts.nri.io": "- source: /etc"}}} {
		if names := engine.gives(t, pod); len(names) != 0 {
			t.Errorf("%v: %v", pod, names)
		}
	}

	if err := os.Remove(specification); err != nil {
		t.Fatal(err)
	}
	if names := engine.gives(t, &api.PodSandbox{Annotations: yes}); len(names) != 0 {
		t.Errorf("without a specification: %v", names)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended by a signal: %v", err)
	}
}
