package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet is what a plugin sees of one: a socket at which it registers, in a directory whose other sockets each new kubelet removes.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	directory  string
	registered chan *pluginapi.RegisterRequest
	refusal    error
}

func newKubelet(t *testing.T) *kubelet {
	t.Helper()
	// t.TempDir's names are too long for a socket's address.
	directory, err := os.MkdirTemp("", "shunpike-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	return &kubelet{directory: directory, registered: make(chan *pluginapi.RegisterRequest, 8)}
}

func (kubelet *kubelet) Register(_ context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if kubelet.refusal != nil {
		return nil, kubelet.refusal
	}
	kubelet.registered <- request
	return &pluginapi.Empty{}, nil
}

// start begins as kubelet does: with an empty directory.
func (kubelet *kubelet) start(t *testing.T) (stop func()) {
	t.Helper()
	kubelet.forget(t)
	listener, err := net.Listen("unix", filepath.Join(kubelet.directory, kubeletName))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, kubelet)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return server.Stop
}

func (kubelet *kubelet) forget(t *testing.T) {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(kubelet.directory, "*.sock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, socket := range sockets {
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
	}
}

// plugin waits for one to register, and speaks to it as kubelet does.
func (kubelet *kubelet) plugin(t *testing.T) pluginapi.DevicePluginClient {
	t.Helper()
	select {
	case request := <-kubelet.registered:
		if request.Version != "v1beta1" || request.ResourceName != "shunpike.dev/lane" {
			t.Fatalf("registered as %v", request)
		}
		connection, err := grpc.NewClient("unix://"+filepath.Join(kubelet.directory, request.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { connection.Close() })
		return pluginapi.NewDevicePluginClient(connection)
	case <-time.After(30 * time.Second):
		t.Fatal("no plugin registered")
		return nil
	}
}

// specification makes a file that stands for one.
func (kubelet *kubelet) specification(t *testing.T) string {
	t.Helper()
	path := filepath.Join(kubelet.directory, "shunpike.json")
	if err := os.WriteFile(path, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// begin runs the plugin by its command line, until the test ends.
func (kubelet *kubelet) begin(t *testing.T, more ...string) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	arguments := append([]string{"device-plugin", "-kubelet", kubelet.directory}, more...)
	go func() { ended <- run(ctx, arguments) }()
	var once error
	waited := false
	end = func() error {
		cancel()
		if !waited {
			once, waited = <-ended, true
		}
		return once
	}
	t.Cleanup(func() { end() })
	return end
}

func list(t *testing.T, plugin pluginapi.DevicePluginClient) pluginapi.DevicePlugin_ListAndWatchClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	stream, err := plugin.ListAndWatch(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func next(t *testing.T, stream pluginapi.DevicePlugin_ListAndWatchClient) []*pluginapi.Device {
	t.Helper()
	response, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return response.Devices
}

func TestKubeletListsTheDevicesAndAllocatesThem(t *testing.T) {
	kubelet := newKubelet(t)
	kubelet.start(t)
	end := kubelet.begin(t, "-cdi", kubelet.specification(t), "-devices", "5")
	plugin := kubelet.plugin(t)
	devices := next(t, list(t, plugin))
	names := map[string]bool{}
	for _, device := range devices {
		names[device.ID] = true
		if device.Health != pluginapi.Healthy {
			t.Errorf("%v", device)
		}
	}
	if len(devices) != 5 || len(names) != 5 {
		t.Errorf("five devices of different names: %v", devices)
	}
	asked := &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{
		{DevicesIds: []string{devices[0].ID}}, {DevicesIds: []string{devices[3].ID, devices[1].ID}},
	}}
	answer, err := plugin.Allocate(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.ContainerResponses) != 2 {
		t.Fatalf("an answer for each container: %v", answer)
	}
	for _, given := range answer.ContainerResponses {
		if len(given.CdiDevices) != 1 || given.CdiDevices[0].Name != "shunpike.dev/lane=all" || len(given.Mounts)+len(given.Devices)+len(given.Envs) != 0 {
			t.Errorf("the device, once, and nothing else: %v", given)
		}
	}
	if options, err := plugin.GetDevicePluginOptions(t.Context(), &pluginapi.Empty{}); err != nil || options.PreStartRequired || options.GetPreferredAllocationAvailable {
		t.Errorf("%v %v", options, err)
	}
	if err := end(); err != nil {
		t.Errorf("ended by a signal: %v", err)
	}
	if _, err := os.Stat(filepath.Join(kubelet.directory, ownName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
}

func TestItRegistersWithEachKubelet(t *testing.T) {
	kubelet := newKubelet(t)
	kubelet.begin(t, "-cdi", kubelet.specification(t), "-devices", "1")
	// There was none when it began.
	stop := kubelet.start(t)
	stream := list(t, kubelet.plugin(t))
	next(t, stream)

	stop()
	kubelet.start(t)
	next(t, list(t, kubelet.plugin(t)))
	if _, err := stream.Recv(); err == nil {
		t.Error("the stream of the kubelet that is gone goes on")
	}

	// Kubelet's socket stays, the plugin's is removed: by one that started while the plugin registered.
	if err := os.Remove(filepath.Join(kubelet.directory, ownName)); err != nil {
		t.Fatal(err)
	}
	next(t, list(t, kubelet.plugin(t)))
}

func TestASocketThatOneBeforeLeftIsReplaced(t *testing.T) {
	kubelet := newKubelet(t)
	kubelet.start(t)
	left, err := net.Listen("unix", filepath.Join(kubelet.directory, ownName))
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	left.Close()
	kubelet.begin(t, "-cdi", kubelet.specification(t))
	if devices := next(t, list(t, kubelet.plugin(t))); len(devices) != 1000 {
		t.Errorf("%d devices", len(devices))
	}
}

func TestWithoutASpecificationTheDevicesAreUnhealthy(t *testing.T) {
	kubelet := newKubelet(t)
	kubelet.start(t)
	kubelet.begin(t, "-cdi", filepath.Join(kubelet.directory, "shunpike.json"), "-devices", "1")
	stream := list(t, kubelet.plugin(t))
	if devices := next(t, stream); devices[0].Health != pluginapi.Unhealthy {
		t.Errorf("%v", devices)
	}
	path := kubelet.specification(t)
	if devices := next(t, stream); devices[0].Health != pluginapi.Healthy {
		t.Errorf("it was made: %v", devices)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if devices := next(t, stream); devices[0].Health != pluginapi.Unhealthy {
		t.Errorf("it was removed: %v", devices)
	}
}

func TestARefusalEndsIt(t *testing.T) {
	kubelet := newKubelet(t)
	kubelet.refusal = status.Error(codes.Unknown, "requested API version \"v1beta1\" is not supported by kubelet")
	kubelet.start(t)
	err := run(t.Context(), []string{"device-plugin", "-kubelet", kubelet.directory})
	if err == nil || !strings.Contains(err.Error(), "kubelet refuses the device shunpike.dev/lane") || !strings.Contains(err.Error(), "not supported") {
		t.Errorf("%v", err)
	}
}

func TestWhatCannotBeSaysSo(t *testing.T) {
	for _, arguments := range [][]string{
		{}, {"plug"}, {"device-plugin", "-devices", "0"}, {"device-plugin", "-kubelet", filepath.Join(t.TempDir(), "none")},
	} {
		if err := run(t.Context(), arguments); err == nil || len(err.Error()) < 20 {
			t.Errorf("%q: %v", arguments, err)
		}
	}
}
