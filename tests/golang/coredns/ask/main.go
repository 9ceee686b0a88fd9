// Asks a DNS server by TCP, many times over one connection, and transfers a zone. ask ADDRESS: prints what it got.
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"time"

	"github.com/miekg/dns"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	c := must(dns.DialTimeout("tcp", os.Args[1], 20*time.Second))
	all := sha256.New()
	for n := 0; n < 2000; n++ {
		asked := new(dns.Msg)
		name, kind := fmt.Sprintf("host-%d.example.org.", n%600), dns.TypeA
		if n%3 == 0 {
			kind = dns.TypeTXT
		}
		asked.SetQuestion(name, kind)
		must(0, c.SetDeadline(time.Now().Add(20*time.Second)))
		must(0, c.WriteMsg(asked))
		got := must(c.ReadMsg())
		if got.Id != asked.Id {
			panic("an answer to something else")
		}
		for _, record := range got.Answer {
			fmt.Fprintln(all, record.String())
		}
		fmt.Fprintln(all, name, got.Rcode)
	}
	must(0, c.Close())
	fmt.Printf("asked %x\n", all.Sum(nil))

	transfer, asked := new(dns.Transfer), new(dns.Msg)
	asked.SetAxfr("example.org.")
	count := 0
	all = sha256.New()
	for part := range must(transfer.In(asked, os.Args[2])) {
		must(0, part.Error)
		for _, record := range part.RR {
			fmt.Fprintln(all, record.String())
			count++
		}
	}
	fmt.Printf("transferred %d %x\n", count, all.Sum(nil))
}
