package tenure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "tenure.example/tenure/pathlockdv1"
)

// Guard is a held lock: one owner with one or more paths. Its lease is renewed until Release.
//
// The loss of any path is the loss of the guard: its context is cancelled, and what is left is released.
type Guard struct {
	client *Client
	owner  string
	ttl    time.Duration
	ctx    context.Context
	cancel context.CancelCauseFunc
	// turn serializes Add, Remove and Release: R83 (one pending entry per namespace).
	turn chan struct{}
	// wake tells the waiting acquire that there is news.
	wake chan struct{}
	// changed tells the renewal loop to look again.
	changed chan struct{}
	asked   chan struct{}
	ended1  sync.Once
	asked1  sync.Once

	mu      sync.Mutex
	fence   int64
	claims  []*claim
	leases  map[string]lease // by namespace
	granted map[string]bool  // GRANT events by namespace, not taken yet
	again   bool             // the connection broke, or a hold was taken away
	// renewNow and compareNow: the connection was replaced. Events may have been lost with it.
	renewNow, compareNow bool
	// isSpoiled: a release was not answered. It may arrive late and drop what is acquired later.
	isSpoiled bool
	isKept    bool
}

type claimKey struct {
	path string
	mode pb.Mode
}

type claim struct {
	claimKey
	namespace string
	fence     int64
	acquired  time.Duration
}

func (c *Client) newGuard(o *lockOptions) (*Guard, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	g := &Guard{
		client: c, owner: o.owner, ttl: o.ttl, ctx: ctx, cancel: cancel,
		turn: make(chan struct{}, 1), wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		asked: make(chan struct{}), leases: map[string]lease{}, granted: map[string]bool{},
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, ErrClosed
	case c.guards[o.owner] != nil:
		return nil, fmt.Errorf("the owner id %q is in use: use Add on its guard", o.owner)
	}
	c.guards[o.owner] = g
	return g, nil
}

// Context is cancelled when the lock is lost or released. context.Cause says why: a *LostError or
// ErrReleased.
func (g *Guard) Context() context.Context { return g.ctx }

// Err returns why the guard ended, or nil while the lock is held.
func (g *Guard) Err() error {
	if g.ctx.Err() == nil {
		return nil
	}
	return context.Cause(g.ctx)
}

// Owner returns the owner id that the daemon knows.
func (g *Guard) Owner() string { return g.owner }

// ReleaseRequested is closed when another client has asked this guard to release.
func (g *Guard) ReleaseRequested() <-chan struct{} { return g.asked }

// Fence returns the fence of Lock, or 0 for shared locks and permits. A store that refuses older fences is
// safe from a holder that was paused. It stays what it was when the lock is lost.
func (g *Guard) Fence() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fence
}

// FenceOf returns the fence of one path, or 0 if it has none or is not held.
func (g *Guard) FenceOf(path string) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, claim := range g.claims {
		if claim.path == path && claim.fence > 0 {
			return claim.fence
		}
	}
	return 0
}

// Paths returns the held paths.
func (g *Guard) Paths() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var paths []string
	for _, claim := range g.claims {
		paths = append(paths, claim.path)
	}
	return paths
}

// ValidFor returns how long the work may go on without another renewal.
func (g *Guard) ValidFor() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil || len(g.leases) == 0 {
		return 0
	}
	left := g.ttl
	for _, lease := range g.leases {
		left = min(left, lease.safeUntil()-boottime())
	}
	return max(left, 0)
}

// Add acquires another path under the same lease. TTL, OwnerID and the description of the holder stay as
// they were given to Lock.
func (g *Guard) Add(ctx context.Context, path string, options ...LockOption) error {
	if err := g.take(ctx); err != nil {
		return err
	}
	defer g.give()
	o := &lockOptions{holder: thisProcess()}
	for _, option := range options {
		option(o)
	}
	g.mu.Lock()
	isSpoiled := g.isSpoiled
	isHeld := slices.ContainsFunc(g.claims, func(held *claim) bool { return held.claimKey == claimKey{path, o.mode} })
	g.mu.Unlock()
	if isSpoiled {
		return errors.New("a release of this guard was not answered and may still arrive: take a new lock")
	}
	if isHeld {
		return nil
	}
	return g.add(ctx, []string{path}, o)
}

// Remove releases one path of the guard. The others stay.
func (g *Guard) Remove(ctx context.Context, path string) error {
	if err := g.take(ctx); err != nil {
		return err
	}
	defer g.give()
	return g.remove(ctx, []string{path})
}

