// A client of etcd: keys, a watch, transactions, a lease, a lock. ask ENDPOINT...: prints what it got.
package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func connect(endpoints ...string) *clientv3.Client {
	return must(clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 20 * time.Second}))
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	c := connect(os.Args[1:]...)
	defer c.Close()

	seen := make(chan string)
	watched := c.Watch(clientv3.WithRequireLeader(ctx), "key/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-watched
	go func() {
		all := sha256.New()
		for count := 0; count < 200; {
			for _, event := range (<-watched).Events {
				fmt.Fprintf(all, "%s %s %d\n", event.Kv.Key, event.Kv.Value, event.Kv.Version)
				count++
			}
		}
		seen <- fmt.Sprintf("%x", all.Sum(nil))
	}()
	for n := 0; n < 200; n++ {
		must(c.Put(ctx, fmt.Sprintf("key/%03d", n%150), strings.Repeat(fmt.Sprint(n, " "), n*10)))
	}
	fmt.Println("watch", <-seen)

	// Each member tells the same.
	for _, endpoint := range os.Args[1:] {
		one := connect(endpoint)
		all := sha256.New()
		for _, kv := range must(one.Get(ctx, "key/", clientv3.WithPrefix())).Kvs {
			fmt.Fprintf(all, "%s %s %d\n", kv.Key, kv.Value, kv.Version)
		}
		fmt.Printf("get %x\n", all.Sum(nil))
		one.Close()
	}

	// A counter that five change under one lock, each by its own session.
	var all sync.WaitGroup
	for worker := 0; worker < 5; worker++ {
		all.Add(1)
		go func() {
			defer all.Done()
			session := must(concurrency.NewSession(c, concurrency.WithTTL(60)))
			defer session.Close()
			lock := concurrency.NewMutex(session, "lock")
			for n := 0; n < 5; n++ {
				must(0, lock.Lock(ctx))
				count := 0
				if got := must(c.Get(ctx, "count")); len(got.Kvs) > 0 {
					must(fmt.Sscan(string(got.Kvs[0].Value), &count))
				}
				must(c.Put(ctx, "count", fmt.Sprint(count+1)))
				must(0, lock.Unlock(ctx))
			}
		}()
	}
	all.Wait()
	fmt.Printf("count %s\n", must(c.Get(ctx, "count")).Kvs[0].Value)

	done := must(c.Txn(ctx).If(clientv3.Compare(clientv3.Value("count"), "=", "25")).
		Then(clientv3.OpPut("right", "yes"), clientv3.OpDelete("key/", clientv3.WithPrefix())).Commit())
	fmt.Println("transaction", done.Succeeded, done.Responses[1].GetResponseDeleteRange().Deleted)
}
