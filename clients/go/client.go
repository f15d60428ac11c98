// Package tenure is a client of the Tenure daemon: locks with leases, fences, fair queues and release
// requests.
//
//	client, err := tenure.New("tenure://10.0.0.1:50051,10.0.0.2:50051,10.0.0.3:50051")
//	guard, err := client.Lock(ctx, "vol:/a/b", tenure.Wait(30*time.Second))
//	defer guard.Release(context.Background())
//	err = work(guard.Context(), guard.Fence())
//
// The guard's context is cancelled when the lock is lost. A Client also has every call of the daemon's
// protocol, with failover over its nodes and with idempotency keys: Acquire, Explain, DumpLocks, …
package tenure

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "tenure.example/tenure/pathlockdv1"
)

const (
	defaultPort = "50051"
	// callTimeout limits the retries of a call whose context has no deadline.
	callTimeout = 10 * time.Second
	// eachTry limits one try, unless a lease sets another limit.
	eachTry = 4 * time.Second
	// stagger is when the next node is tried while the connection to the one before is pending.
	stagger      = 200 * time.Millisecond
	connectLimit = 4 * time.Second
	firstPause   = 20 * time.Millisecond
	longestPause = 500 * time.Millisecond
	// rememberFailure is how long a failed node comes after the others.
	rememberFailure = time.Minute
	longestAnswer   = 256 << 20
)

// Client is a client of the nodes of one cluster. It connects at its first call, and to another node when
// its node fails. It is safe for concurrent use.
//
// The embedded interface has one call per RPC of the protocol. These calls are repeated on another node
// after a failure; a call with an effect gets an idempotency key, so that a repeat has no second effect.
type Client struct {
	pb.PathLockClient

	nodes []*node
	// releases counts the releases that run in the background.
	releases sync.WaitGroup

	mu     sync.Mutex
	link   *link
	search *search
	guards map[string]*Guard
	closed bool
}

type node struct {
	address string
	conn    *grpc.ClientConn
	failed  time.Time
}

// search is a running search for a node; its result goes to all callers.
type search struct {
	done chan struct{}
	link *link
	err  error
}

// Option configures a client.
type Option func(*settings)

type settings struct {
	token     string
	tls       *tls.Config
	plaintext bool
	dial      []grpc.DialOption
}

// WithToken sends an API key or the daemon's client token with every call.
func WithToken(token string) Option { return func(s *settings) { s.token = token } }

// WithTLS connects with TLS. nil means the system's certificate authorities.
func WithTLS(config *tls.Config) Option {
	return func(s *settings) {
		if config == nil {
			config = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		s.tls = config
	}
}

// AllowPlaintextToken permits a token on a connection to another machine without TLS.
func AllowPlaintextToken() Option { return func(s *settings) { s.plaintext = true } }

// WithDialOptions adds options of grpc-go, for example a dialer.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

// New returns a client of a list of nodes: "host:port,host:port", optionally after tenure://, http://,
// https:// or tenure+tls://. The last two connect with TLS.
func New(url string, options ...Option) (*Client, error) {
	var s settings
	for _, option := range options {
		option(&s)
	}
	c := &Client{guards: map[string]*Guard{}}
	c.PathLockClient = pb.NewPathLockClient(c)
	withTLS := s.tls != nil
	for _, text := range strings.Split(url, ",") {
		text = strings.TrimSpace(text)
		for scheme, isTLS := range map[string]bool{"tenure://": false, "http://": false, "https://": true, "tenure+tls://": true} {
			if rest, found := strings.CutPrefix(text, scheme); found {
				text, withTLS = rest, isTLS || s.tls != nil
			}
		}
		address, err := withPort(strings.TrimSuffix(text, "/"))
		if err != nil {
			return nil, err
		}
		if s.token != "" && !withTLS && !s.plaintext && !isLoopback(address) {
			return nil, fmt.Errorf("%s is another machine, and the token would be sent to it without encryption: write tenure+tls://%s, or pass AllowPlaintextToken", address, address)
		}
		conn, err := grpc.NewClient("passthrough:///"+address, dialOptions(&s, withTLS)...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", address, err)
		}
		c.nodes = append(c.nodes, &node{address: address, conn: conn})
	}
	return c, nil
}

func dialOptions(s *settings, withTLS bool) []grpc.DialOption {
	transport := insecure.NewCredentials()
	if withTLS {
		config := s.tls
		if config == nil {
			config = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		transport = credentials.NewTLS(config)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDisableServiceConfig(),
		// The client chooses nodes and pauses itself: a connection must be retried soon.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(longestAnswer)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
	}
	if s.token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer{token: s.token}))
	}
	return append(options, s.dial...)
}

