// A cron job that runs on one machine at a time: start it everywhere, the others end at once.
//
//	0 3 * * *  cron_singleton nightly ./rollup.sh
//
// Without arguments it shows itself beside a daemon (`tenure serve`). It prints:
//
//	first run: working
//	second run: nightly runs already, nothing to do
//	first run: done
//	third run: working
//	third run: done
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"

	tenure "tenure.example/tenure"
)

// singleton runs the work under the lock of its name. It returns false if another machine runs it. The work's
// context is cancelled when the lock is lost.
func singleton(client *tenure.Client, name string, work func(context.Context) error) (bool, error) {
	guard, err := client.Lock(context.Background(), "cron:/jobs/"+name, tenure.NoWait(), tenure.Purpose(name))
	var busy *tenure.BusyError
	if errors.As(err, &busy) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = work(guard.Context())
	return true, errors.Join(err, guard.Release(context.Background()))
}

func main() {
	url := os.Getenv("TENURE_URL")
	if url == "" {
		url = "tenure://127.0.0.1:50051"
	}
	client, err := tenure.New(url)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if len(os.Args) > 2 {
		ran, err := singleton(client, os.Args[1], func(ctx context.Context) error {
			// CommandContext kills the command when the lock is lost.
			return exec.CommandContext(ctx, os.Args[2], os.Args[3:]...).Run()
		})
		if err != nil {
			log.Fatal(err)
		}
		if !ran {
			fmt.Println(os.Args[1], "runs already, nothing to do")
		}
		return
	}
	_, err = singleton(client, "nightly", func(context.Context) error {
		fmt.Println("first run: working")
		ran, err := singleton(client, "nightly", func(context.Context) error { return errors.New("never called") })
		if !ran {
			fmt.Println("second run: nightly runs already, nothing to do")
		}
		fmt.Println("first run: done")
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	_, err = singleton(client, "nightly", func(context.Context) error {
		fmt.Println("third run: working\nthird run: done")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
