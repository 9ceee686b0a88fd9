// What a Go program does with the kernel: net, children, signals, threads, preemption, faults, a profile.
//
//	all [PART...]     serve | dial ADDRESS are two processes
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sync"
	"syscall"
	"time"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() { io.Copy(c, c); c.Close() }()
	}
}

func listen() net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	return l
}

func echo() {
	l := listen()
	go accept(l)
	dial(l.Addr().String())
	l.Close()
}

func dial(address string) {
	var all sync.WaitGroup
	for range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			c, err := net.Dial("tcp", address)
			must(err)
			b := make([]byte, 1000)
			for i := range 100 {
				b[0] = byte(i)
				_, err = c.Write(b)
				must(err)
				got := make([]byte, 1000)
				_, err = io.ReadFull(c, got)
				must(err)
				if !bytes.Equal(b, got) {
					panic("differs")
				}
			}
			c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err = c.Read(b)
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				panic(err)
			}
			c.Close()
		}()
	}
	all.Wait()
}

func children() {
	var all sync.WaitGroup
	for i := range 20 {
		all.Add(1)
		go func() {
			defer all.Done()
			out, err := exec.Command("/bin/echo", fmt.Sprint(i)).Output()
			must(err)
			if string(out) != fmt.Sprintln(i) {
				panic(string(out))
			}
			if err := exec.Command("/nonexistent/program").Run(); err == nil {
				panic("executed")
			}
		}()
	}
	all.Wait()
	c, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if exec.CommandContext(c, "/bin/sleep", "10").Run() == nil {
		panic("slept")
	}
}

func signals() {
	got := make(chan os.Signal, 100)
	signal.Notify(got, syscall.SIGUSR1)
	for range 200 {
		syscall.Kill(os.Getpid(), syscall.SIGUSR1)
		<-got
	}
	signal.Stop(got)
}

//go:noinline
func deep(n int) int {
	var b [100]byte
	if n == 0 {
		syscall.Getppid()
		return 0
	}
	b[n%100] = byte(n)
	return deep(n-1) + int(b[n%100])&1
}

func threads() {
	var all sync.WaitGroup
	for range 60 {
		all.Add(1)
		go func() {
			defer all.Done()
			runtime.LockOSThread() // ends the thread, too
			deep(1000)
			time.Sleep(time.Millisecond)
		}()
	}
	all.Wait()
}

func preemption() {
	stop := time.Now().Add(100 * time.Millisecond)
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for n := 0; time.Now().Before(stop); n++ {
				for j := 0; j < 1000000; j++ {
					n += j
				}
				syscall.Getppid()
			}
		}()
	}
	for range 20 {
		runtime.GC()
	}
	all.Wait()
}

func faults() {
	defer func() {
		if recover() == nil {
			panic("no fault")
		}
	}()
	debug.SetPanicOnFault(true)
	var p *int
	*p = 1
}

func profiled(parts []func()) {
	var profile bytes.Buffer
	must(pprof.StartCPUProfile(&profile))
	for _, part := range parts {
		part()
	}
	pprof.StopCPUProfile()
	if profile.Len() == 0 {
		panic("no profile")
	}
}

func main() {
	parts := []func(){echo, children, signals, threads, preemption, faults, echo}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve":
			l := listen()
			fmt.Println(l.Addr())
			accept(l)
		case "dial":
			dial(os.Args[2])
		case "echo":
			echo()
		case "panic":
			panic("as asked")
		}
	} else {
		profiled(parts)
	}
	fmt.Println("done")
	os.Exit(7)
}
