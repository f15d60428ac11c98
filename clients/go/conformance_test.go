package tenure_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	tenure "tenure.example/tenure"
	"tenure.example/tenure/internal/daemontest"
	pb "tenure.example/tenure/pathlockdv1"
)

// TestMain is also a client process of the conformance cases: conformance/README.md describes its lines.
func TestMain(m *testing.M) {
	if os.Getenv("TENURE_CONFORMANCE_CLIENT") == "" {
		os.Exit(m.Run())
	}
	client, err := tenure.New(os.Getenv("TENURE_URL"))
	if err != nil {
		panic(err)
	}
	process := &conformanceClient{client: client, held: map[string]*tenure.Guard{}}
	lines, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var request conformanceRequest
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			panic(err)
		}
		if err := answers.Encode(process.answer(&request)); err != nil {
			panic(err)
		}
	}
}

type conformanceRequest struct {
	Op      string `json:"op"`
	Address string `json:"address"`
	Mode    string `json:"mode,omitempty"`
	WaitMs  *int64 `json:"wait_ms,omitempty"`
	TTLMs   int64  `json:"ttl_ms,omitempty"`
	Ask     bool   `json:"ask,omitempty"`
}

type conformanceAnswer map[string]any

type conformanceClient struct {
	client *tenure.Client
	held   map[string]*tenure.Guard
}

func (c *conformanceClient) answer(request *conformanceRequest) conformanceAnswer {
	answer, err := c.do(request)
	if err == nil {
		return answer
	}
	name := "error"
	var (
		timedOut    *tenure.TimedOutError
		busy        *tenure.BusyError
		lost        *tenure.LostError
		denied      *tenure.DeniedError
		unreachable *tenure.UnreachableError
	)
	switch {
	case errors.As(err, &timedOut):
		name = "timed-out"
	case errors.As(err, &busy):
		name = "busy"
	case errors.As(err, &lost):
		name = "lost"
	case errors.As(err, &denied):
		name = "denied"
	case errors.As(err, &unreachable):
		name = "unavailable"
	}
	return conformanceAnswer{"result": name, "message": err.Error()}
}

func (c *conformanceClient) do(request *conformanceRequest) (conformanceAnswer, error) {
	ctx := context.Background()
	guard := c.held[request.Address]
	switch request.Op {
	case "lock":
		var options []tenure.LockOption
		if request.Mode == "shared" {
			options = append(options, tenure.Shared())
		}
		if request.WaitMs != nil {
			options = append(options, tenure.Wait(time.Duration(*request.WaitMs)*time.Millisecond))
		}
		if request.TTLMs > 0 {
			options = append(options, tenure.TTL(time.Duration(request.TTLMs)*time.Millisecond))
		}
		if request.Ask {
			options = append(options, tenure.AskHolders())
		}
		guard, err := c.client.Lock(ctx, request.Address, options...)
		if err != nil {
			return nil, err
		}
		c.held[request.Address] = guard
		return conformanceAnswer{"result": "held", "fence": guard.Fence()}, nil
	case "release":
		delete(c.held, request.Address)
		return conformanceAnswer{"result": "released"}, guard.Release(ctx)
	case "check":
		return conformanceAnswer{"result": "held"}, guard.Check(ctx)
	case "lost":
		<-guard.Context().Done()
		return nil, guard.Err()
	case "requested":
		<-guard.ReleaseRequested()
		return conformanceAnswer{"result": "requested"}, nil
	}
	explained, err := c.client.Explain(ctx, &pb.ExplainRequest{Path: request.Address, OwnerId: "?"})
	if err != nil {
		return nil, err
	}
	for _, found := range explained.Blockers {
		holder := found.Blocker
		switch request.Op {
		case "ask":
			_, err = c.client.RequestRevoke(ctx, &pb.RequestRevokeRequest{OwnerId: holder.Owner})
		case "break":
			_, err = c.client.Break(ctx, &pb.BreakRequest{Path: holder.Path, OwnerId: holder.Owner, Fence: holder.Fence, Reason: "conformance", Actor: "test"})
		default:
			err = fmt.Errorf("unknown op %q", request.Op)
		}
		if err != nil {
			return nil, err
		}
	}
	if request.Op == "break" {
		return conformanceAnswer{"result": "broken"}, nil
	}
	return conformanceAnswer{"result": "asked", "asked": len(explained.Blockers)}, nil
}

