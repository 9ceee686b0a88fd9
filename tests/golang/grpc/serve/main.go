// gRPC's own server for tests between its implementations, in the clear. serve: prints its port.
package main

import (
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/interop"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

func main() {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	s := grpc.NewServer()
	pb.RegisterTestServiceServer(s, interop.NewTestServer())
	panic(s.Serve(l))
}
