// Package daemontest runs real daemons for tests.
package daemontest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"tenure.example/tenure/clusterv1"
)

// Daemon is a running `tenure serve`.
type Daemon struct {
	// GRPC and Web are addresses, Gossip too if the daemon has peers.
	GRPC, Web, Gossip string
	Data              string
	cmd               *exec.Cmd
	ended             chan struct{}
	environment       []string
}

// Binary returns the command under test: $TENURE_BIN, or what cargo has built in this repository.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("TENURE_BIN"); path != "" {
		return path
	}
	_, here, _, _ := runtime.Caller(0)
	target := os.Getenv("CARGO_TARGET_DIR")
	if target == "" {
		target = filepath.Join(filepath.Dir(here), "../../../../target")
	}
	path := filepath.Join(target, "debug/tenure")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("there is no daemon to test with: run `cargo build -p tenure-cli` or set TENURE_BIN (%v)", err)
	}
	return path
}

// Start starts a daemon on free ports; it ends with the test.
func Start(t testing.TB, environment ...string) *Daemon {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	base := []string{
		"TENURE_DATA_DIR=" + data, "TENURE_LISTEN=" + FreeAddress(t), "TENURE_WEB_LISTEN=127.0.0.1:0",
		"TENURE_H3_LISTEN=127.0.0.1:0", "TENURE_GROUP_COUNT=4",
	}
	d := &Daemon{Data: data, environment: append(base, environment...)}
	d.Restart(t)
	t.Cleanup(d.Kill)
	return d
}

var addresses = regexp.MustCompile(`(grpc|web|gossip) ([^,\s]+)`)

// Restart starts the process again, on the same data and the same gRPC address.
func (d *Daemon) Restart(t testing.TB) {
	t.Helper()
	cmd := exec.Command(Binary(t), "serve")
	cmd.Env = append(os.Environ(), d.environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Pdeathsig is the end of the starting thread, so that thread must stay.
	runtime.LockOSThread()
	err = cmd.Start()
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		var said strings.Builder
		lines := bufio.NewScanner(stderr)
		isReady := false
		for lines.Scan() {
			if !isReady && strings.Contains(lines.Text(), "ready") {
				isReady = true
				ready <- lines.Text()
			}
			fmt.Fprintln(&said, lines.Text())
		}
		_ = cmd.Wait()
		close(ended)
		if !isReady {
			ready <- "ended: " + said.String()
		}
	}()
	select {
	case line := <-ready:
		if strings.HasPrefix(line, "ended") {
			t.Fatalf("the daemon is not ready: %s", line)
		}
		for _, match := range addresses.FindAllStringSubmatch(line, -1) {
			switch match[1] {
			case "grpc":
				d.GRPC = match[2]
			case "web":
				d.Web = match[2]
			case "gossip":
				d.Gossip = match[2]
			}
		}
	case <-time.After(60 * time.Second):
		t.Fatal("the daemon is not ready after a minute")
	}
	d.cmd, d.ended = cmd, ended
}

// Kill sends SIGKILL and waits for the end.
func (d *Daemon) Kill() { d.signal(syscall.SIGKILL, true) }

// Terminate sends SIGTERM and waits for the end.
func (d *Daemon) Terminate() { d.signal(syscall.SIGTERM, true) }

// Stop sends SIGSTOP: the node is there and does not answer.
func (d *Daemon) Stop() { d.signal(syscall.SIGSTOP, false) }

// Continue ends a Stop.
func (d *Daemon) Continue() { d.signal(syscall.SIGCONT, false) }

func (d *Daemon) signal(signal syscall.Signal, wait bool) {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(signal)
	if wait {
		<-d.ended
		d.cmd = nil
	}
}

// Cluster starts a cluster of n nodes.
func Cluster(t testing.TB, n int) []*Daemon {
	t.Helper()
	var nodes []*Daemon
	for at := range n {
		listen := FreeAddress(t)
		environment := []string{
			fmt.Sprintf("TENURE_NODE_ID=node-%d", at), "TENURE_LISTEN=" + listen, "TENURE_PUBLIC_ADDR=http://" + listen,
			"TENURE_INTERNAL_AUTH_TOKEN=0123456789abcdef0123456789abcdef",
			"TENURE_RAFT_ADDR=http://" + FreeAddress(t), "TENURE_GOSSIP_ADDR=" + FreeAddress(t),
			"TENURE_STABILITY_WINDOW_SECS=0", "TENURE_LEADER_BALANCE_INTERVAL_SECS=1",
			"TENURE_MAX_CONCURRENT_RECONCILES=64", "TENURE_GOSSIP_SEED_ANNOUNCE_INTERVAL_MS=200",
		}
		if at == 0 {
			environment = append(environment, "TENURE_BOOTSTRAP=true")
		} else {
			environment = append(environment, "TENURE_SEED_NODES="+nodes[0].Gossip)
		}
		nodes = append(nodes, Start(t, environment...))
	}
	Settle(t, nodes...)
	return nodes
}

// Settle waits until every group has a leader and a voter on each of the nodes.
func Settle(t testing.TB, nodes ...*Daemon) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+nodes[0].GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	last := ""
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		status, err := clusterv1.NewClusterClient(conn).Status(ctx, &clusterv1.StatusRequest{})
		cancel()
		if err != nil {
			last = err.Error()
			continue
		}
		last = status.String()
		isSettled := status.Healthy && len(status.Groups) > 0
		for _, group := range status.Groups {
			isSettled = isSettled && len(group.Voters) == len(nodes) && group.Leader != 0 && !group.Changing
		}
		if isSettled {
			return
		}
	}
	t.Fatalf("the cluster does not settle: %s", last)
}

// URL lists the nodes.
func URL(nodes ...*Daemon) string {
	var all []string
	for _, node := range nodes {
		all = append(all, node.GRPC)
	}
	return "tenure://" + strings.Join(all, ",")
}

// FreeAddress returns an address on which no process listens now.
func FreeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