func (g *Guard) remove(ctx context.Context, paths []string) error {
	var keys []claimKey
	g.mu.Lock()
	// First: a renewal or a list that misses the path must not count as a loss.
	g.claims = slices.DeleteFunc(g.claims, func(held *claim) bool {
		isMeant := slices.Contains(paths, held.path)
		if isMeant {
			keys = append(keys, held.claimKey)
		}
		return isMeant
	})
	g.dropEmptyLeases()
	g.mu.Unlock()
	if len(keys) == 0 {
		return fmt.Errorf("%v: not held by this guard", paths)
	}
	err := g.client.release(ctx, g.owner, keys)
	if err != nil {
		g.mu.Lock()
		g.isSpoiled = true
		g.mu.Unlock()
	}
	return err
}

// Check asks the daemon whether the guard still holds all its paths at their fences.
func (g *Guard) Check(ctx context.Context) error {
	if err := g.Err(); err != nil {
		return err
	}
	byFence := map[int64][]string{}
	g.mu.Lock()
	held := slices.Clone(g.claims)
	g.mu.Unlock()
	for _, claim := range held {
		byFence[claim.fence] = append(byFence[claim.fence], claim.path)
	}
	for fence, paths := range byFence {
		if fence == 0 {
			listed, err := g.client.ListOwnerLocks(ctx, &pb.ListOwnerLocksRequest{OwnerId: g.owner, ReadTree: true})
			if err != nil {
				return err
			}
			for _, claim := range held {
				if !isListed(claim, listed.Locks) {
					return &LostError{Path: claim.path, Why: "the daemon does not list it"}
				}
			}
			continue
		}
		answer, err := g.client.AssertFencing(ctx, &pb.AssertFencingRequest{OwnerId: g.owner, FencingToken: fence, Paths: paths})
		if err != nil {
			return err
		}
		if answer.Status != pb.AssertStatus_ASSERT_STATUS_OK {
			return &LostError{Path: answer.Path, Why: answer.Reason.String()}
		}
	}
	return nil
}

// Release releases all paths and ends the guard. After a loss it returns the LostError.
func (g *Guard) Release(ctx context.Context) error {
	if err := g.take(ctx); err != nil {
		return err
	}
	defer g.give()
	keys := g.finish(ErrReleased)
	if keys == nil {
		return g.Err()
	}
	return g.client.release(ctx, g.owner, keys)
}

func (g *Guard) take(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := g.Err(); err != nil {
		<-g.turn
		return err
	}
	return nil
}

func (g *Guard) give() { <-g.turn }

// finish ends the guard once. It returns what must be released, and nil if the guard had ended before.
func (g *Guard) finish(why error) []claimKey {
	var keys []claimKey
	g.ended1.Do(func() {
		keys = []claimKey{}
		g.mu.Lock()
		for _, claim := range g.claims {
			keys = append(keys, claim.claimKey)
		}
		g.claims, g.leases = nil, map[string]lease{}
		g.cancel(why)
		g.mu.Unlock()
		g.client.mu.Lock()
		if g.client.guards[g.owner] == g {
			delete(g.client.guards, g.owner)
		}
		g.client.mu.Unlock()
		poke(g.changed)
	})
	return keys
}

// end ends a guard whose acquire failed.
func (g *Guard) end(why error) {
	if keys := g.finish(why); len(keys) > 0 {
		g.releaseLater(keys)
	}
}

// lose ends the guard because a path is no longer held. What is left is released.
func (g *Guard) lose(path, why string) {
	if keys := g.finish(&LostError{Path: path, Why: why}); len(keys) > 0 {
		g.releaseLater(keys)
	}
}

func (g *Guard) ended() error {
	if g.ctx.Err() == nil {
		return nil
	}
	return context.Cause(g.ctx)
}

// withdrawLimit is how long a failed acquire waits until its queue entry is cancelled.
const withdrawLimit = 500 * time.Millisecond

// withdraw undoes an acquire that failed. Without an answer in time the release continues in the
// background, and the owner must not acquire again: that release could drop what it gets.
func (g *Guard) withdraw(keys []claimKey) {
	g.mu.Lock()
	keys = slices.DeleteFunc(keys, func(key claimKey) bool {
		return slices.ContainsFunc(g.claims, func(held *claim) bool { return held.claimKey == key })
	})
	g.mu.Unlock()
	answered := g.releaseLater(keys)
	timer := time.NewTimer(withdrawLimit)
	defer timer.Stop()
	isAnswered := false
	select {
	case err := <-answered:
		isAnswered = err == nil
	case <-timer.C:
	}
	if !isAnswered {
		g.mu.Lock()
		g.isSpoiled = true
		g.mu.Unlock()
	}
}

// releaseLater releases in the background, for one ttl at most: afterwards the lease has ended anyway.
func (g *Guard) releaseLater(keys []claimKey) <-chan error {
	answered := make(chan error, 1)
	if len(keys) == 0 {
		answered <- nil
		return answered
	}
	g.client.releases.Add(1)
	go func() {
		defer g.client.releases.Done()
		ctx, cancel := context.WithTimeout(context.Background(), max(min(g.ttl, callTimeout), time.Second))
		defer cancel()
		answered <- g.client.release(ctx, g.owner, keys)
	}()
	return answered
}

