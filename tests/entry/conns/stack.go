package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/rpc"
	"net/url"
	"strconv"
	"strings"
	"sync"
)

// What stands on net: HTTP, HTTP/2 with TLS, a reverse proxy, an upgrade, net/rpc.
var stackParts = []part{
	{"http", func(c *net.TCPConn) { asks("http://"+line(c), 8, true) }, func(c *net.TCPConn) {
		s := httptest.NewServer(http.HandlerFunc(answer))
		told(c, s.URL, s.Close)
	}},
	{"tls and http/2", func(c *net.TCPConn) { asks("https://"+line(c), 8, true) }, func(c *net.TCPConn) {
		s := httptest.NewUnstartedServer(http.HandlerFunc(answer))
		s.EnableHTTP2 = true
		s.StartTLS()
		told(c, s.URL, s.Close)
	}},
	// Without bodies of requests: an answer that comes before the proxy has seen a body's end is an error to it, by TCP also.
	{"a reverse proxy", func(c *net.TCPConn) { asks("http://"+line(c), 4, false) }, func(c *net.TCPConn) {
		behind := httptest.NewServer(http.HandlerFunc(answer))
		where, err := url.Parse(behind.URL)
		must(err)
		s := httptest.NewServer(httputil.NewSingleHostReverseProxy(where))
		told(c, s.URL, func() { s.Close(); behind.Close() })
	}},
	{"hijacked", hijacked, func(c *net.TCPConn) {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			taken, both, err := w.(http.Hijacker).Hijack()
			must(err)
			both.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			must(both.Flush())
			io.Copy(taken, both)
			taken.Close()
		}))
		told(c, s.URL, s.Close)
	}},
	{"rpc", func(c *net.TCPConn) {
		client := rpc.NewClient(c)
		var all sync.WaitGroup
		for n := 0; n < 20; n++ {
			all.Add(1)
			go func(n int) {
				defer all.Done()
				for m := 0; m < 100; m++ {
					sent, got := pattern(n*m+1), ""
					must(client.Call("Hashes.Of", sent, &got))
					check(got == hash(sent), "another answer")
				}
			}(n)
		}
		all.Wait()
		must(client.Close())
	}, func(c *net.TCPConn) {
		server := rpc.NewServer()
		must(server.Register(&Hashes{}))
		server.ServeConn(c)
	}},
}

// Hashes is net/rpc's service.
type Hashes struct{}

// Of gives the hash of what it is sent.
func (*Hashes) Of(sent []byte, got *string) error {
	*got = hash(sent)
	return nil
}

// Tells where the server of a part is, and ends it when the client has gone.
func told(c *net.TCPConn, where string, end func()) {
	say(c, where[strings.Index(where, "//")+2:])
	io.Copy(io.Discard, c)
	end()
	c.Close()
}

// Gives back the body that it is sent, or what it is asked for, in two pieces.
func answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	must(err)
	if size := r.URL.Query().Get("size"); size != "" {
		n, err := strconv.Atoi(size)
		must(err)
		body = pattern(n)
	}
	half := len(body) / 2
	w.Write(body[:half])
	w.(http.Flusher).Flush()
	w.Write(body[half:])
}

// Some clients at once, each over connections that are kept.
func asks(where string, clients int, sends bool) {
	var all sync.WaitGroup
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: clients}
	client := &http.Client{Transport: transport}
	for one := 0; one < clients; one++ {
		all.Add(1)
		go func(one int) {
			defer all.Done()
			for n := 0; n < 40; n++ {
				size := (n*n*97 + one*13) % 9000
				if n%20 == 19 {
					size = 1 << 20
				}
				sent := pattern(size)
				var got *http.Response
				var err error
				if sends {
					got, err = client.Post(where, "text/plain", bytes.NewReader(sent))
				} else {
					got, err = client.Get(fmt.Sprint(where, "/?size=", size))
				}
				must(err)
				body, err := io.ReadAll(got.Body)
				must(err)
				got.Body.Close()
				check(got.StatusCode == 200 && bytes.Equal(body, sent), "another answer")
			}
		}(one)
	}
	all.Wait()
	transport.CloseIdleConnections()
}

func hijacked(c *net.TCPConn) {
	up, err := net.Dial("tcp4", line(c))
	must(err)
	fmt.Fprint(up, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	reader := bufio.NewReader(up)
	got, err := http.ReadResponse(reader, nil)
	must(err)
	check(got.StatusCode == 101, "not taken")
	for n := 0; n < 300; n++ {
		say(up, "asked")
		answer, err := reader.ReadString('\n')
		must(err)
		check(answer == "asked\n", "other")
	}
	must(up.(*net.TCPConn).CloseWrite())
	_, err = reader.ReadByte()
	check(err == io.EOF, "no end")
	must(up.Close())
}
