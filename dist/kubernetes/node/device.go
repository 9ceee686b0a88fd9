package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// What a container asks for in its limits.
	resource = "shunpike.dev/lane"
	// Our socket in kubelet's directory, and kubelet's own.
	ownName, kubeletName = "shunpike.sock", "kubelet.sock"
	// How often it looks whether kubelet was restarted, and whether the specification is there.
	look = time.Second
	// How long kubelet may take to answer.
	patience = 10 * time.Second
)

// devicePlugin hands out the device by kubelet's protocol. The device is no thing that one container alone can have: that there are `count` of
// them is kubelet's way to say that many may.
type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	directory, specification string
	count                    int
}

// run serves kubelet, and each that comes after it: a kubelet that starts removes the sockets of all plugins, which then have to register again.
func (plugin *devicePlugin) run(ctx context.Context) error {
	if plugin.count < 1 {
		return fmt.Errorf("-devices=%d: no container could have the device; give 1 or more", plugin.count)
	}
	for ctx.Err() == nil {
		if err := plugin.serve(ctx); err != nil {
			return err
		}
	}
	return nil
}

// serve listens, registers, and answers until kubelet has forgotten this plugin.
func (plugin *devicePlugin) serve(ctx context.Context) error {
	socket := filepath.Join(plugin.directory, ownName)
	// Left by one that was killed.
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove the socket of an earlier plugin: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("cannot listen at %s: %w; is it kubelet's directory (-kubelet), mounted to be written?", socket, err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, plugin)
	// It ends by Stop alone, or registering fails.
	go server.Serve(listener)
	defer server.Stop()

	kubelet, err := plugin.register(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	log.Printf("kubelet has %d devices %s to hand out", plugin.count, resource)
	own := identify(socket)
	for own != (identity{}) && own == identify(socket) && kubelet == identify(filepath.Join(plugin.directory, kubeletName)) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(look):
		}
	}
	log.Print("kubelet was restarted; registering again")
	return nil
}

// register tells kubelet of this plugin, as soon as there is one, and returns that one's socket.
func (plugin *devicePlugin) register(ctx context.Context) (identity, error) {
	path := filepath.Join(plugin.directory, kubeletName)
	for waits := false; ; waits = true {
		kubelet := identify(path)
		err := plugin.registerOnce(ctx, path)
		switch {
		case err == nil || ctx.Err() != nil:
			return kubelet, nil
		case status.Code(err) != codes.Unavailable && status.Code(err) != codes.DeadlineExceeded:
			return kubelet, fmt.Errorf("kubelet refuses the device %s: %w", resource, err)
		case !waits:
			log.Printf("waiting for kubelet at %s: %v", path, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(look):
		}
	}
}

func (plugin *devicePlugin) registerOnce(ctx context.Context, path string) error {
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request := &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: ownName, ResourceName: resource}
	_, err = pluginapi.NewRegistrationClient(connection).Register(ctx, request)
	return err
}

// GetDevicePluginOptions says that kubelet need not ask before it starts a container, nor which of the devices to take.
func (plugin *devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// ListAndWatch lists the devices, and again when their health changes. An engine refuses to start a container with a device that no specification
// has; without a broker it starts, and its programs stay on TCP until one comes.
func (plugin *devicePlugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	for told := ""; ; {
		if health := plugin.health(); health != told {
			if told != "" {
				log.Printf("the devices are %s now: by %s", health, plugin.specification)
			}
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: plugin.devices(health)}); err != nil {
				return err
			}
			told = health
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(look):
		}
	}
}

func (plugin *devicePlugin) health() string {
	if _, err := os.Stat(plugin.specification); err != nil {
		return pluginapi.Unhealthy
	}
	return pluginapi.Healthy
}

func (plugin *devicePlugin) devices(health string) []*pluginapi.Device {
	devices := make([]*pluginapi.Device, plugin.count)
	for number := range devices {
		devices[number] = &pluginapi.Device{ID: fmt.Sprintf("lane-%d", number), Health: health}
	}
	return devices
}

// Allocate names the one device to the engine, for each container that asked for some.
func (plugin *devicePlugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for range request.ContainerRequests {
		device := &pluginapi.CDIDevice{Name: cdiDevice}
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{CdiDevices: []*pluginapi.CDIDevice{device}})
	}
	return response, nil
}

// identity tells a socket's file from another one of the same name; none has that of none.
type identity struct {
	device, inode uint64
	changed       int64
}

func identify(path string) identity {
	var about syscall.Stat_t
	if syscall.Stat(path, &about) != nil {
		return identity{}
	}
	return identity{about.Dev, about.Ino, about.Ctim.Nano()}
}
