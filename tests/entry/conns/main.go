// What Go's net, and what stands on it, may do with a connection: a server, and a client that prints what it sees of each part.
//
//	conns serve             prints its port
//	conns dial PORT [PART]  with WARM=MILLISECONDS each connection is busy for so long before its part begins
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// One part: what the client does, and what the server does on the same connection.
type part struct {
	name   string
	client func(*net.TCPConn)
	server func(*net.TCPConn)
}

var parts []part

// The port of the server, in both.
var port string

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(is bool, what string) {
	if !is {
		panic(what)
	}
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// Bytes that differ from place to place.
func pattern(n int) []byte {
	made := make([]byte, n)
	for at, word := 0, uint32(n); at < n; at++ {
		word = word*1664525 + 1013904223
		made[at] = byte(word >> 24)
	}
	return made
}

func hash(b []byte) string {
	return fmt.Sprintf("%x", sha256.Sum256(b))[:16]
}

func write(w io.Writer, b []byte) {
	n, err := w.Write(b)
	must(err)
	check(n == len(b), "written in part")
}

func read(r io.Reader, n int) []byte {
	got := make([]byte, n)
	_, err := io.ReadFull(r, got)
	must(err)
	return got
}

// A line, read byte by byte: what follows it is another's.
func line(r io.Reader) string {
	var got []byte
	for {
		b := read(r, 1)
		if b[0] == '\n' {
			return string(got)
		}
		got = append(got, b[0])
	}
}

func say(w io.Writer, text string) {
	write(w, []byte(text+"\n"))
}

// Asks and answers for as long as the client wants.
func warm(c *net.TCPConn) {
	ms, _ := strconv.Atoi(os.Getenv("WARM"))
	for end := time.Now().Add(time.Duration(ms) * time.Millisecond); time.Now().Before(end); {
		say(c, "warm")
		check(line(c) == "warm", "warmed otherwise")
	}
}

func begin(name string) *net.TCPConn {
	c, err := net.Dial("tcp4", "127.0.0.1:"+port)
	must(err)
	t := c.(*net.TCPConn)
	warm(t)
	say(t, name)
	return t
}

// Gives back what comes, until the end.
func echo(c net.Conn) {
	defer c.Close()
	room := make([]byte, 70000)
	for {
		n, err := c.Read(room)
		if err == io.EOF {
			return
		}
		must(err)
		write(c, room[:n])
	}
}

func serveOne(c *net.TCPConn) {
	for {
		name := line(c)
		if name == "warm" {
			say(c, name)
			continue
		}
		for _, p := range parts {
			if p.name == name {
				p.server(c)
				return
			}
		}
		panic("no part " + name)
	}
}

func serve() {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(err)
	port = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	fmt.Println(port)
	for {
		c, err := l.Accept()
		must(err)
		go serveOne(c.(*net.TCPConn))
	}
}

func main() {
	parts = append(append(append(connParts, fileParts...), stackParts...), part{"echo", func(c *net.TCPConn) {
		for n := 1; n < 200000; n = n*2 + 1 {
			sent := pattern(n)
			go write(c, sent)
			check(bytes.Equal(read(c, n), sent), "other bytes")
		}
		must(c.CloseWrite())
		rest, err := io.ReadAll(bufio.NewReader(c))
		must(err)
		check(len(rest) == 0, "more than was sent")
	}, func(c *net.TCPConn) { echo(c) }})
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		serve()
	case len(os.Args) >= 2 && os.Args[1] == "child":
		child()
	case len(os.Args) >= 3 && os.Args[1] == "dial":
		port = os.Args[2]
		for _, p := range parts {
			if len(os.Args) > 3 && !strings.HasPrefix(p.name, os.Args[3]) {
				continue
			}
			c := begin(p.name)
			p.client(c)
			c.Close()
			fmt.Println(p.name)
		}
	default:
		os.Exit(2)
	}
}
