package tenure_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	tenure "tenure.example/tenure"
	"tenure.example/tenure/internal/daemontest"
	pb "tenure.example/tenure/pathlockdv1"
)

// limit is for one step, also on a busy machine.
const limit = 30 * time.Second

func newClient(t *testing.T, url string, options ...tenure.Option) *tenure.Client {
	t.Helper()
	client, err := tenure.New(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func lock(t *testing.T, client *tenure.Client, path string, options ...tenure.LockOption) *tenure.Guard {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	guard, err := client.Lock(ctx, path, options...)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return guard
}

func release(t *testing.T, guard *tenure.Guard) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := guard.Release(ctx); err != nil {
		t.Fatal(err)
	}
}

func within(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s: not within %v", what, limit)
	}
}

func TestOneHolderAtATime(t *testing.T) {
	daemon := daemontest.Start(t)
	client, other := newClient(t, daemontest.URL(daemon)), newClient(t, daemontest.URL(daemon))
	first := lock(t, client, "vol:/a/b", tenure.Purpose("resize"))
	if first.Fence() == 0 || first.Err() != nil || first.ValidFor() == 0 {
		t.Fatalf("fence %d, err %v, valid for %v", first.Fence(), first.Err(), first.ValidFor())
	}
	// A path above conflicts, a sibling does not.
	_, err := other.Lock(context.Background(), "vol:/a", tenure.NoWait())
	var busy *tenure.BusyError
	if !errors.As(err, &busy) || busy.Owner != first.Owner() || busy.Holder.GetPurpose() != "resize" {
		t.Fatalf("%v", err)
	}
	release(t, lock(t, other, "vol:/a/c", tenure.NoWait()))

	queued := make(chan struct{}, 1)
	got := make(chan *tenure.Guard)
	go func() {
		guard, err := other.Lock(context.Background(), "vol:/a/b", tenure.OnWait(func(*tenure.BusyError) {
			select {
			case queued <- struct{}{}:
			default:
			}
		}))
		if err != nil {
			t.Error(err)
		}
		got <- guard
	}()
	within(t, queued, "queued")
	release(t, first)
	second := <-got
	if second.Fence() <= first.Fence() {
		t.Fatalf("fence %d after %d", second.Fence(), first.Fence())
	}
	if !errors.Is(first.Err(), tenure.ErrReleased) {
		t.Fatalf("%v", first.Err())
	}
	if err := first.Release(context.Background()); !errors.Is(err, tenure.ErrReleased) {
		t.Fatalf("second release: %v", err)
	}
	release(t, second)
}

