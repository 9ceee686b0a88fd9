// gRPC's own tests between its implementations, and an echo: many calls at once over one connection. ask PORT: prints what has passed.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

func main() {
	conn, err := grpc.NewClient("127.0.0.1:"+os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	ctx, client := context.Background(), pb.NewTestServiceClient(conn)
	var all sync.WaitGroup
	for one := 0; one < 20; one++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for n := 0; n < 100; n++ {
				body := make([]byte, n*n)
				got, err := client.UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: int32(n * one), Payload: &pb.Payload{Body: body}})
				if err != nil {
					panic(err)
				}
				if len(got.Payload.Body) != n*one {
					panic("another length")
				}
			}
		}()
	}
	all.Wait()
	fmt.Println("echoed")
	// They end the program where they fail.
	interop.DoEmptyUnaryCall(ctx, client)
	interop.DoLargeUnaryCall(ctx, client)
	interop.DoClientStreaming(ctx, client)
	interop.DoServerStreaming(ctx, client)
	for n := 0; n < 50; n++ {
		interop.DoPingPong(ctx, client)
	}
	interop.DoEmptyStream(ctx, client)
	interop.DoTimeoutOnSleepingServer(ctx, client)
	interop.DoCancelAfterBegin(ctx, client)
	interop.DoCancelAfterFirstResponse(ctx, client)
	interop.DoStatusCodeAndMessage(ctx, client)
	interop.DoSpecialStatusMessage(ctx, client)
	interop.DoCustomMetadata(ctx, client)
	interop.DoUnimplementedMethod(ctx, conn)
	fmt.Println("passed")
}
