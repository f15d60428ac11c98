// Package repository takes shared and exclusive leases on a backup repository: in a directory, in S3 and
// compatibles, GCS or Azure.
//
//	hold, err := repository.Lock(ctx, "s3://bucket/backups", repository.Options{Shared: true, Operation: "backup"})
//	defer hold.Release()
//	err = backup(hold.Context(), hold.Fence())
//
// The package runs the `tenure` command, which has the protocol: it writes and reads the lock objects of
// the repository's other programs, renews the lease and notices its loss. Credentials come from the usual
// variables of the store (AWS_ACCESS_KEY_ID, …). If this program dies, the lock is released.
package repository

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Exit codes of `tenure run`.
const (
	exitLost     = 120
	exitAsked    = 121
	exitTimedOut = 124
	exitBusy     = 75
)

// BusyError reports that the repository is locked and the call did not wait, or waited too long.
type BusyError struct {
	// Message names the holders.
	Message string
	// TimedOut says that the call has waited.
	TimedOut bool
}

func (e *BusyError) Error() string { return e.Message }

// LostError reports that the lock is no longer held. It is the cause of a cancelled context.
type LostError struct{ Message string }

func (e *LostError) Error() string { return "lock lost: " + e.Message }

// ErrReleased is the cause of a hold's context after Release.
var ErrReleased = errors.New("the lock was released")

// Options of a lock.
type Options struct {
	// Shared allows other shared holders: for backup and restore. The default is exclusive, for prune.
	Shared bool
	// Operation is written into the record: backup, restore, prune.
	Operation string
	// Wait is the longest time to wait; 0 does not wait. The context limits it too.
	Wait time.Duration
	// TTL is the length of the lease; 0 means 60 seconds.
	TTL time.Duration
	// Arguments are more options of `tenure run`, for example --tenure-only.
	Arguments []string
	// Binary is the `tenure` command; empty means the one in PATH.
	Binary string
	// Env is the environment of the command; nil means this process's.
	Env []string
}

func (o *Options) binary() string {
	if o.Binary == "" {
		return "tenure"
	}
	return o.Binary
}

// Hold is a held lock.
type Hold struct {
	fence  uint64
	ctx    context.Context
	cancel context.CancelCauseFunc
	stdin  io.Closer
	ended  chan struct{}
	err    error // why the command ended; valid after ended
}

// Lock acquires the lock of a repository: "repo:DIR", "s3://BUCKET/PREFIX", "gs://…" or "az://…".
func Lock(ctx context.Context, address string, options Options) (*Hold, error) {
	arguments := []string{"run", "--json", "--on-lost", "kill", "--on-ask", "notify"}
	if options.Shared {
		arguments = append(arguments, "--shared")
	}
	if options.Operation != "" {
		arguments = append(arguments, "--purpose", options.Operation)
	}
	if options.TTL > 0 {
		arguments = append(arguments, "--ttl", millis(options.TTL))
	}
	if options.Wait > 0 {
		arguments = append(arguments, "--wait", millis(options.Wait))
	} else {
		arguments = append(arguments, "--no-wait")
	}
	arguments = append(arguments, options.Arguments...)
	// The child says that the lock is held, and ends with its input: when Release closes it, and when this
	// process ends.
	arguments = append(arguments, address, "--", "sh", "-c", `echo "held ${TENURE_FENCE:-0}"; exec cat`)
	command := exec.Command(options.binary(), arguments...)
	command.Env = options.Env
	var stderr bytes.Buffer
	command.Stderr = &stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the tenure command: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Signal(interrupt) })
	lines := bufio.NewReader(stdout)
	line, readErr := lines.ReadString('\n')
	fence, isHeld := strings.CutPrefix(strings.TrimSpace(line), "held ")
	isInTime := stop()
	if readErr != nil || !isHeld || !isInTime {
		_ = stdin.Close()
		err := command.Wait()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, notHeld(err, stderr.String())
	}
	h := &Hold{stdin: stdin, ended: make(chan struct{})}
	h.fence, _ = strconv.ParseUint(fence, 10, 64)
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	go func() {
		// The child ends with the lock: the end of its output is the news.
		_, _ = io.Copy(io.Discard, lines)
		if h.ctx.Err() == nil {
			h.cancel(&LostError{"the lease could not be renewed, or the lock was broken"})
		}
		h.err = command.Wait()
		close(h.ended)
	}()
	return h, nil
}

func millis(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) + "ms" }

// notHeld turns the exit of the command into an error.
func notHeld(err error, stderr string) error {
	message := reason(stderr)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		switch exit.ExitCode() {
		case exitBusy:
			return &BusyError{Message: message}
		case exitTimedOut:
			return &BusyError{Message: message, TimedOut: true}
		case exitLost, exitAsked:
			return &LostError{message}
		}
	}
	return fmt.Errorf("the repository cannot be locked: %s (%v)", message, err)
}

// reason returns the message of the command's last JSON line, or its text.
func reason(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	var said struct {
		Message string `json:"message"`
		Error   string `json:"error"`
	}
	last := lines[len(lines)-1]
	if json.Unmarshal([]byte(last), &said) == nil {
		for _, text := range []string{said.Message, said.Error} {
			if text != "" {
				return text
			}
		}
	}
	return strings.TrimSpace(stderr)
}

// Context is cancelled when the lock is lost or released. context.Cause says why: a *LostError or
// ErrReleased.
func (h *Hold) Context() context.Context { return h.ctx }

// Fence is the fencing number of the acquisition; 0 if the store gives none.
func (h *Hold) Fence() uint64 { return h.fence }

// Err returns why the hold ended, or nil while it is held.
func (h *Hold) Err() error {
	if h.ctx.Err() == nil {
		return nil
	}
	return context.Cause(h.ctx)
}

// Release gives the lock back. After a loss it returns the LostError; after Release, ErrReleased.
func (h *Hold) Release() error {
	if err := h.Err(); err != nil {
		return err
	}
	h.cancel(ErrReleased)
	_ = h.stdin.Close()
	<-h.ended
	var exit *exec.ExitError
	if errors.As(h.err, &exit) && exit.ExitCode() == exitLost {
		return &LostError{"found when it was released"}
	}
	return h.err
}

// Break removes every hold of a repository, live ones too: their holders lose the lock.
func Break(ctx context.Context, address string, options Options) error {
	command := exec.CommandContext(ctx, options.binary(), "break", "--force", "--all", address)
	command.Env = options.Env
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("the locks cannot be removed: %s (%w)", strings.TrimSpace(string(output)), err)
	}
	return nil
}

// List returns the holds of a repository, each as `tenure ls --json` describes it.
func List(ctx context.Context, address string, options Options) ([]map[string]any, error) {
	command := exec.CommandContext(ctx, options.binary(), "ls", "--json", address)
	command.Env = options.Env
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("the locks cannot be listed: %w", err)
	}
	var locks []struct {
		Holders []map[string]any `json:"holders"`
	}
	if err := json.Unmarshal(output, &locks); err != nil {
		return nil, fmt.Errorf("the locks cannot be listed: %w", err)
	}
	var holds []map[string]any
	for _, lock := range locks {
		holds = append(holds, lock.Holders...)
	}
	return holds, nil
}