// bearer sends the token. New refuses the nodes for which it would leave the machine in clear.
type bearer struct{ token string }

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}
func (b bearer) RequireTransportSecurity() bool { return false }

func withPort(text string) (string, error) {
	if text == "" || strings.ContainsAny(text, "/@?# ") {
		return "", fmt.Errorf("%q names no host: write host:port", text)
	}
	if _, _, err := net.SplitHostPort(text); err == nil {
		return text, nil
	}
	return net.JoinHostPort(strings.Trim(text, "[]"), defaultPort), nil
}

func isLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// Close ends the connections. Guards that are still held are lost, and released on the daemon.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	guards := make([]*Guard, 0, len(c.guards))
	for _, guard := range c.guards {
		guards = append(guards, guard)
	}
	c.mu.Unlock()
	for _, guard := range guards {
		guard.lose("", "its client was closed")
	}
	c.releases.Wait()
	c.mu.Lock()
	c.closed = true
	link := c.link
	c.link = nil
	c.mu.Unlock()
	if link != nil {
		link.close(ErrClosed)
	}
	var first error
	for _, node := range c.nodes {
		first = errors.Join(first, node.conn.Close())
	}
	return first
}

// newKey returns a random idempotency key.
func newKey() string {
	var bytes [16]byte
	_, _ = rand.Read(bytes[:])
	return hex.EncodeToString(bytes[:])
}

// backoff is exponential with jitter.
type backoff struct{ next, longest time.Duration }

func newBackoff() *backoff { return &backoff{next: firstPause, longest: longestPause} }

func (b *backoff) delay() time.Duration {
	delay := b.next/2 + time.Duration(mathrand.Int64N(int64(b.next)))
	b.next = min(b.next*2, b.longest)
	return delay
}

// connected returns the open connection, or searches for a node.
func (c *Client) connected(ctx context.Context) (*link, error) {
	c.mu.Lock()
	if c.link != nil && c.link.isOpen() {
		defer c.mu.Unlock()
		return c.link, nil
	}
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	found := c.search
	if found == nil {
		found = &search{done: make(chan struct{})}
		c.search = found
		go c.find(found)
	}
	c.mu.Unlock()
	select {
	case <-found.done:
		return found.link, found.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// find tries the nodes, the next one 200 ms after the one before. The first that opens a session serves.
func (c *Client) find(found *search) {
	ctx, cancel := context.WithTimeout(context.Background(), connectLimit)
	defer cancel()
	type opened struct {
		node *node
		link *link
		err  error
	}
	nodes := c.inOrder()
	results := make(chan opened, len(nodes))
	for at, node := range nodes {
		go func() {
			if sleep(ctx, time.Duration(at)*stagger) != nil {
				results <- opened{node, nil, ctx.Err()}
				return
			}
			link, err := openLink(ctx, c, node)
			results <- opened{node, link, err}
		}()
	}
	var troubles []error
	left := len(nodes)
	for ; left > 0 && found.link == nil; left-- {
		result := <-results
		if result.link != nil {
			found.link = result.link
			continue
		}
		c.markFailed(result.node)
		troubles = append(troubles, fmt.Errorf("%s: %w", result.node.address, result.err))
	}
	if left > 0 {
		go func() {
			for ; left > 0; left-- {
				if late := <-results; late.link != nil {
					late.link.close(errors.New("another node was faster"))
				}
			}
		}()
	}
	c.mu.Lock()
	c.search = nil
	if found.link == nil {
		found.err = refusedOrUnavailable(troubles)
	} else {
		c.link = found.link
	}
	isClosed := c.closed
	c.mu.Unlock()
	if isClosed && found.link != nil {
		found.link.close(ErrClosed)
	} else if found.link != nil {
		go found.link.heartbeat()
	}
	close(found.done)
}

// refusedOrUnavailable returns a refusal of the caller if there was one: it is not mended by a retry.
func refusedOrUnavailable(troubles []error) error {
	for _, trouble := range troubles {
		switch status.Code(trouble) {
		case codes.Unauthenticated, codes.PermissionDenied:
			return trouble
		}
	}
	return status.Error(codes.Unavailable, errors.Join(troubles...).Error())
}

// inOrder returns the nodes in random order, so that clients spread over them; those that failed lately
// come last.
func (c *Client) inOrder() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	var good, bad []*node
	for _, at := range mathrand.Perm(len(c.nodes)) {
		if node := c.nodes[at]; time.Since(node.failed) > rememberFailure {
			good = append(good, node)
		} else {
			bad = append(bad, node)
		}
	}
	return append(good, bad...)
}

func (c *Client) markFailed(node *node) {
	c.mu.Lock()
	node.failed = time.Now()
	c.mu.Unlock()
}

// broke is called once per connection that ended.
func (c *Client) broke(l *link) {
	c.mu.Lock()
	l.node.failed = time.Now()
	if c.link == l {
		c.link = nil
	}
	guards := make([]*Guard, 0, len(c.guards))
	for _, guard := range c.guards {
		guards = append(guards, guard)
	}
	c.mu.Unlock()
	for _, guard := range guards {
		guard.linkBroke()
	}
}

func (c *Client) guardOf(owner string) *Guard {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.guards[owner]
}

// beat is the interval between pings: several of them fit into the shortest lease.
func (c *Client) beat() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	beat := 5 * time.Second
	for _, guard := range c.guards {
		beat = min(beat, guard.ttl/6)
	}
	return max(beat, 250*time.Millisecond)
}

