// A fenced write to a database (bbolt): the record remembers the largest fence, so a writer that was paused and lost
// its lock cannot overwrite its successor.
//
// Run it beside a daemon (`tenure serve`). It prints:
//
//	A writes with its fence: stored
//	A loses its lock
//	B writes with a larger fence: stored
//	A writes with its old fence: refused
//	the balance is B's
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	tenure "tenure.example/tenure"
	pb "tenure.example/tenure/pathlockdv1"
)

type account struct {
	Balance string
	Fence   int64
}

var bucket, key = []byte("accounts"), []byte("7")

func read(tx *bbolt.Tx) (account, error) {
	var found account
	stored := tx.Bucket(bucket).Get(key)
	if stored == nil {
		return found, nil
	}
	return found, json.Unmarshal(stored, &found)
}

// write checks the fence and stores in one transaction: there is no moment between the two.
func write(database *bbolt.DB, fence int64, balance string) string {
	result := "refused"
	err := database.Update(func(tx *bbolt.Tx) error {
		found, err := read(tx)
		if err != nil || fence < found.Fence {
			return err
		}
		stored, err := json.Marshal(account{balance, fence})
		if err != nil {
			return err
		}
		result = "stored"
		return tx.Bucket(bucket).Put(key, stored)
	})
	must(err)
	return result
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	url := os.Getenv("TENURE_URL")
	if url == "" {
		url = "tenure://127.0.0.1:50051"
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := tenure.New(url)
	must(err)
	defer client.Close()
	directory, err := os.MkdirTemp("", "fenced-write")
	must(err)
	defer os.RemoveAll(directory)
	database, err := bbolt.Open(filepath.Join(directory, "accounts"), 0o600, nil)
	must(err)
	defer database.Close()
	must(database.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(bucket)
		return err
	}))

	a, err := client.Lock(ctx, "account:/fenced/7")
	must(err)
	fence := a.Fence()
	fmt.Println("A writes with its fence:", write(database, fence, "A's"))
	_, err = client.ForceRelease(ctx, &pb.ForceReleaseRequest{VictimId: a.Owner()})
	must(err)
	<-a.Context().Done()
	fmt.Println("A loses its lock")
	b, err := client.Lock(ctx, "account:/fenced/7")
	must(err)
	fmt.Println("B writes with a larger fence:", write(database, b.Fence(), "B's"))
	// A that has not looked at its context, or was paused before this line.
	fmt.Println("A writes with its old fence:", write(database, fence, "A's again"))
	must(database.View(func(tx *bbolt.Tx) error {
		found, err := read(tx)
		fmt.Println("the balance is", found.Balance)
		return err
	}))
	must(b.Release(ctx))
}
