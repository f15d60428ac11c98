package tenure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	mathrand "math/rand/v2"

	pb "tenure.example/tenure/pathlockdv1"
)

const (
	defaultTTL = 30 * time.Second
	// placeLasts is the lifetime of a queue entry after its last request.
	placeLasts   = time.Minute
	shortestPoll = 2 * time.Second
	longestPoll  = 15 * time.Second
	// contact limits the retries of one request while no node answers.
	contact       = 10 * time.Second
	contactNoWait = 4 * time.Second
	// tooLate is how many answers may arrive after their lease has ended.
	tooLate = 3
)

type lockOptions struct {
	mode     pb.Mode
	permits  uint32
	ttl      time.Duration
	wait     time.Duration
	noWait   bool
	ask      bool
	deadlock bool
	holder   *pb.Holder
	owner    string
	onWait   func(*BusyError)
}

// LockOption configures one lock.
type LockOption func(*lockOptions)

// Shared takes a shared lock on exactly this path.
func Shared() LockOption { return func(o *lockOptions) { o.mode = pb.Mode_MODE_READ } }

// SharedTree takes a shared lock on the path and everything below it.
func SharedTree() LockOption { return func(o *lockOptions) { o.mode = pb.Mode_MODE_READ_TREE } }

// Permit takes one of n permits. The path must be in a semaphore namespace.
func Permit(n uint32) LockOption { return func(o *lockOptions) { o.permits = n } }

// TTL sets the length of the lease; the default is 30 seconds. The client renews it.
func TTL(ttl time.Duration) LockOption { return func(o *lockOptions) { o.ttl = ttl } }

// Wait limits the time to wait. The default is the context's deadline.
func Wait(limit time.Duration) LockOption {
	return func(o *lockOptions) { o.wait, o.noWait = limit, limit <= 0 }
}

// NoWait fails with a BusyError if the lock is held.
func NoWait() LockOption { return func(o *lockOptions) { o.noWait = true } }

// AskHolders sends a release request to the holders while this call waits.
func AskHolders() LockOption { return func(o *lockOptions) { o.ask = true } }

// RefuseDeadlock fails with a BusyError if this call would be part of a cycle of waits.
func RefuseDeadlock() LockOption { return func(o *lockOptions) { o.deadlock = true } }

// Purpose tells others what the lock is for.
func Purpose(text string) LockOption { return func(o *lockOptions) { o.holder.Purpose = text } }

// HolderName replaces the name of the program in the description of the holder.
func HolderName(name string) LockOption { return func(o *lockOptions) { o.holder.Name = name } }

// OwnerID sets the owner id. It must not be in use: the default is a new one for each lock.
func OwnerID(id string) LockOption { return func(o *lockOptions) { o.owner = id } }

// OnWait is called for each answer that the lock is held. It must not block.
func OnWait(f func(*BusyError)) LockOption { return func(o *lockOptions) { o.onWait = f } }

// Lock acquires a path and renews its lease until it is released. It waits in the daemon's queue until
// ctx ends or the limit of Wait.
func (c *Client) Lock(ctx context.Context, path string, options ...LockOption) (*Guard, error) {
	return c.LockAll(ctx, []string{path}, options...)
}

// LockAll acquires all paths under one guard. Paths of one namespace are acquired in one step; paths of
// several namespaces in the order of the namespaces' names, so that two callers cannot deadlock.
func (c *Client) LockAll(ctx context.Context, paths []string, options ...LockOption) (*Guard, error) {
	o := &lockOptions{ttl: defaultTTL, holder: thisProcess()}
	for _, option := range options {
		option(o)
	}
	if len(paths) == 0 {
		return nil, errors.New("LockAll needs at least one path")
	}
	if o.ttl <= 0 {
		return nil, fmt.Errorf("a lease of %v is not positive", o.ttl)
	}
	if o.owner == "" {
		o.owner = o.holder.Name + "-" + newKey()
	}
	g, err := c.newGuard(o)
	if err != nil {
		return nil, err
	}
	if err := g.add(ctx, paths, o); err != nil {
		g.end(err)
		return nil, err
	}
	return g, nil
}

