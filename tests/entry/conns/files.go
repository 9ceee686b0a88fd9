package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Connections as files: dup, sendfile, splice, exec and SCM_RIGHTS.
var fileParts = []part{
	{"a file of a connection", fileOf, func(c *net.TCPConn) { echo(c) }},
	{"a listener's file", listenersFile, func(c *net.TCPConn) { c.Close() }},
	{"sendfile", sendfile, func(c *net.TCPConn) {
		for round := 0; round < 4; round++ {
			say(c, hash(read(c, sizes[round])))
		}
		c.Close()
	}},
	{"to a file", func(c *net.TCPConn) {
		sent := pattern(3 << 20)
		write(c, sent)
		must(c.CloseWrite())
		check(line(c) == hash(sent), "other bytes")
	}, func(c *net.TCPConn) {
		file := temporary()
		defer os.Remove(file.Name())
		_, err := io.Copy(file, c)
		must(err)
		got, err := os.ReadFile(file.Name())
		must(err)
		say(c, hash(got))
		c.Close()
	}},
	// The server stands between the client and a second connection to itself.
	{"a proxy", func(c *net.TCPConn) {
		for n := 1; n < 3000000; n = n*7 + 3 {
			sent := pattern(n)
			go write(c, sent)
			check(bytes.Equal(read(c, n), sent), "other bytes")
		}
		must(c.CloseWrite())
		_, err := c.Read(make([]byte, 1))
		check(err == io.EOF, "no end")
	}, func(c *net.TCPConn) {
		behind := begin("echo")
		go func() {
			_, err := io.Copy(behind, c)
			must(err)
			must(behind.CloseWrite())
		}()
		_, err := io.Copy(c, behind)
		must(err)
		behind.Close()
		c.Close()
	}},
	{"a proxy of a socket of its own kind", throughUnix, func(c *net.TCPConn) { echo(c) }},
	{"a child has it", childHasIt, func(c *net.TCPConn) { echo(c) }},
	{"passed", passed, func(c *net.TCPConn) { echo(c) }},
	{"children beside it", childrenBeside, func(c *net.TCPConn) { echo(c) }},
}

var sizes = []int{3 << 20, 1000, 200000, 1}

func temporary() *os.File {
	file, err := os.CreateTemp("", "conns")
	must(err)
	return file
}

func fileOf(c *net.TCPConn) {
	file, err := c.File()
	must(err)
	say(file, "by the file")
	check(line(c) == "by the file", "other")
	say(c, "by the connection")
	check(line(file) == "by the connection", "other")
	other, err := net.FileConn(file)
	must(err)
	must(file.Close())
	for n := 0; n < 200; n++ {
		say(c, "asked")
		check(line(other) == "asked", "other")
	}
	must(c.Close())
	sent := pattern(1 << 20)
	go write(other, sent)
	check(bytes.Equal(read(other, len(sent)), sent), "other bytes")
	must(other.SetReadDeadline(time.Now().Add(5 * time.Millisecond)))
	_, err = other.Read(make([]byte, 1))
	check(isTimeout(err), "no timeout")
	must(other.Close())
}

func listenersFile(*net.TCPConn) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(err)
	file, err := l.(*net.TCPListener).File()
	must(err)
	again, err := net.FileListener(file)
	must(err)
	must(file.Close())
	must(l.Close())
	go func() {
		c, err := again.Accept()
		must(err)
		echo(c)
	}()
	c, err := net.Dial("tcp4", again.Addr().String())
	must(err)
	for n := 0; n < 300; n++ {
		say(c, "asked")
		check(line(c) == "asked", "other")
	}
	must(c.Close())
	must(again.Close())
}

