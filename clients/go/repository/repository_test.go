//go:build unix

package repository_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tenure.example/tenure/internal/daemontest"
	"tenure.example/tenure/internal/vectors"
	"tenure.example/tenure/repository"
)

const limit = 60 * time.Second

// options: no program but Tenure uses these directories, so an acquisition waits for none.
func options(t *testing.T, isShared bool) repository.Options {
	t.Helper()
	return repository.Options{Binary: daemontest.Binary(t), Shared: isShared, Operation: "test", Arguments: []string{"--tenure-only"}}
}

func lock(t *testing.T, address string, isShared bool) *repository.Hold {
	t.Helper()
	hold, err := repository.Lock(context.Background(), address, options(t, isShared))
	if err != nil {
		t.Fatal(err)
	}
	return hold
}

func release(t *testing.T, hold *repository.Hold) {
	t.Helper()
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
}

// Shared holders share, an exclusive one is alone, and each sees the other.
func TestSharedAndExclusive(t *testing.T) {
	address := "repo:" + t.TempDir()
	one, two := lock(t, address, true), lock(t, address, true)
	var busy *repository.BusyError
	if _, err := repository.Lock(context.Background(), address, options(t, false)); !errors.As(err, &busy) || busy.TimedOut {
		t.Fatal(err)
	}
	waiting := options(t, false)
	waiting.Wait = 300 * time.Millisecond
	if _, err := repository.Lock(context.Background(), address, waiting); !errors.As(err, &busy) || !busy.TimedOut {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	waiting.Wait = limit
	if _, err := repository.Lock(ctx, address, waiting); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	holds, err := repository.List(context.Background(), address, options(t, false))
	if err != nil || len(holds) != 2 {
		t.Fatal(holds, err)
	}
	release(t, one)
	release(t, two)
	exclusive := lock(t, address, false)
	if _, err := repository.Lock(context.Background(), address, options(t, true)); !errors.As(err, &busy) {
		t.Fatal(err)
	}
	release(t, exclusive)
	if err := exclusive.Release(); !errors.Is(err, repository.ErrReleased) {
		t.Fatal(err)
	}
	next := lock(t, address, false)
	if next.Fence() <= exclusive.Fence() || exclusive.Fence() == 0 {
		t.Fatalf("fence %d after %d", next.Fence(), exclusive.Fence())
	}
	release(t, next)
}

// A lock that is broken cancels the context of its holder.
func TestABrokenLockIsLost(t *testing.T) {
	address := "repo:" + t.TempDir()
	hold := lock(t, address, false)
	if err := repository.Break(context.Background(), address, options(t, false)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hold.Context().Done():
	case <-time.After(limit):
		t.Fatal("the loss is not reported")
	}
	var lost *repository.LostError
	if !errors.As(hold.Err(), &lost) || !errors.As(hold.Release(), &lost) {
		t.Fatal(hold.Err())
	}
	release(t, lock(t, address, false))
}

// Locks of other programs, from the interoperability vectors: one in force, one stale.
func TestVectors(t *testing.T) {
	machine := vectors.NewMachine(t)
	for name, isHeld := range map[string]bool{"future-2999.json": true, "expires-missing.json": true, "stale-exclusive.json": false, "stale-exclusive.zst": false} {
		directory := t.TempDir()
		path := filepath.Join(directory, "index/lock.exclusive")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, machine.Read(t, "tenure-store", "repository", name), 0o644); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-20 * time.Minute)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
		hold, err := repository.Lock(context.Background(), "repo:"+directory, options(t, false))
		var busy *repository.BusyError
		switch {
		case isHeld && !errors.As(err, &busy):
			t.Errorf("%s: %v", name, err)
		case !isHeld && err != nil:
			t.Errorf("%s: %v", name, err)
		case !isHeld:
			release(t, hold)
		}
	}
	if _, err := repository.Lock(context.Background(), "repo:"+t.TempDir()+"/missing", options(t, false)); err == nil {
		t.Error("a repository that is not there")
	}
}
