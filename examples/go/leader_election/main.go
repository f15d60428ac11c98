// Leader election: three candidates, one leads; when it dies, the next one leads with a larger fence.
//
// Run it beside a daemon (`tenure serve`). It prints:
//
//	a candidate leads
//	an operator ends the leader; its context is cancelled
//	another candidate leads, with a larger fence
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	tenure "tenure.example/tenure"
	pb "tenure.example/tenure/pathlockdv1"
)

func main() {
	url := os.Getenv("TENURE_URL")
	if url == "" {
		url = "tenure://127.0.0.1:50051"
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := tenure.New(url)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	leaders := make(chan *tenure.Guard)
	for _, name := range []string{"one", "two", "three"} {
		go func() {
			guard, err := client.Lock(ctx, "election:/service/leader", tenure.TTL(10*time.Second), tenure.Purpose(name))
			if err != nil {
				log.Fatal(err)
			}
			leaders <- guard
		}()
	}

	first := <-leaders
	fmt.Println("a candidate leads")
	// A leader uses its guard's context for everything it does, and its fence for everything it writes.
	if _, err := client.ForceRelease(ctx, &pb.ForceReleaseRequest{VictimId: first.Owner()}); err != nil {
		log.Fatal(err)
	}
	<-first.Context().Done()
	fmt.Println("an operator ends the leader; its context is cancelled")
	second := <-leaders
	if second.Fence() <= first.Fence() {
		log.Fatal("the fence did not rise")
	}
	fmt.Println("another candidate leads, with a larger fence")
	if err := second.Release(ctx); err != nil {
		log.Fatal(err)
	}
	if err := (<-leaders).Release(ctx); err != nil {
		log.Fatal(err)
	}
}
