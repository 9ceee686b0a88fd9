// A Go program makes its own system calls: it stays on TCP, whoever its peer is.
//
//	talk files PORT DIRECTORY       serves files over HTTP until it is ended
//	talk redis PORT CONNECTIONS     sets and gets random values in redis; prints a hash for each connection
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

const rounds = 100

func main() {
	address := "127.0.0.1:" + os.Args[2]
	switch os.Args[1] {
	case "files":
		log.Fatal(http.ListenAndServe(address, http.FileServer(http.Dir(os.Args[3]))))
	case "redis":
		connections, err := strconv.Atoi(os.Args[3])
		if err != nil {
			log.Fatal(err)
		}
		var all sync.WaitGroup
		for n := 0; n < connections; n++ {
			all.Add(1)
			go func(n int) {
				defer all.Done()
				if err := setAndGet(address, n); err != nil {
					log.Fatalf("connection %d: %v", n, err)
				}
			}(n)
		}
		all.Wait()
	default:
		log.Fatalf("no command %q", os.Args[1])
	}
}

func setAndGet(address string, n int) error {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	reader, source, total := bufio.NewReader(connection), rand.New(rand.NewSource(int64(n))), sha256.New()
	for round := 0; round < rounds; round++ {
		key, value := fmt.Sprintf("go-%d-%d", n, round), make([]byte, source.Intn(40000))
		source.Read(value)
		if _, err := fmt.Fprintf(connection, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(key), key, len(value), value); err != nil {
			return err
		}
		if line, err := reader.ReadString('\n'); err != nil || line != "+OK\r\n" {
			return fmt.Errorf("SET: %q, %v", line, err)
		}
		fmt.Fprintf(connection, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key)
		line, err := reader.ReadString('\n')
		if err != nil {
			return err
		}
		size, err := strconv.Atoi(strings.TrimSpace(line[1:]))
		if err != nil {
			return err
		}
		back := make([]byte, size+2)
		if _, err := io.ReadFull(reader, back); err != nil {
			return err
		}
		if !bytes.Equal(back[:size], value) {
			return fmt.Errorf("round %d: the value came back changed", round)
		}
		total.Write(back[:size])
	}
	fmt.Printf("%x\n", total.Sum(nil))
	return nil
}