func sendfile(c *net.TCPConn) {
	file := temporary()
	defer os.Remove(file.Name())
	all := pattern(sizes[0])
	write(file, all)
	for round, size := range sizes {
		_, err := file.Seek(int64(round), io.SeekStart)
		must(err)
		var from io.Reader = file
		if round > 0 {
			from = io.LimitReader(file, int64(size))
		} else {
			_, err = file.Seek(0, io.SeekStart)
			must(err)
		}
		n, err := io.Copy(c, from)
		must(err)
		check(int(n) == size, "copied in part")
		at, err := file.Seek(0, io.SeekCurrent)
		must(err)
		check(int(at) == round+size, "the file stands elsewhere")
		check(line(c) == hash(all[round:round+size]), "other bytes")
	}
}

func throughUnix(c *net.TCPConn) {
	directory, err := os.MkdirTemp("", "conns")
	must(err)
	defer os.RemoveAll(directory)
	l, err := net.Listen("unix", filepath.Join(directory, "s"))
	must(err)
	go func() {
		near, err := l.Accept()
		must(err)
		go func() {
			_, err := io.Copy(c, near)
			must(err)
			must(c.CloseWrite())
		}()
		_, err = io.Copy(near, c)
		must(err)
		near.Close()
	}()
	far, err := net.Dial("unix", l.Addr().String())
	must(err)
	sent := pattern(2 << 20)
	go write(far, sent)
	check(bytes.Equal(read(far, len(sent)), sent), "other bytes")
	must(far.(*net.UnixConn).CloseWrite())
	_, err = far.Read(make([]byte, 1))
	check(err == io.EOF, "no end")
	must(far.Close())
	must(l.Close())
}

// A child with the connection as its descriptor 3: answers one line, and ends.
func child() {
	conn := os.NewFile(3, "connection")
	say(conn, "from the child")
	check(line(conn) == "from the child", "other")
	fmt.Println("the child is done")
}

func childHasIt(c *net.TCPConn) {
	say(c, "before")
	check(line(c) == "before", "other")
	file, err := c.File()
	must(err)
	command := exec.Command("/proc/self/exe", "child")
	command.ExtraFiles = []*os.File{file}
	out, err := command.Output()
	must(err)
	check(string(out) == "the child is done\n", string(out))
	must(file.Close())
	for n := 0; n < 100; n++ {
		say(c, "behind")
		check(line(c) == "behind", "other")
	}
}

func passed(c *net.TCPConn) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must(err)
	raw, err := c.SyscallConn()
	must(err)
	must(syscall.Sendmsg(pair[0], []byte("x"), syscall.UnixRights(fdOf(raw)), nil, 0))
	room := make([]byte, 100)
	_, n, _, _, err := syscall.Recvmsg(pair[1], make([]byte, 1), room, syscall.MSG_CMSG_CLOEXEC)
	must(err)
	messages, err := syscall.ParseSocketControlMessage(room[:n])
	must(err)
	rights, err := syscall.ParseUnixRights(&messages[0])
	must(err)
	file := os.NewFile(uintptr(rights[0]), "passed")
	other, err := net.FileConn(file)
	must(err)
	must(file.Close())
	say(other, "by the other name")
	check(line(c) == "by the other name", "other")
	must(c.Close())
	for n := 0; n < 100; n++ {
		say(other, "asked")
		check(line(other) == "asked", "other")
	}
	must(other.Close())
	must(syscall.Close(pair[0]))
	must(syscall.Close(pair[1]))
}

// os/exec forks beside calls on a connection.
func childrenBeside(c *net.TCPConn) {
	done := make(chan bool)
	go func() {
		for n := 0; n < 20; n++ {
			out, err := exec.Command("/bin/echo", fmt.Sprint(n)).Output()
			must(err)
			check(string(out) == fmt.Sprintln(n), string(out))
		}
		close(done)
	}()
	for n, over := 0, false; !over; n++ {
		sent := pattern(n%3000 + 1)
		write(c, sent)
		check(bytes.Equal(read(c, len(sent)), sent), "other bytes")
		select {
		case <-done:
			over = true
		default:
		}
	}
}
