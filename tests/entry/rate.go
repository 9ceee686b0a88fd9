// How many 100-byte messages, or HTTP requests, go to and fro in a second.
//
//	rate serve WHAT                            WHAT: echo, http; prints its port
//	rate ask WHAT PORT CONNECTIONS SECONDS     prints how many a second, after a second that does not count
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const size = 100

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	must(err)
	return n
}

func serve(what string) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(err)
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	if what == "http" {
		body := bytes.Repeat([]byte("x"), size)
		must(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(body) })))
	}
	for {
		c, err := l.Accept()
		must(err)
		go func() {
			room := make([]byte, 4096)
			for {
				n, err := c.Read(room)
				if err != nil {
					c.Close()
					return
				}
				if _, err := c.Write(room[:n]); err != nil {
					c.Close()
					return
				}
			}
		}()
	}
}

// One dialogue, as a function that has it once.
func dialogue(what, port string) func() {
	if what == "http" {
		client := &http.Client{Transport: &http.Transport{}}
		return func() {
			got, err := client.Get("http://127.0.0.1:" + port + "/")
			must(err)
			body, err := io.ReadAll(got.Body)
			must(err)
			got.Body.Close()
			if len(body) != size {
				panic("another length")
			}
		}
	}
	c, err := net.Dial("tcp4", "127.0.0.1:"+port)
	must(err)
	sent, got := bytes.Repeat([]byte("x"), size), make([]byte, size)
	return func() {
		_, err := c.Write(sent)
		must(err)
		_, err = io.ReadFull(c, got)
		must(err)
	}
}

func ask(what, port string, connections int, during time.Duration) {
	var done atomic.Int64
	var all sync.WaitGroup
	over := make(chan bool)
	for n := 0; n < connections; n++ {
		all.Add(1)
		once := dialogue(what, port)
		go func() {
			defer all.Done()
			for own := int64(0); ; own++ {
				once()
				if own%16 == 15 {
					done.Add(16)
					select {
					case <-over:
						return
					default:
					}
				}
			}
		}()
	}
	time.Sleep(time.Second)
	before, began := done.Load(), time.Now()
	time.Sleep(during)
	count, took := done.Load()-before, time.Since(began)
	close(over)
	all.Wait()
	fmt.Printf("%.0f\n", float64(count)/took.Seconds())
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		serve(os.Args[2])
	}
	if len(os.Args) != 6 {
		os.Exit(2)
	}
	ask(os.Args[2], os.Args[3], number(os.Args[4]), time.Duration(number(os.Args[5]))*time.Second)
}
