// Package tusdlocker lets several tusd servers share one store: a handler.Locker on the Tenure daemon.
//
//	client, err := tenure.New("tenure://127.0.0.1:50051")
//	composer := handler.NewStoreComposer()
//	store.UseIn(composer)
//	tusdlocker.New(client).UseIn(composer)
//
// A request for an upload that another request has, on any of the servers, asks that request to release
// it; tusd then ends the other request and this one goes on.
package tusdlocker

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tus/tusd/v2/pkg/handler"

	tenure "tenure.example/tenure"
)

// Locker is a handler.Locker.
type Locker struct {
	client *tenure.Client
	prefix string
	// TTL is the length of a lease: how long an upload stays locked after its server died. The default
	// is 10 seconds.
	TTL time.Duration
	// ReleaseTimeout limits Unlock. The default is 10 seconds.
	ReleaseTimeout time.Duration
}

// New returns a locker. The client stays the caller's.
func New(client *tenure.Client) *Locker { return NewWithPrefix(client, "tusd:/uploads") }

// NewWithPrefix returns a locker for the uploads below a path of the daemon: one per store.
func NewWithPrefix(client *tenure.Client, prefix string) *Locker {
	return &Locker{client: client, prefix: strings.TrimSuffix(prefix, "/"), TTL: 10 * time.Second, ReleaseTimeout: 10 * time.Second}
}

// UseIn adds the locker to a composer.
func (l *Locker) UseIn(composer *handler.StoreComposer) { composer.UseLocker(l) }

// NewLock returns the lock of an upload, not locked yet.
func (l *Locker) NewLock(id string) (handler.Lock, error) {
	if id == "" {
		return nil, errors.New("an upload has no id")
	}
	// An id is one segment of the path, whatever it contains; `.` and `..` are no segments.
	segment := url.PathEscape(id)
	if strings.Trim(id, ".") == "" {
		segment = strings.ReplaceAll(id, ".", "%2E")
	}
	return &lock{locker: l, path: l.prefix + "/" + segment}, nil
}

type lock struct {
	locker *Locker
	path   string

	mu    sync.Mutex
	guard *tenure.Guard
}

// Lock waits until ctx ends, and asks the holder to release. requestUnlock is called when another request
// asks for this upload, and when the lock is lost: in both cases this request must end.
func (l *lock) Lock(ctx context.Context, requestUnlock func()) error {
	guard, err := l.locker.client.Lock(ctx, l.path, tenure.AskHolders(), tenure.TTL(l.locker.TTL), tenure.Purpose("tus upload"))
	if err != nil {
		if ctx.Err() != nil {
			return handler.ErrLockTimeout
		}
		return err
	}
	l.mu.Lock()
	l.guard = guard
	l.mu.Unlock()
	go func() {
		select {
		case <-guard.ReleaseRequested():
			requestUnlock()
		case <-guard.Context().Done():
			if !errors.Is(guard.Err(), tenure.ErrReleased) {
				requestUnlock()
			}
		}
	}()
	return nil
}

// Unlock releases the lock. A lock that was lost is an error: the data store may have been used by another
// request meanwhile.
func (l *lock) Unlock() error {
	l.mu.Lock()
	guard := l.guard
	l.guard = nil
	l.mu.Unlock()
	if guard == nil {
		return errors.New("the upload is not locked")
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.locker.ReleaseTimeout)
	defer cancel()
	return guard.Release(ctx)
}
