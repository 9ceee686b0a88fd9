package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
	"unsafe"
)

var connParts = []part{
	{"deadlines", deadlines, func(c *net.TCPConn) {
		for line(c) == "again" {
			say(c, "yes")
		}
	}},
	{"a full peer", fullPeer, func(c *net.TCPConn) {
		// Reads nothing until another connection tells it to.
		total := 0
		<-goOn
		room := make([]byte, 1<<20)
		for {
			n, err := c.Read(room)
			total += n
			if err == io.EOF {
				break
			}
			must(err)
		}
		say(c, fmt.Sprint(total))
		c.Close()
	}},
	{"go on", func(*net.TCPConn) {}, func(c *net.TCPConn) { goOn <- true; c.Close() }},
	{"raw calls", rawCalls, func(c *net.TCPConn) { echo(c) }},
	{"vectors", vectors, func(c *net.TCPConn) { echo(c) }},
	{"half closed", halfClosed, func(c *net.TCPConn) {
		got, err := io.ReadAll(c)
		must(err)
		say(c, hash(got))
		c.Close()
	}},
	{"closed to read", func(c *net.TCPConn) {
		must(c.CloseRead())
		n, err := c.Read(make([]byte, 1))
		check(n == 0 && err == io.EOF, "no end")
		say(c, "still written")
		must(c.CloseWrite())
	}, func(c *net.TCPConn) { check(line(c) == "still written", "other"); c.Close() }},
	{"reset", func(c *net.TCPConn) {
		must(c.SetLinger(0))
		check(line(c) == "ready", "not ready")
		must(c.Close())
		// What the server has seen is told by another connection.
		other := begin("what was seen")
		check(line(other) == "reset", "no reset")
	}, func(c *net.TCPConn) {
		say(c, "ready")
		_, err := c.Read(make([]byte, 1))
		if errors.Is(err, syscall.ECONNRESET) {
			seen <- "reset"
		} else {
			seen <- fmt.Sprint(err)
		}
		c.Close()
	}},
	{"what was seen", func(c *net.TCPConn) {}, func(c *net.TCPConn) {
		select {
		case what := <-seen:
			say(c, what)
		case <-time.After(5 * time.Second):
			say(c, "nothing")
		}
		c.Close()
	}},
	{"closed under a reader", closedUnder, func(c *net.TCPConn) { echo(c) }},
	{"settings", settings, func(c *net.TCPConn) { echo(c) }},
	{"dials", dials, func(c *net.TCPConn) { c.Close() }},
	{"many paths", manyPaths, func(c *net.TCPConn) { echo(c) }},
}

var goOn, seen = make(chan bool), make(chan string, 1)

func deadlines(c *net.TCPConn) {
	one := make([]byte, 1)
	must(c.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err := c.Read(one)
	check(isTimeout(err), "no timeout in the past")
	for _, ms := range []int{1, 30} {
		began := time.Now()
		must(c.SetReadDeadline(began.Add(time.Duration(ms) * time.Millisecond)))
		_, err = c.Read(one)
		check(isTimeout(err), "no timeout")
		took := time.Since(began)
		check(took >= time.Duration(ms)*time.Millisecond && took < 5*time.Second, "at another time")
		// Behind a timeout the connection is as before.
		must(c.SetReadDeadline(time.Time{}))
		say(c, "again")
		check(line(c) == "yes", "other")
	}
	// A deadline that another goroutine sets ends a read that waits.
	for n := 0; n < 20; n++ {
		go func() {
			time.Sleep(time.Duration(n%3) * time.Millisecond)
			c.SetReadDeadline(time.Now())
		}()
		_, err = c.Read(one)
		check(isTimeout(err), "not woken")
		must(c.SetDeadline(time.Now().Add(20 * time.Second)))
		say(c, "again")
		check(line(c) == "yes", "other")
	}
	say(c, "no more")
}

func fullPeer(c *net.TCPConn) {
	must(c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)))
	written, chunk := 0, pattern(1<<20)
	for {
		n, err := c.Write(chunk)
		written += n
		if err != nil {
			check(isTimeout(err), "no timeout")
			break
		}
		check(written < 1<<30, "never full")
	}
	begin("go on").Close()
	must(c.SetDeadline(time.Now().Add(20 * time.Second)))
	must(c.CloseWrite())
	check(line(c) == fmt.Sprint(written), "other bytes than were written")
}

func rawCalls(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	must(err)
	must(raw.Control(func(fd uintptr) {
		kind, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TYPE)
		check(kind == syscall.SOCK_STREAM && err == nil, "no stream")
		nodelay, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_NODELAY)
		check(nodelay != 0 && err == nil, "not at once")
		var info [104]byte
		size := uint32(len(info))
		_, _, code := syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, syscall.IPPROTO_TCP, syscall.TCP_INFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		check(code == 0 && info[0] == 1, "not established")
		name, err := syscall.Getpeername(int(fd))
		check(err == nil && fmt.Sprint(name.(*syscall.SockaddrInet4).Port) == port, "another peer")
	}))
	for _, n := range []int{1, 100, 5000, 60000} {
		sent := pattern(n)
		at := 0
		must(raw.Write(func(fd uintptr) bool {
			for at < n {
				wrote, err := syscall.Write(int(fd), sent[at:])
				if err == syscall.EAGAIN {
					return false
				}
				must(err)
				at += wrote
			}
			return true
		}))
		got := make([]byte, n)
		at = 0
		must(raw.Read(func(fd uintptr) bool {
			for at < n {
				peeked, _, err := syscall.Recvfrom(int(fd), got[at:at+1], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
				if err == syscall.EAGAIN {
					return false
				}
				must(err)
				check(peeked == 1 && got[at] == sent[at], "another byte seen")
				count, _, _, _, err := syscall.Recvmsg(int(fd), got[at:], nil, 0)
				must(err)
				at += count
			}
			return true
		}))
		check(bytes.Equal(got, sent), "other bytes")
		check(syscall.Sendto(fdOf(raw), []byte("x"), syscall.MSG_NOSIGNAL, nil) == nil && read(c, 1)[0] == 'x', "not sent")
	}
}

