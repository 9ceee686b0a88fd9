// A client of NATS: requests and answers, many readers of what is published, a stream. ask URL: prints what it got.
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func connect() *nats.Conn {
	return must(nats.Connect(os.Args[1]))
}

// The subject of requests is answered by another connection, in order.
func requests() {
	answers, asks := connect(), connect()
	defer answers.Close()
	defer asks.Close()
	must(answers.Subscribe("hashes", func(m *nats.Msg) {
		hash := sha256.Sum256(m.Data)
		if err := m.Respond(hash[:]); err != nil {
			panic(err)
		}
	}))
	must(0, answers.Flush())
	all := sha256.New()
	for n := 0; n < 1500; n++ {
		sent := make([]byte, n*n%50000)
		for at := range sent {
			sent[at] = byte(at * n)
		}
		all.Write(must(asks.Request("hashes", sent, 20*time.Second)).Data)
	}
	fmt.Printf("requests %x\n", all.Sum(nil))
}

// Each of five readers gets all, in order.
func fanOut() {
	const messages = 20000
	var all sync.WaitGroup
	for reader := 0; reader < 5; reader++ {
		c := connect()
		defer c.Close()
		s := must(c.SubscribeSync("numbers"))
		must(0, s.SetPendingLimits(-1, -1))
		must(0, c.Flush())
		all.Add(1)
		go func() {
			defer all.Done()
			for n := 0; n < messages; n++ {
				if got := string(must(s.NextMsg(20 * time.Second)).Data); got != fmt.Sprint(n) {
					panic(fmt.Sprint(got, " in the place of ", n))
				}
			}
		}()
	}
	c := connect()
	defer c.Close()
	for n := 0; n < messages; n++ {
		must(0, c.Publish("numbers", []byte(fmt.Sprint(n))))
	}
	must(0, c.Flush())
	all.Wait()
	fmt.Println("fan-out", messages)
}

func stream() {
	c := connect()
	defer c.Close()
	js := must(c.JetStream())
	must(js.AddStream(&nats.StreamConfig{Name: "kept", Subjects: []string{"kept.*"}, Storage: nats.MemoryStorage}))
	for n := 0; n < 500; n++ {
		must(js.Publish(fmt.Sprintf("kept.%d", n%7), []byte(fmt.Sprint(n))))
	}
	s := must(js.PullSubscribe("kept.*", "reader"))
	sum := 0
	for count := 0; count < 500; {
		for _, m := range must(s.Fetch(50, nats.MaxWait(20*time.Second))) {
			var n int
			must(fmt.Sscan(string(m.Data), &n))
			sum += n
			count++
			must(0, m.AckSync())
		}
	}
	must(0, js.DeleteStream("kept"))
	fmt.Println("stream", sum)
}

func main() {
	requests()
	fanOut()
	stream()
}