type conformanceCase struct {
	Name     string            `json:"name"`
	Backends []string          `json:"backends"`
	Steps    []conformanceStep `json:"steps"`
}

type conformanceStep struct {
	conformanceRequest
	Client     string         `json:"client"`
	Path       string         `json:"path"`
	Begin      bool           `json:"begin"`
	Save       string         `json:"save"`
	FenceAbove string         `json:"fence_above"`
	Expect     map[string]any `json:"expect"`
}

type conformanceProcess struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	answers *json.Decoder
}

func startClient(t *testing.T, url string) *conformanceProcess {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), "TENURE_CONFORMANCE_CLIENT=1", "TENURE_URL="+url)
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return &conformanceProcess{command, stdin, json.NewDecoder(stdout)}
}

// The cases that every client of Tenure passes.
func TestConformance(t *testing.T) {
	files, err := filepath.Glob("../../conformance/*.json")
	if err != nil || len(files) < 10 {
		t.Fatal(len(files), err)
	}
	daemon := daemontest.Start(t)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var given conformanceCase
		if err := json.Unmarshal(content, &given); err != nil {
			t.Fatal(file, err)
		}
		if !slices.Contains(given.Backends, "daemon") {
			continue
		}
		t.Run(given.Name, func(t *testing.T) { runCase(t, &given, daemontest.URL(daemon)) })
	}
}

func runCase(t *testing.T, given *conformanceCase, url string) {
	processes := map[string]*conformanceProcess{}
	fences := map[string]float64{}
	prefix := fmt.Sprintf("conf:/go-%d-%s/", time.Now().UnixNano(), given.Name)
	for at, step := range given.Steps {
		process := processes[step.Client]
		if process == nil {
			process = startClient(t, url)
			processes[step.Client] = process
			// A wait that never ends is a failure: the end of the process ends it.
			stop := time.AfterFunc(time.Minute, func() { _ = process.command.Process.Kill() })
			defer stop.Stop()
		}
		step.Address = prefix + step.Path
		answer := map[string]any{}
		switch step.Op {
		case "crash":
			_ = process.command.Process.Kill()
			_ = process.command.Wait()
			delete(processes, step.Client)
			answer["result"] = "crashed"
		case "pause":
			_ = process.command.Process.Signal(syscall.SIGSTOP)
			answer["result"] = "paused"
		case "resume":
			_ = process.command.Process.Signal(syscall.SIGCONT)
			answer["result"] = "resumed"
		default:
			if step.Op != "join" {
				line, err := json.Marshal(step.conformanceRequest)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := process.stdin.Write(append(line, '\n')); err != nil {
					t.Fatal(err)
				}
			}
			if step.Begin {
				continue
			}
			if err := process.answers.Decode(&answer); err != nil {
				t.Fatalf("step %d, %s: %v", at, step.Op, err)
			}
		}
		for name, expected := range step.Expect {
			if answer[name] != expected {
				t.Fatalf("step %d, %s of %s: %v, expected %v", at, step.Op, step.Client, answer, step.Expect)
			}
		}
		fence, _ := answer["fence"].(float64)
		if step.FenceAbove != "" && fence <= fences[step.FenceAbove] {
			t.Fatalf("step %d: fence %v is not above %v", at, fence, fences[step.FenceAbove])
		}
		if step.Save != "" {
			fences[step.Save] = fence
		}
	}
}