// release drops holds and queue entries under one key: R97 (Release), R99 (it cancels a queue entry).
func (c *Client) release(ctx context.Context, owner string, keys []claimKey) error {
	request := &pb.ReleaseLocksRequest{OwnerId: owner, IdempotencyKey: newKey()}
	for _, key := range keys {
		request.Requests = append(request.Requests, &pb.ReleaseRequest{Path: key.path, Mode: key.mode})
	}
	tries := 0
	err := c.repeat(ctx, eachTry, func(ctx context.Context, l *link) error {
		tries++
		_, err := l.exchange(ctx, &pb.SessionRequest{Op: &pb.SessionRequest_Release{Release: request}})
		if errors.Is(err, errRetryWithoutKey) && tries == 1 {
			bare := &pb.ReleaseLocksRequest{OwnerId: owner, Requests: request.Requests}
			_, err = l.exchange(ctx, &pb.SessionRequest{Op: &pb.SessionRequest_Release{Release: bare}})
			if err != nil {
				err = errors.New(err.Error())
			}
		}
		return err
	})
	if err != nil && mayPass(err) {
		return &UnreachableError{Last: err}
	}
	return typed(err)
}

// hold records a grant. The first one starts the renewals.
func (g *Guard) hold(paths []string, mode pb.Mode, answer *pb.AcquireResponse, held lease) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil {
		// The guard was lost while the answer was on its way; its path is released by the caller.
		go g.releaseLater(claimsOf(paths, mode))
		return context.Cause(g.ctx)
	}
	for _, key := range claimsOf(paths, mode) {
		g.claims = append(g.claims, &claim{claimKey: key, namespace: answer.Namespace, fence: answer.FencingToken, acquired: held.sent})
	}
	if g.fence == 0 {
		g.fence = answer.FencingToken
	}
	if held.sent > g.leases[answer.Namespace].sent {
		g.leases[answer.Namespace] = held
	}
	if !g.isKept {
		g.isKept = true
		go g.keep()
	}
	poke(g.changed)
	return nil
}

func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

func (g *Guard) beginWait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.granted, g.again = map[string]bool{}, false
}

// takeNews returns whether the waiting request must be sent again.
func (g *Guard) takeNews(namespace string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	// The answer QUEUED has no namespace, so any grant counts. A request too many does no harm.
	isNews := g.again || g.granted[namespace] || len(g.granted) > 0
	g.granted, g.again = map[string]bool{}, false
	return isNews
}

// hear handles an event of the owner.
func (g *Guard) hear(event *pb.Event) {
	switch event.Type {
	case pb.EventType_EVENT_TYPE_GRANT:
		g.mu.Lock()
		g.granted[event.Namespace] = true
		g.mu.Unlock()
		poke(g.wake)
	case pb.EventType_EVENT_TYPE_REVOKE:
		g.asked1.Do(func() { close(g.asked) })
	case pb.EventType_EVENT_TYPE_KILLED:
		if event.Namespace == "" {
			// The event precedes the end of the holds, so the daemon's list may still have them.
			g.lose("", "an operator ended it")
			return
		}
		g.mu.Lock()
		g.again = true
		g.mu.Unlock()
		poke(g.wake)
		go g.compare(boottime())
	}
}

func (g *Guard) linkBroke() {
	g.mu.Lock()
	g.again, g.renewNow, g.compareNow = true, true, true
	g.mu.Unlock()
	poke(g.wake)
	poke(g.changed)
}

// eachTry is the limit of one try, so that several fit into a lease.
func (g *Guard) eachTry() time.Duration {
	return min(max(g.ttl/6, 250*time.Millisecond), 4*time.Second)
}

func (g *Guard) dropEmptyLeases() {
	for namespace := range g.leases {
		if !slices.ContainsFunc(g.claims, func(held *claim) bool { return held.namespace == namespace }) {
			delete(g.leases, namespace)
		}
	}
}

// plan returns what to renew, when, and until when the present leases are good.
func (g *Guard) plan() (namespaces []string, renewAt, inDanger, safeUntil time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for namespace, lease := range g.leases {
		if namespaces == nil || lease.renewAt() < renewAt {
			renewAt, inDanger = lease.renewAt(), lease.inDanger()
		}
		if namespaces == nil || lease.safeUntil() < safeUntil {
			safeUntil = lease.safeUntil()
		}
		namespaces = append(namespaces, namespace)
	}
	if g.renewNow {
		renewAt = 0
	}
	slices.Sort(namespaces)
	return
}

