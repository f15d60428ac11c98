package tenure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "tenure.example/tenure/pathlockdv1"
)

// BusyError reports that a lock is held and the call did not wait, or that waiting would be a deadlock.
type BusyError struct {
	// Path is the path that is in the way: the requested one, one above it or one below it.
	Path string
	// Owner holds Path, or waits for it and comes first.
	Owner string
	// Holder describes the owner, if it described itself.
	Holder *pb.Holder
	// HeldFor and LeaseLeft are as the daemon reported them.
	HeldFor, LeaseLeft time.Duration
	Reason             pb.ReasonCode
	// Position in the queue, from 1; 0 if the request was not queued.
	Position int
	// Deadlock lists the owners of the refused cycle of waits, in wait order.
	Deadlock []string
}

func (e *BusyError) Error() string {
	if len(e.Deadlock) > 0 {
		return fmt.Sprintf("%s: waiting would be a deadlock: %s", e.Path, strings.Join(e.Deadlock, " waits for "))
	}
	who := e.Owner
	if e.Holder != nil && e.Holder.Name != "" {
		who = e.Holder.Name
		if e.Holder.Host != "" {
			who += " on " + e.Holder.Host
		}
		if e.Holder.Purpose != "" {
			who += " (" + e.Holder.Purpose + ")"
		}
	}
	return fmt.Sprintf("%s: held by %s for %v, %v of its lease left", e.Path, who, e.HeldFor, e.LeaseLeft)
}

// TimedOutError reports that the lock was still held when the limit of Wait or the context's deadline
// was reached. It is a context.DeadlineExceeded, and has the last BusyError.
type TimedOutError struct{ Busy *BusyError }

func (e *TimedOutError) Error() string   { return "timed out: " + e.Busy.Error() }
func (e *TimedOutError) Unwrap() []error { return []error{e.Busy, context.DeadlineExceeded} }

// LostError reports that a lock is no longer held. It is the cause of a guard's cancelled context.
type LostError struct {
	// Path is a path that was lost; empty if the whole lease was lost.
	Path string
	Why  string
}

func (e *LostError) Error() string {
	if e.Path == "" {
		return "lock lost: " + e.Why
	}
	return "lock lost: " + e.Path + ": " + e.Why
}

// DeniedError reports that the daemon does not know the caller or does not permit the call.
type DeniedError struct{ Message string }

func (e *DeniedError) Error() string { return "denied: " + e.Message }

// UnreachableError reports that no node answered in time.
type UnreachableError struct{ Last error }

func (e *UnreachableError) Error() string { return fmt.Sprintf("no node answered in time: %v", e.Last) }
func (e *UnreachableError) Unwrap() error { return e.Last }

// ErrReleased is the cause of a guard's context after Release, and the error of calls on a released guard.
var ErrReleased = errors.New("the lock was released")

// ErrClosed is the error of calls on a closed client.
var ErrClosed = errors.New("the client is closed")

// mayPass returns whether a repeat of the call may succeed.
func mayPass(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return false
}

// typed turns a final error of a call into an error type of this package.
func typed(err error) error {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		return &DeniedError{Message: status.Convert(err).Message()}
	}
	return err
}