func thisProcess() *pb.Holder {
	host, _ := os.Hostname()
	name := filepath.Base(os.Args[0])
	if len(name) > 64 {
		name = name[:64]
	}
	name = strings.ReplaceAll(strings.ToValidUTF8(name, "?"), "\x00", "?")
	return &pb.Holder{Name: name, Host: host, Pid: uint32(os.Getpid())}
}

// add acquires the paths under the guard's owner.
func (g *Guard) add(ctx context.Context, paths []string, o *lockOptions) error {
	if o.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.wait)
		defer cancel()
	}
	err := g.attempt(ctx, paths, o)
	// The daemon refuses paths of several namespaces as invalid input: R31 (one namespace per acquire).
	if status.Code(err) != codes.InvalidArgument || len(paths) == 1 {
		return err
	}
	namespaces := map[string][]string{}
	for _, path := range paths {
		explained, explainErr := g.client.Explain(ctx, &pb.ExplainRequest{Path: path, OwnerId: g.owner})
		if explainErr != nil {
			return explainErr
		}
		namespaces[explained.Namespace] = append(namespaces[explained.Namespace], path)
	}
	if len(namespaces) == 1 {
		return err
	}
	names := make([]string, 0, len(namespaces))
	for name := range namespaces {
		names = append(names, name)
	}
	sort.Strings(names)
	for at, name := range names {
		if err := g.attempt(ctx, namespaces[name], o); err != nil {
			for _, taken := range names[:at] {
				_ = g.remove(context.WithoutCancel(ctx), namespaces[taken])
			}
			return err
		}
	}
	return nil
}

// attempt acquires paths of one namespace in one step.
func (g *Guard) attempt(ctx context.Context, paths []string, o *lockOptions) (err error) {
	// An effect that the client has not seen is undone when the attempt fails.
	mayBeGranted := false
	defer func() {
		if err != nil && mayBeGranted {
			g.withdraw(claimsOf(paths, o.mode))
		}
	}()
	g.beginWait()
	late := 0
	var busy *BusyError
	for asks := 1; ; asks++ {
		mayBeGranted = true
		answer, sent, err := g.ask(ctx, paths, o)
		if err != nil {
			if lost := g.ended(); lost != nil {
				return lost
			}
			if ctx.Err() != nil && busy == nil {
				return &UnreachableError{Last: errors.Join(ctx.Err(), err)}
			}
			if ctx.Err() != nil {
				return waitEnded(ctx, busy)
			}
			if mayPass(err) {
				// A wait outlives an outage of the daemon; a call that does not wait does not.
				if !o.noWait {
					continue
				}
				return &UnreachableError{Last: err}
			}
			if asks == 1 {
				mayBeGranted = false
			}
			return typed(err)
		}
		held := lease{sent: sent, ttl: g.ttl}
		if o.permits > 0 && answer.FencingToken > 0 {
			return fmt.Errorf("%s: there are no permits in this namespace: it is no semaphore; `tenure policy set NAMESPACE semaphore` makes it one", paths[0])
		}
		switch answer.Status {
		case pb.AcquireStatus_ACQUIRE_STATUS_OK:
			if held.safeUntil() > boottime() {
				mayBeGranted = false
				return g.hold(paths, o.mode, answer, held)
			}
			fallthrough
		case pb.AcquireStatus_ACQUIRE_STATUS_LOST:
			if late++; late > tooLate {
				return fmt.Errorf("%s: answers take longer than a lease of %v: take a longer ttl", paths[0], g.ttl)
			}
			continue
		case pb.AcquireStatus_ACQUIRE_STATUS_CONFLICT:
			if asks == 1 {
				mayBeGranted = false
			}
			return refused(answer, paths[0])
		}
		busy = busyOf(answer)
		if o.onWait != nil {
			o.onWait(busy)
		}
		if err := g.waitForNews(ctx, answer.Namespace, busy); err != nil {
			return err
		}
	}
}

