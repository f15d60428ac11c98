// Command tortureworker is the Go worker of clients/torture.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	tenure "tenure.example/tenure"
)

func main() {
	client, err := tenure.New(os.Getenv("TENURE_URL"))
	if err != nil {
		panic(err)
	}
	for {
		if err := step(client); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

func step(client *tenure.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	guard, err := client.Lock(ctx, "vol:/torture/counter", tenure.TTL(2*time.Second))
	if err != nil {
		return err
	}
	err = guard.Check(ctx)
	if err == nil {
		err = exec.CommandContext(guard.Context(), "sh", os.Getenv("STEP"), strconv.FormatInt(guard.Fence(), 10), "go").Run()
	}
	if releaseErr := guard.Release(context.Background()); err == nil {
		err = releaseErr
	}
	return err
}