// doubt checks a node that could not do an operation, and leaves it if it cannot serve.
func (c *Client) doubt(l *link) {
	if len(c.nodes) < 2 || !l.doubted.CompareAndSwap(false, true) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		health, err := pb.NewPathLockClient(l.node.conn).Health(ctx, &pb.HealthRequest{})
		// A refusal of the caller is an answer.
		refused := status.Code(err) == codes.Unauthenticated || status.Code(err) == codes.PermissionDenied
		if !refused && (err != nil || !health.Ok) {
			l.close(errors.New("the node cannot serve"))
		}
		_ = sleep(context.Background(), time.Second)
		l.doubted.Store(false)
	}()
}

// repeat calls try on a connection until it succeeds, is refused, or the time is up.
func (c *Client) repeat(ctx context.Context, limit time.Duration, try func(context.Context, *link) error) error {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	pause := newBackoff()
	for {
		err := c.once(ctx, limit, try)
		if err == nil || !mayPass(err) {
			return err
		}
		if ctx.Err() != nil {
			return err
		}
		if sleep(ctx, pause.delay()) != nil {
			return err
		}
	}
}

// once makes one try, within the limit. This includes the time for a connection.
func (c *Client) once(ctx context.Context, limit time.Duration, try func(context.Context, *link) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	l, err := c.connected(ctx)
	if err != nil {
		return err
	}
	err = try(ctx, l)
	if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
		c.doubt(l)
	}
	return err
}

// repeatable lists the calls with an effect and without an idempotency key whose repeat has no second
// effect. Renew has a key, but a repeat only extends the lease, and a stored answer costs the daemon a
// log entry.
var repeatable = map[string]bool{
	pb.PathLock_Renew_FullMethodName:         true,
	pb.PathLock_RequestRevoke_FullMethodName: true,
}

// unrepeatable lists the calls with an effect that have no key and must not be repeated by themselves.
var unrepeatable = map[string]bool{
	pb.PathLock_Break_FullMethodName:    true,
	"/tenure.auth.v1.Auth/CreateKey":    true,
	"/tenure.auth.v1.Auth/ChangeTable":  true,
	"/tenure.cluster.v1.Cluster/Drain":  true,
	"/tenure.cluster.v1.Cluster/Remove": true,
}

// Invoke makes one call, with failover. It lets a Client carry any generated stub.
func (c *Client) Invoke(ctx context.Context, method string, args any, reply any, opts ...grpc.CallOption) error {
	if message, is := args.(proto.Message); is && !repeatable[method] {
		args = withKey(message)
	}
	try := func(ctx context.Context, l *link) error {
		return l.node.conn.Invoke(ctx, method, args, reply, opts...)
	}
	if !unrepeatable[method] {
		return typed(c.repeat(ctx, eachTry, try))
	}
	limit := callTimeout
	if deadline, has := ctx.Deadline(); has {
		limit = time.Until(deadline)
	}
	return typed(c.once(ctx, limit, try))
}

// withKey returns the message with an idempotency key, if it can have one and has none.
func withKey(message proto.Message) proto.Message {
	reflected := message.ProtoReflect()
	field := reflected.Descriptor().Fields().ByName("idempotency_key")
	if field == nil || reflected.Get(field).String() != "" {
		return message
	}
	copied := proto.Clone(message)
	copied.ProtoReflect().Set(field, protoreflect.ValueOfString(newKey()))
	return copied
}

// NewStream opens a stream on the present node. A stream is not repeated: it ends with its node.
func (c *Client) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	var stream grpc.ClientStream
	pause := newBackoff()
	until := time.Now().Add(callTimeout)
	for {
		l, err := c.connected(ctx)
		if err == nil {
			stream, err = l.node.conn.NewStream(ctx, desc, method, opts...)
		}
		if err == nil || !mayPass(err) || time.Now().After(until) || ctx.Err() != nil {
			return stream, typed(err)
		}
		if sleep(ctx, pause.delay()) != nil {
			return nil, err
		}
	}
}

var _ grpc.ClientConnInterface = (*Client)(nil)