// ask sends one request under one key, until it is answered. It returns when the first try was sent: any
// of the tries may be the one that was applied, so the lease counts from there.
func (g *Guard) ask(ctx context.Context, paths []string, o *lockOptions) (*pb.AcquireResponse, time.Duration, error) {
	request := &pb.AcquireRequest{
		OwnerId: g.owner, TtlMs: uint64(g.ttl.Milliseconds()), IdempotencyKey: newKey(),
		QueueTtlMs: uint64(placeLasts.Milliseconds()), NoWait: o.noWait, Ask: o.ask,
		Holder: o.holder, RefuseDeadlock: o.deadlock,
	}
	if deadline, has := ctx.Deadline(); has {
		// The queue entry must not outlive this call by much.
		request.QueueTtlMs = uint64(min(placeLasts, max(0, time.Until(deadline))+5*time.Second).Milliseconds())
	}
	for _, path := range paths {
		request.Requests = append(request.Requests, &pb.LockRequest{Path: path, Mode: o.mode, Permits: o.permits})
	}
	limit := contact
	if o.noWait {
		limit = contactNoWait
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(g.ctx, cancel)
	defer stop()
	var answer *pb.AcquireResponse
	tries := 0
	sent := boottime()
	err := g.client.repeat(ctx, eachTry, func(ctx context.Context, l *link) error {
		tries++
		send := func(request *pb.AcquireRequest) error {
			response, err := l.exchange(ctx, &pb.SessionRequest{Op: &pb.SessionRequest_Acquire{Acquire: request}})
			if err == nil {
				answer = response.GetAcquire()
			}
			if err == nil && answer == nil {
				err = errors.New("the node gave an answer of another kind")
			}
			return err
		}
		err := send(request)
		if errors.Is(err, errRetryWithoutKey) && tries == 1 {
			bare := proto.CloneOf(request)
			bare.IdempotencyKey = ""
			if err = send(bare); err != nil {
				// Without a key a repeat could apply it twice: no status that is retried.
				err = fmt.Errorf("%s", err.Error())
			}
		}
		return err
	})
	return answer, sent, err
}

// waitForNews returns nil when the request must be sent again: after a GRANT, after the connection broke,
// and at the interval at which a grant whose event was lost is still claimed before it lapses.
func (g *Guard) waitForNews(ctx context.Context, namespace string, busy *BusyError) error {
	interval := min(max(g.ttl/2, shortestPoll), longestPoll)
	// With jitter: waiters that began together must not poll together.
	poll := time.NewTimer(interval/2 + time.Duration(mathrand.Int64N(int64(interval/2))))
	defer poll.Stop()
	for {
		if g.takeNews(namespace) {
			return nil
		}
		select {
		case <-g.wake:
		case <-poll.C:
			return nil
		case <-g.ctx.Done():
			return g.ended()
		case <-ctx.Done():
			return waitEnded(ctx, busy)
		}
	}
}

func waitEnded(ctx context.Context, busy *BusyError) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && busy != nil {
		return &TimedOutError{Busy: busy}
	}
	return ctx.Err()
}

func busyOf(answer *pb.AcquireResponse) *BusyError {
	busy := &BusyError{
		Path: answer.Path, Owner: answer.Owner, Reason: answer.Reason,
		Position: int(answer.Position), Deadlock: answer.Deadlock,
	}
	if blocker := answer.Blocker; blocker != nil {
		busy.Holder = blocker.Holder
		busy.HeldFor = time.Duration(blocker.HeldMs) * time.Millisecond
		busy.LeaseLeft = time.Duration(blocker.LeaseLeftMs) * time.Millisecond
	}
	return busy
}

func refused(answer *pb.AcquireResponse, path string) error {
	switch answer.Reason {
	case pb.ReasonCode_REASON_CODE_READ_LOCKS_DISABLED:
		return fmt.Errorf("%s: there are no shared locks in this namespace", path)
	case pb.ReasonCode_REASON_CODE_INVALID_PERMITS:
		if answer.Owner == "" {
			return fmt.Errorf("%s: this namespace gives permits only: pass Permit with their number", path)
		}
		return fmt.Errorf("%s: there are %s permits here, and all clients must name the same number", path, answer.Owner)
	}
	return busyOf(answer)
}

func claimsOf(paths []string, mode pb.Mode) []claimKey {
	keys := make([]claimKey, 0, len(paths))
	for _, path := range paths {
		key := claimKey{path, mode}
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
