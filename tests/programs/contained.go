// A request of a thousand bytes and its answer, again and again, as images from scratch have it: static, with no libc.
//
//	contained server PORT ROUNDS     takes one connection, and answers
//	contained client PORT ROUNDS     at the address BED_HOST; checks each answer
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "contained:", err)
		os.Exit(1)
	}
}

func run(role, port, times string) error {
	rounds, err := strconv.Atoi(times)
	if err != nil {
		return err
	}
	connection, err := connected(role, port)
	if err != nil {
		return err
	}
	defer connection.Close()
	sent, got := make([]byte, 1000), make([]byte, 1000)
	for round := 0; round < rounds; round++ {
		for at := range sent {
			sent[at] = byte(round + at)
		}
		if role == "client" {
			if _, err := connection.Write(sent); err != nil {
				return err
			}
		}
		if _, err := io.ReadFull(connection, got); err != nil {
			return err
		}
		if !bytes.Equal(sent, got) {
			return fmt.Errorf("round %d: other bytes than were sent", round)
		}
		if role == "server" {
			if _, err := connection.Write(got); err != nil {
				return err
			}
		}
	}
	return nil
}

func connected(role, port string) (net.Conn, error) {
	if role == "client" {
		return net.Dial("tcp4", net.JoinHostPort(os.Getenv("BED_HOST"), port))
	}
	listener, err := net.Listen("tcp4", ":"+port)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	return listener.Accept()
}