func fdOf(raw syscall.RawConn) (fd int) {
	must(raw.Control(func(is uintptr) { fd = int(is) }))
	return fd
}

func vectors(c *net.TCPConn) {
	for _, count := range []int{2, 100, 3000} {
		var buffers net.Buffers
		var all []byte
		for n := 0; n < count; n++ {
			one := pattern(n%97 + 1)
			buffers = append(buffers, one)
			all = append(all, one...)
		}
		done := make(chan bool)
		go func() {
			n, err := buffers.WriteTo(c)
			must(err)
			check(int(n) == len(all), "written in part")
			done <- true
		}()
		check(bytes.Equal(read(c, len(all)), all), "other bytes")
		<-done
	}
}

func halfClosed(c *net.TCPConn) {
	sent := pattern(3 << 20)
	write(c, sent)
	must(c.CloseWrite())
	_, err := c.Write([]byte("x"))
	check(errors.Is(err, syscall.EPIPE), "no EPIPE")
	check(line(c) == hash(sent), "other bytes")
	_, err = c.Read(make([]byte, 1))
	check(err == io.EOF, "no end")
}

func closedUnder(c *net.TCPConn) {
	ended := make(chan error)
	for n := 0; n < 3; n++ {
		go func() {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}()
	}
	time.Sleep(5 * time.Millisecond)
	must(c.Close())
	for n := 0; n < 3; n++ {
		check(errors.Is(<-ended, net.ErrClosed), "read on")
	}
	_, err := c.Write([]byte("x"))
	check(errors.Is(err, net.ErrClosed), "written on")
	_, err = c.SyscallConn()
	check(err == nil, "no raw connection of one that is closed")
	check(errors.Is(c.SetDeadline(time.Now()), net.ErrClosed), "a deadline of one that is closed")
}

func settings(c *net.TCPConn) {
	exchange := func() {
		say(c, "asked")
		check(line(c) == "asked", "other")
	}
	must(c.SetNoDelay(false))
	exchange()
	must(c.SetNoDelay(true))
	must(c.SetKeepAlive(true))
	must(c.SetKeepAlivePeriod(3 * time.Second))
	exchange()
	must(c.SetReadBuffer(100000))
	must(c.SetWriteBuffer(100000))
	exchange()
	must(c.SetLinger(3))
	must(c.SetLinger(-1))
	exchange()
	sent := pattern(1 << 20)
	go write(c, sent)
	check(bytes.Equal(read(c, len(sent)), sent), "other bytes")
}

// Dials that fail, are given up, or have a local address; a listener whose deadline passes.
func dials(*net.TCPConn) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(err)
	gone := l.Addr().String()
	must(l.(*net.TCPListener).SetDeadline(time.Now().Add(5 * time.Millisecond)))
	_, err = l.Accept()
	check(isTimeout(err), "accepted")
	must(l.Close())
	_, err = l.Accept()
	check(errors.Is(err, net.ErrClosed), "accepted by one that is closed")
	_, err = net.Dial("tcp4", gone)
	check(errors.Is(err, syscall.ECONNREFUSED), "not refused")
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = (&net.Dialer{}).DialContext(ended, "tcp4", "127.0.0.1:"+port)
	check(err != nil, "connected by a dial that was given up")
	local := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: 10 * time.Second}
	c, err := local.Dial("tcp4", "127.0.0.1:"+port)
	must(err)
	check(c.LocalAddr().(*net.TCPAddr).IP.Equal(net.IPv4(127, 0, 0, 2)), "another address")
	say(c, "echo")
	say(c, "asked")
	check(line(c) == "asked", "other")
	must(c.Close())
	both, err := net.Listen("tcp", "[::]:0")
	must(err)
	defer both.Close()
	go func() {
		c, err := both.Accept()
		must(err)
		echo(c)
	}()
	c, err = net.Dial("tcp", fmt.Sprint("localhost:", both.Addr().(*net.TCPAddr).Port))
	must(err)
	for n := 0; n < 200; n++ {
		say(c, "asked")
		check(line(c) == "asked", "other")
	}
	must(c.Close())
}

// Go before 1.21 has no such setting.
type pathed interface{ SetMultipathTCP(bool) }

func several(of interface{}, are bool) {
	if setting, has := of.(pathed); has {
		setting.SetMultipathTCP(are)
	}
}

// A listener and a dial, each with and without MPTCP.
func manyPaths(*net.TCPConn) {
	for which := 0; which < 4; which++ {
		var listens net.ListenConfig
		var dials net.Dialer
		several(&listens, which&1 != 0)
		several(&dials, which&2 != 0)
		l, err := listens.Listen(context.Background(), "tcp4", "127.0.0.1:0")
		must(err)
		go func() {
			c, err := l.Accept()
			must(err)
			echo(c)
		}()
		c, err := dials.Dial("tcp4", l.Addr().String())
		must(err)
		must(c.SetDeadline(time.Now().Add(20 * time.Second)))
		warm(c.(*net.TCPConn))
		for n := 1; n < 100000; n = n*3 + 1 {
			sent := pattern(n)
			go write(c, sent)
			check(bytes.Equal(read(c, n), sent), "other bytes")
		}
		must(c.(*net.TCPConn).CloseWrite())
		_, err = c.Read(make([]byte, 1))
		check(err == io.EOF, "no end")
		must(c.Close())
		must(l.Close())
	}
}
