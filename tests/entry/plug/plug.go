// A plugin that has a dialogue with an echo server, and says of how many messages.
package main

import (
	"bytes"
	"io"
	"net"
)

// Talk is what is looked up.
func Talk(port string) int {
	c, err := net.Dial("tcp4", "127.0.0.1:"+port)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	for n := 1; n <= 1000; n++ {
		sent, got := bytes.Repeat([]byte{byte(n)}, n), make([]byte, n)
		if _, err := c.Write(sent); err != nil {
			panic(err)
		}
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
			panic("other bytes")
		}
	}
	return 1000
}

func main() {}