func TestAWaitEndsWithItsLimitAndLeavesNoQueueEntry(t *testing.T) {
	daemon := daemontest.Start(t)
	client := newClient(t, daemontest.URL(daemon))
	held := lock(t, client, "vol:/a")
	_, err := client.Lock(context.Background(), "vol:/a", tenure.Wait(300*time.Millisecond), tenure.OwnerID("late"))
	var timedOut *tenure.TimedOutError
	if !errors.As(err, &timedOut) || !errors.Is(err, context.DeadlineExceeded) || timedOut.Busy.Owner != held.Owner() {
		t.Fatalf("%v", err)
	}
	alive, err := client.IsOwnerAlive(context.Background(), &pb.IsOwnerAliveRequest{OwnerId: "late"})
	if err != nil || alive.Alive {
		t.Fatalf("the queue entry is still there: %v %v", alive, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err = client.Lock(ctx, "vol:/a", tenure.OnWait(func(*tenure.BusyError) { cancel() }))
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	release(t, held)
	release(t, lock(t, client, "vol:/a", tenure.NoWait()))
}

func TestSharedAndPermits(t *testing.T) {
	daemon := daemontest.Start(t)
	client := newClient(t, daemontest.URL(daemon))
	one, two := lock(t, client, "vol:/s", tenure.Shared()), lock(t, client, "vol:/s", tenure.Shared(), tenure.NoWait())
	if _, err := client.Lock(context.Background(), "vol:/s", tenure.NoWait()); err == nil {
		t.Fatal("a write beside reads")
	}
	release(t, one)
	release(t, two)
	_, err := client.SetNamespacePolicy(context.Background(), &pb.SetNamespacePolicyRequest{
		Namespace: "gpu:/pool", Algorithm: pb.LockAlgorithm_LOCK_ALGORITHM_SEMAPHORE})
	if err != nil {
		t.Fatal(err)
	}
	a, b := lock(t, client, "gpu:/pool/x", tenure.Permit(2)), lock(t, client, "gpu:/pool/x", tenure.Permit(2))
	if _, err := client.Lock(context.Background(), "gpu:/pool/x", tenure.Permit(2), tenure.NoWait()); err == nil {
		t.Fatal("three of two permits")
	}
	release(t, a)
	release(t, b)
	// `permits` is ignored outside of semaphores: a caller that wants one of five must not run alone.
	if _, err := client.Lock(context.Background(), "vol:/p", tenure.Permit(5)); err == nil {
		t.Fatal("a permit of no semaphore")
	}
	release(t, lock(t, client, "vol:/p", tenure.NoWait()))
}

func TestTheLeaseIsRenewedAndALostLockCancelsTheContext(t *testing.T) {
	daemon := daemontest.Start(t)
	client := newClient(t, daemontest.URL(daemon))
	ctx := context.Background()
	guard := lock(t, client, "vol:/a", tenure.TTL(time.Second))
	// Held over three leases.
	select {
	case <-guard.Context().Done():
		t.Fatal(guard.Err())
	case <-time.After(3 * time.Second):
	}
	if err := guard.Check(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ForceRelease(ctx, &pb.ForceReleaseRequest{VictimId: guard.Owner()}); err != nil {
		t.Fatal(err)
	}
	within(t, guard.Context().Done(), "lost")
	var lost *tenure.LostError
	if !errors.As(context.Cause(guard.Context()), &lost) {
		t.Fatalf("%v", guard.Err())
	}
	if err := guard.Release(ctx); !errors.As(err, &lost) {
		t.Fatalf("%v", err)
	}
	// Break ends one path; the guard is lost with it, and lets go of its other path.
	guard = lock(t, client, "vol:/a", tenure.TTL(10*time.Second))
	if err := guard.Add(ctx, "vol:/b"); err != nil {
		t.Fatal(err)
	}
	_, err := client.Break(ctx, &pb.BreakRequest{Path: "vol:/b", OwnerId: guard.Owner(), Fence: guard.FenceOf("vol:/b"), Reason: "test", Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	within(t, guard.Context().Done(), "lost")
	if !errors.As(guard.Err(), &lost) || lost.Path != "vol:/b" {
		t.Fatalf("%v", guard.Err())
	}
	release(t, lock(t, client, "vol:/a"))
}

func TestALeaseThatCannotBeRenewedIsLostBeforeTheDaemonEndsIt(t *testing.T) {
	daemon := daemontest.Start(t)
	client := newClient(t, daemontest.URL(daemon))
	ttl := 2 * time.Second
	guard := lock(t, client, "vol:/a", tenure.TTL(ttl))
	daemon.Stop()
	stopped := time.Now()
	within(t, guard.Context().Done(), "lost")
	var lost *tenure.LostError
	if !errors.As(guard.Err(), &lost) {
		t.Fatal(guard.Err())
	}
	// The last confirmed renewal was sent before the stop, so the lease may be used for 80 % of the ttl.
	if took := time.Since(stopped); took > ttl {
		t.Fatalf("lost %v after the daemon stopped", took)
	}
	daemon.Continue()
}

func TestAReleaseRequestReachesTheHolder(t *testing.T) {
	daemon := daemontest.Start(t)
	client, other := newClient(t, daemontest.URL(daemon)), newClient(t, daemontest.URL(daemon))
	guard := lock(t, client, "vol:/a")
	go func() {
		within(t, guard.ReleaseRequested(), "asked")
		_ = guard.Release(context.Background())
	}()
	release(t, lock(t, other, "vol:/a", tenure.AskHolders()))
}

func TestPathsAreAddedAndRemovedDuringALease(t *testing.T) {
	daemon := daemontest.Start(t)
	client, other := newClient(t, daemontest.URL(daemon)), newClient(t, daemontest.URL(daemon))
	ctx := context.Background()
	guard := lock(t, client, "vol:/a", tenure.TTL(2*time.Second))
	for _, path := range []string{"vol:/b", "cache:/c"} {
		if err := guard.Add(ctx, path); err != nil {
			t.Fatal(err)
		}
	}
	if got := guard.Paths(); !slices.Equal(got, []string{"vol:/a", "vol:/b", "cache:/c"}) {
		t.Fatalf("%v", got)
	}
	if err := guard.Check(ctx); err != nil {
		t.Fatal(err)
	}
	blocked := lock(t, other, "vol:/x")
	if err := guard.Add(ctx, "vol:/x", tenure.NoWait()); err == nil {
		t.Fatal("added what another client holds")
	}
	if err := guard.Add(ctx, "vol:/x", tenure.Wait(100*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	release(t, blocked)
	if err := guard.Add(ctx, "vol:/x"); err != nil {
		t.Fatal("an add after one that timed out:", err)
	}
	if err := guard.Remove(ctx, "vol:/b"); err != nil {
		t.Fatal(err)
	}
	if err := guard.Remove(ctx, "cache:/c"); err != nil {
		t.Fatal(err)
	}
	release(t, lock(t, other, "vol:/b", tenure.NoWait()))
	release(t, lock(t, other, "cache:/c", tenure.NoWait()))
	if _, err := other.Lock(ctx, "vol:/a", tenure.NoWait()); err == nil {
		t.Fatal("the rest was released too")
	}
	// The rest is renewed, without the removed namespace.
	select {
	case <-guard.Context().Done():
		t.Fatal(guard.Err())
	case <-time.After(3 * time.Second):
	}
	release(t, guard)
}

func TestPathsOfSeveralNamespacesTogether(t *testing.T) {
	daemon := daemontest.Start(t)
	client := newClient(t, daemontest.URL(daemon))
	ctx := context.Background()
	guard, err := client.LockAll(ctx, []string{"b:/1", "a:/1", "a:/2"})
	if err != nil {
		t.Fatal(err)
	}
	if len(guard.Paths()) != 3 {
		t.Fatalf("%v", guard.Paths())
	}
	if _, err := client.LockAll(ctx, []string{"a:/9", "b:/1"}, tenure.NoWait()); err == nil {
		t.Fatal("b:/1 twice")
	}
	release(t, lock(t, client, "a:/9", tenure.NoWait()))
	release(t, guard)
}

func TestAWaiterSurvivesARestartOfTheDaemon(t *testing.T) {
	daemon := daemontest.Start(t)
	client, other := newClient(t, daemontest.URL(daemon)), newClient(t, daemontest.URL(daemon))
	held := lock(t, client, "vol:/a")
	queued := make(chan struct{}, 8)
	got := make(chan *tenure.Guard)
	go func() {
		guard, err := other.Lock(context.Background(), "vol:/a", tenure.OnWait(func(*tenure.BusyError) { queued <- struct{}{} }))
		if err != nil {
			t.Error(err)
		}
		got <- guard
	}()
	within(t, queued, "queued")
	daemon.Kill()
	daemon.Restart(t)
	release(t, held)
	release(t, <-got)
}

func TestLocksSurviveTheLossOfANode(t *testing.T) {
	nodes := daemontest.Cluster(t, 3)
	client := newClient(t, daemontest.URL(nodes...))
	ctx := context.Background()
	guard := lock(t, client, "vol:/a", tenure.TTL(6*time.Second))
	counter := 0
	for round := range 2 {
		// A killed node, and one that is there and does not answer.
		if round == 0 {
			nodes[0].Kill()
		} else {
			nodes[1].Stop()
		}
		for range 5 {
			next := lock(t, client, "vol:/counter", tenure.TTL(6*time.Second))
			counter++
			release(t, next)
		}
		if round == 0 {
			nodes[0].Restart(t)
			// Each group must have a quorum without the next node.
			daemontest.Settle(t, nodes...)
		} else {
			nodes[1].Continue()
		}
	}
	if err := guard.Err(); err != nil {
		t.Fatalf("lost during the failover: %v", err)
	}
	if err := guard.Check(ctx); err != nil {
		t.Fatal(err)
	}
	release(t, guard)
	if counter != 10 {
		t.Fatal(counter)
	}
}

func TestTheTokenIsSentAndItsRefusalIsNamed(t *testing.T) {
	daemon := daemontest.Start(t, "TENURE_CLIENT_AUTH_TOKEN=secret-secret-secret-secret-secret")
	release(t, lock(t, newClient(t, daemontest.URL(daemon), tenure.WithToken("secret-secret-secret-secret-secret")), "vol:/a"))
	var denied *tenure.DeniedError
	for _, options := range [][]tenure.Option{nil, {tenure.WithToken("wrong")}} {
		_, err := newClient(t, daemontest.URL(daemon), options...).Lock(context.Background(), "vol:/a")
		if !errors.As(err, &denied) {
			t.Fatalf("%v", err)
		}
	}
	if _, err := tenure.New("tenure://10.0.0.1:50051", tenure.WithToken("secret")); err == nil {
		t.Fatal("a token would leave the machine in clear")
	}
	for _, bad := range []string{"", "a b", "x/y", "tenure://"} {
		if _, err := tenure.New(bad); err == nil {
			t.Fatalf("%q is no address", bad)
		}
	}
}

func TestAnUnreachableDaemonIsReported(t *testing.T) {
	client := newClient(t, "tenure://"+daemontest.FreeAddress(t))
	_, err := client.Lock(context.Background(), "vol:/a", tenure.Wait(200*time.Millisecond))
	var unreachable *tenure.UnreachableError
	if !errors.As(err, &unreachable) {
		t.Fatalf("%v", err)
	}
	_, err = client.Lock(context.Background(), "nonsense", tenure.NoWait())
	if status.Code(err) == codes.InvalidArgument {
		t.Fatal("no daemon could say this")
	}
}
