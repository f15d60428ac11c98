package tenure

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "tenure.example/tenure/pathlockdv1"
)

// link is one connection to one node: a session stream that carries operations and events.
//
// A call without an answer does not close it: the operation may wait for one group of the cluster, and the
// link serves all guards. The heartbeat leaves a node that does not answer.
type link struct {
	client *Client
	node   *node
	stream pb.PathLock_SessionClient
	cancel context.CancelFunc
	// sending serializes Send, which is not safe for concurrent use.
	sending chan struct{}
	doubted atomic.Bool
	done    chan struct{}
	opened  time.Duration

	mu      sync.Mutex
	next    uint64
	pending map[uint64]chan *pb.SessionResponse // nil after the link closed
	why     error
}

func openLink(ctx context.Context, c *Client, node *node) (*link, error) {
	streaming, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, cancel)
	stream, err := pb.NewPathLockClient(node.conn).Session(streaming)
	if err == nil {
		// The headers arrive when the node accepts the session. A refusal arrives without them.
		var header map[string][]string
		header, err = stream.Header()
		if err == nil && header == nil {
			_, err = stream.Recv()
		}
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	l := &link{
		client: c, node: node, stream: stream, cancel: cancel,
		sending: make(chan struct{}, 1), done: make(chan struct{}),
		pending: map[uint64]chan *pb.SessionResponse{}, opened: boottime(),
	}
	go l.read()
	return l, nil
}

func (l *link) isOpen() bool {
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}

func (l *link) read() {
	for {
		response, err := l.stream.Recv()
		if err != nil {
			l.close(err)
			return
		}
		if response.Id == 0 {
			event := response.GetEvent()
			if event == nil {
				l.close(errors.New("the node answered with id 0"))
				return
			}
			if guard := l.client.guardOf(event.OwnerId); guard != nil {
				guard.hear(event)
			}
			continue
		}
		l.mu.Lock()
		waiting := l.pending[response.Id]
		delete(l.pending, response.Id)
		l.mu.Unlock()
		if waiting != nil {
			waiting <- response
		}
	}
}

func (l *link) close(why error) {
	l.mu.Lock()
	if l.pending == nil {
		l.mu.Unlock()
		return
	}
	l.pending, l.why = nil, why
	l.mu.Unlock()
	l.cancel()
	close(l.done)
	l.client.broke(l)
}

// exchange sends a request and waits for its answer. A failure of the link is Unavailable.
func (l *link) exchange(ctx context.Context, request *pb.SessionRequest) (*pb.SessionResponse, error) {
	answer := make(chan *pb.SessionResponse, 1)
	l.mu.Lock()
	if l.pending == nil {
		defer l.mu.Unlock()
		return nil, status.Errorf(codes.Unavailable, "%s: %v", l.node.address, l.why)
	}
	l.next++
	request.Id = l.next
	l.pending[request.Id] = answer
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.pending, request.Id)
		l.mu.Unlock()
	}()
	select {
	case l.sending <- struct{}{}:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-l.done:
		return nil, status.Errorf(codes.Unavailable, "%s: the connection broke", l.node.address)
	}
	err := l.stream.Send(request)
	<-l.sending
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "%s: %v", l.node.address, err)
	}
	select {
	case response := <-answer:
		if failed := response.GetError(); failed != nil {
			return nil, sessionError(failed)
		}
		return response, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-l.done:
		return nil, status.Errorf(codes.Unavailable, "%s: the connection broke", l.node.address)
	}
}

// errRetryWithoutKey says that the daemon cannot remember more answers and would accept the request
// without its key: R102 (keyed requests apply once).
var errRetryWithoutKey = errors.New("the daemon cannot remember more answers")

func sessionError(failed *pb.SessionError) error {
	err := status.Error(codes.Code(failed.Code), failed.Message)
	if failed.Detail == pb.ErrorDetail_ERROR_DETAIL_RETRY_WITHOUT_KEY {
		return &keyRefused{err}
	}
	return err
}

// keyRefused is the refusal of a key. It keeps the status of the answer.
type keyRefused struct{ error }

func (e *keyRefused) Unwrap() []error            { return []error{e.error, errRetryWithoutKey} }
func (e *keyRefused) GRPCStatus() *status.Status { return status.Convert(e.error) }

// heartbeat pings the node until the link ends. A node that does not answer within the interval is left:
// with a sixth of the shortest ttl, this happens before the next renewal is due.
func (l *link) heartbeat() {
	for {
		beat := l.client.beat()
		ctx, cancel := context.WithTimeout(context.Background(), beat)
		select {
		case <-l.done:
			cancel()
			return
		case <-ctx.Done():
		}
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), beat)
		// A request without an operation is answered with an error: any answer will do.
		_, err := l.exchange(ctx, &pb.SessionRequest{})
		hasAnswered := ctx.Err() == nil || status.Code(err) != codes.DeadlineExceeded
		cancel()
		if !hasAnswered {
			l.close(errors.New("the node does not answer"))
			return
		}
	}
}