// keep renews the leases until the guard ends. A lease that was not confirmed for four fifths of its
// length is lost.
func (g *Guard) keep() {
	first := min(max(g.ttl/50, 5*time.Millisecond), 200*time.Millisecond)
	retry := backoff{next: first, longest: max(g.ttl/10, first)}
	for g.ctx.Err() == nil {
		namespaces, renewAt, inDanger, safeUntil := g.plan()
		if namespaces == nil {
			// Nothing is held at the moment: Remove took the last path.
			select {
			case <-g.changed:
			case <-g.ctx.Done():
			}
			continue
		}
		now := boottime()
		if now >= safeUntil {
			g.lose("", "no renewal was confirmed in time")
			return
		}
		if now < renewAt {
			sleepUntil(min(renewAt, safeUntil), g.changed, g.ctx.Done())
			continue
		}
		var err error
		answered := make(chan struct{})
		go func() {
			err = g.renew(namespaces)
			close(answered)
		}()
		// Out of time: the next iteration finds the used-up lease.
		if sleepUntil(safeUntil, answered, g.ctx.Done()) {
			continue
		}
		if g.ctx.Err() != nil {
			return
		}
		<-answered
		if err == nil {
			retry = backoff{next: first, longest: retry.longest}
			g.mu.Lock()
			compare := g.compareNow
			g.compareNow = false
			g.mu.Unlock()
			if compare {
				go g.compare(boottime())
			}
			continue
		}
		if boottime() > inDanger {
			g.client.leave(g.eachTry())
		}
		sleepUntil(min(boottime()+retry.delay(), safeUntil), nil, g.ctx.Done())
	}
}

// leave closes the present connection because a lease is in danger, if there is another node.
func (c *Client) leave(age time.Duration) {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil && len(c.nodes) > 1 && boottime()-l.opened > age {
		l.close(errors.New("a lease could not be renewed"))
	}
}

// renew renews all namespaces with one call. Without a key: a repeat only extends the lease.
func (g *Guard) renew(namespaces []string) error {
	ctx, cancel := context.WithTimeout(g.ctx, g.eachTry())
	defer cancel()
	request := &pb.RenewRequest{OwnerId: g.owner, TtlMs: uint64(g.ttl.Milliseconds()), Domains: namespaces}
	// Taken before the request is handed to the transport: the lease counts from here.
	sent := boottime()
	var answer *pb.RenewResponse
	err := g.client.once(ctx, g.eachTry(), func(ctx context.Context, l *link) error {
		response, err := l.exchange(ctx, &pb.SessionRequest{Op: &pb.SessionRequest_Renew{Renew: request}})
		if err == nil {
			answer = response.GetRenew()
		}
		return err
	})
	if err != nil {
		return err
	}
	if answer == nil {
		return errors.New("the node gave an answer of another kind")
	}
	if answer.Status == pb.RenewStatus_RENEW_STATUS_OK {
		g.mu.Lock()
		g.renewNow = false
		for _, namespace := range namespaces {
			if old, has := g.leases[namespace]; has && old.sent < sent {
				g.leases[namespace] = lease{sent: sent, ttl: g.ttl}
			}
		}
		g.mu.Unlock()
		if answer.RevokeRequested {
			g.asked1.Do(func() { close(g.asked) })
		}
		return nil
	}
	// LOST says nothing of what was acquired or removed after the renewal was sent: the list decides.
	if err := g.compareOnce(sent); err != nil {
		return err
	}
	return errors.New("a lease has changed during its renewal")
}

// compare looks for lost paths until the daemon answers. Without an answer nothing is lost: the lease
// limits the holds.
func (g *Guard) compare(before time.Duration) {
	for g.ctx.Err() == nil {
		if g.compareOnce(before) == nil {
			return
		}
		_ = sleep(g.ctx, g.ttl/10)
	}
}

// compareOnce loses the guard if a path that was acquired before is held here and not on the daemon.
func (g *Guard) compareOnce(before time.Duration) error {
	g.mu.Lock()
	var concerned []*claim
	for _, claim := range g.claims {
		if claim.acquired <= before {
			concerned = append(concerned, claim)
		}
	}
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(g.ctx, g.eachTry())
	defer cancel()
	listed, err := g.client.ListOwnerLocks(ctx, &pb.ListOwnerLocksRequest{OwnerId: g.owner, ReadTree: true})
	if err != nil {
		return err
	}
	for _, claim := range concerned {
		g.mu.Lock()
		isHeld := slices.Contains(g.claims, claim)
		g.mu.Unlock()
		if isHeld && !isListed(claim, listed.Locks) {
			g.lose(claim.path, "the daemon ended it")
			return nil
		}
	}
	return nil
}

func isListed(held *claim, locks []*pb.OwnedLock) bool {
	return slices.ContainsFunc(locks, func(lock *pb.OwnedLock) bool {
		return lock.Path == held.path && lock.Mode == held.mode
	})
}
