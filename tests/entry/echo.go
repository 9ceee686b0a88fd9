// A server that gives back what it gets, and a client that checks it, over many connections at once.
// echo serve MANNER: prints its port. echo dial PORT CONNECTIONS ROUNDS: prints "done" at the end. With HOLD set, it goes on until there is
// a file of that name.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

func fail(what string, err error) {
	fmt.Println(what, err)
	os.Exit(1)
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		fail("a number", err)
	}
	return n
}

// A goroutine that never yields by itself: others need SIGURG to run.
func busy(stop *bool) {
	for n := 0; !*stop; n++ {
	}
}

func serve(manner string) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		fail("listen", err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	var stop bool
	if manner == "busy" {
		go busy(&stop)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			fail("accept", err)
		}
		go func() {
			defer conn.Close()
			if manner == "copy" {
				io.Copy(conn, conn)
				return
			}
			room := make([]byte, 70000)
			for {
				n, err := conn.Read(room)
				if err != nil {
					return
				}
				if _, err := conn.Write(room[:n]); err != nil {
					return
				}
			}
		}()
	}
}

func deep(n int) byte {
	var room [4096]byte
	room[n%4096] = byte(n)
	if n == 0 {
		return room[0]
	}
	return room[n%4096] + deep(n-1)
}

func held() bool {
	name := os.Getenv("HOLD")
	if name == "" {
		return false
	}
	_, err := os.Stat(name)
	return err != nil
}

func dial(port string, connections, rounds int) {
	var all sync.WaitGroup
	for one := 0; one < connections; one++ {
		all.Add(1)
		go func() {
			defer all.Done()
			conn, err := net.Dial("tcp4", "127.0.0.1:"+port)
			if err != nil {
				fail("dial", err)
			}
			defer conn.Close()
			got := make([]byte, 70000)
			for round := 0; round < rounds || held(); round++ {
				n := 1 + (round*37+one)%200
				if round%7 == 0 {
					n = 1 + (round*3571+one)%70000
				}
				sent := bytes.Repeat([]byte{byte(round), byte(one), 3}, n/3+1)[:n]
				conn.SetDeadline(time.Now().Add(20 * time.Second))
				wrote := make(chan error, 1)
				go func() { _, err := conn.Write(sent); wrote <- err }()
				if _, err := io.ReadFull(conn, got[:n]); err != nil {
					fail("read", err)
				}
				if err := <-wrote; err != nil {
					fail("write", err)
				}
				if !bytes.Equal(sent, got[:n]) {
					fail("other bytes", nil)
				}
				if round%100 == 0 {
					deep(round % 300)
					runtime.GC()
				}
			}
			conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
			if _, err := conn.Read(got[:1]); !os.IsTimeout(err) {
				fail("no timeout", err)
			}
			conn.SetReadDeadline(time.Time{})
			conn.(*net.TCPConn).CloseWrite()
			if n, err := conn.Read(got); n != 0 || err != io.EOF {
				fail("no end", err)
			}
		}()
	}
	all.Wait()
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		serve(os.Args[2])
	}
	if len(os.Args) != 5 {
		os.Exit(2)
	}
	dial(os.Args[2], number(os.Args[3]), number(os.Args[4]))
	fmt.Println("done")
}
