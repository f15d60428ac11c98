//go:build linux

package exclusive_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"tenure.example/tenure/exclusive"
	"tenure.example/tenure/internal/daemontest"
	"tenure.example/tenure/internal/vectors"
)

// want is what the interop vectors expect of a file.
type want struct {
	class  exclusive.Class // empty: the lock is removed and the server proceeds
	holder string
	word   string // "malformed" or "invalid"
}

var (
	heldByImport = want{class: exclusive.Held, holder: "night-import"}
	foreign      = want{class: exclusive.Foreign, holder: "night-import"}
	reclaimed    = want{holder: "night-import"}
	malformed    = want{class: exclusive.Malformed, word: "malformed"}
	invalid      = want{class: exclusive.Malformed, word: "invalid"}
)

var table = map[string]want{
	"valid-alive.tmpl": heldByImport, "valid-compact.tmpl": heldByImport, "valid-no-version.tmpl": heldByImport,
	"valid-other-letter-case.tmpl": heldByImport, "valid-unknown-fields.tmpl": heldByImport, "valid-offset.tmpl": heldByImport,
	"future-2999.tmpl": heldByImport, "old-but-alive.tmpl": heldByImport, "alive-other-user.tmpl": heldByImport,
	"duplicate-fields.tmpl": {class: exclusive.Held, holder: "second"},
	"foreign-host.tmpl":     foreign, "dead-here-fqdn.tmpl": foreign,
	"dead-here.tmpl": reclaimed, "dead-here-upper-case-host.tmpl": reclaimed,
	"tenure-alive.tmpl": heldByImport, "tenure-dead.tmpl": reclaimed, "tenure-reused.tmpl": reclaimed,
	// Another boot id proves a restart only if the file is older than this boot, and this file is new.
	"tenure-other-boot.tmpl": foreign, "tenure-other-pidns.tmpl": foreign, "tenure-disagrees.tmpl": heldByImport,
	"empty.json": malformed, "truncated.json": malformed, "text.json": malformed, "array.json": malformed,
	"bom.tmpl": malformed, "trailing-text.tmpl": malformed,
	"null.json": invalid, "empty-object.json": invalid, "holder-empty.tmpl": invalid, "hostname-empty.tmpl": invalid,
	"pid-zero.tmpl": invalid, "pid-negative.tmpl": invalid, "started-missing.tmpl": invalid, "started-null.tmpl": invalid,
	"started-zero.tmpl": invalid, "pid-string.tmpl": malformed, "pid-fraction.tmpl": malformed, "pid-exponent.tmpl": malformed,
	"pid-over-64-bits.tmpl": malformed, "pid-over-32-bits.tmpl": malformed, "started-text.tmpl": malformed,
	"started-blank.tmpl": malformed, "started-lower-case.tmpl": malformed, "started-number.tmpl": malformed,
	"version-number.tmpl": malformed, "huge.tmpl": malformed,
	"holder-control.tmpl": {class: exclusive.Held, holder: "night\x1b[2J\n"},
}

func TestTheTableHasEveryVector(t *testing.T) {
	names := vectors.Names(t, "tenure-files", "exclusive")
	for _, name := range names {
		if _, has := table[name]; !has {
			t.Errorf("%s is not in the table", name)
		}
	}
	if len(names) != len(table) {
		t.Errorf("%d vectors, %d rows", len(names), len(table))
	}
}

// The server's answer and the tool's class are those of the vectors.
func TestVectors(t *testing.T) {
	machine := vectors.NewMachine(t)
	for name, want := range table {
		content := machine.Read(t, "tenure-files", "exclusive", name)
		dir := t.TempDir()
		path := filepath.Join(dir, ".exclusive-lock")
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		skip, holder, err := exclusive.ShouldSkipDatabase(dir)
		if skip != (want.class != "") || holder != want.holder {
			t.Errorf("%s: skip %v, holder %q, %v", name, skip, holder, err)
		}
		if (want.word != "") != (err != nil) || (err != nil && !strings.HasPrefix(err.Error(), want.word+" lock file: ")) {
			t.Errorf("%s: %v", name, err)
		}
		now, err := os.ReadFile(path)
		if want.class == "" {
			if !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is still there", name)
			}
			if err := os.WriteFile(path, content, 0o644); err != nil {
				t.Fatal(err)
			}
		} else if string(now) != string(content) {
			t.Errorf("%s was changed", name)
		}
		lock := newLock(t)
		err = lock.Acquire(context.Background(), dir)
		var failed *exclusive.Error
		switch {
		case want.class == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case want.class == "":
			if err := lock.Release(); err != nil {
				t.Error(err)
			}
		case !errors.As(err, &failed) || failed.Class != want.class:
			t.Errorf("%s: %v", name, err)
		}
	}
}

func newLock(t *testing.T) *exclusive.Lock {
	t.Helper()
	lock, err := exclusive.New("tester", "1.0")
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func classOf(err error) exclusive.Class {
	var failed *exclusive.Error
	if errors.As(err, &failed) {
		return failed.Class
	}
	return ""
}

// Things that are no record are never followed and never removed.
func TestWhatIsNoRecord(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"symlink":   func(path string) error { return os.Symlink("nowhere", path) },
		"fifo":      func(path string) error { return exec.Command("mkfifo", path).Run() },
	} {
		dir := t.TempDir()
		if err := make(filepath.Join(dir, ".exclusive-lock")); err != nil {
			t.Fatal(err)
		}
		if skip, _, err := exclusive.ShouldSkipDatabase(dir); !skip || classOf(err) != exclusive.NotALock {
			t.Errorf("%s: %v %v", name, skip, err)
		}
		if err := newLock(t).Acquire(context.Background(), dir); classOf(err) != exclusive.NotALock {
			t.Errorf("%s: %v", name, err)
		}
	}
	if skip, _, err := exclusive.ShouldSkipDatabase(filepath.Join(t.TempDir(), "missing")); skip || err != nil {
		t.Errorf("no directory: %v %v", skip, err)
	}
	if err := newLock(t).Acquire(context.Background(), filepath.Join(t.TempDir(), "missing")); classOf(err) != exclusive.NotFound {
		t.Error(err)
	}
	for _, bad := range []string{"", "a\nb", strings.Repeat("x", 201)} {
		if _, err := exclusive.New(bad, ""); classOf(err) != exclusive.BadInput {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// This package and the `tenure` command exclude each other, and each notices the other's death.
func TestWithTheCommand(t *testing.T) {
	dir := t.TempDir()
	binary := daemontest.Binary(t)
	lock := newLock(t)
	if err := lock.Acquire(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(binary, "run", "-n", "exclusive:"+dir, "--", "true").CombinedOutput(); exitCode(err) != 75 {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command(binary, "check", "exclusive:"+dir).CombinedOutput(); exitCode(err) != 75 || !strings.Contains(string(out), "tester") {
		t.Fatalf("%v: %s", err, out)
	}
	if err := newLock(t).Acquire(context.Background(), dir); classOf(err) != exclusive.Held {
		t.Fatal(err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(); classOf(err) != exclusive.NotHeld {
		t.Fatal(err)
	}
	command := exec.Command(binary, "run", "exclusive:"+dir, "--", "sh", "-c", "echo held; sleep 1000")
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if skip, holder, err := exclusive.ShouldSkipDatabase(dir); !skip || holder != "sh" || err != nil {
		t.Fatal(skip, holder, err)
	}
	waited := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		waited <- lock.AcquireWait(ctx, dir)
	}()
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait()
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// A lock that another program deletes or overwrites is noticed, and left alone.
func TestALostLockIsNoticed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ".exclusive-lock")
	lock := newLock(t)
	if err := lock.Acquire(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(`{"holder":"other"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lock.Context().Done():
	case <-time.After(30 * time.Second):
		t.Fatal("not noticed")
	}
	if cause := context.Cause(lock.Context()); classOf(cause) != exclusive.Compromised {
		t.Fatal(cause)
	}
	if err := lock.Release(); classOf(err) != exclusive.Compromised {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != `{"holder":"other"}` {
		t.Fatal(string(now), err)
	}
}

// A tool waits for the cycle that began before its lock was there; a later cycle is skipped.
func TestAToolWaitsForRunningCycles(t *testing.T) {
	dir := t.TempDir()
	cycle, _, err := exclusive.BeginCycle(dir)
	if err != nil || cycle == nil {
		t.Fatal(cycle, err)
	}
	lock := newLock(t)
	acquired := make(chan error, 1)
	go func() { acquired <- lock.Acquire(context.Background(), dir) }()
	for {
		if _, err := os.Stat(filepath.Join(dir, ".exclusive-lock")); err == nil {
			break
		}
		runtime.Gosched()
	}
	select {
	case err := <-acquired:
		t.Fatal("it did not wait:", err)
	default:
	}
	cycle.End()
	if err := <-acquired; err != nil {
		t.Fatal(err)
	}
	if cycle, holder, err := exclusive.BeginCycle(dir); cycle != nil || holder != "tester" || err != nil {
		t.Fatal(cycle, holder, err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	// A cycle that does not end: the lock is given back.
	cycle, _, _ = exclusive.BeginCycle(dir)
	defer cycle.End()
	lock.Quiesce = 50 * time.Millisecond
	if err := lock.Acquire(context.Background(), dir); classOf(err) != exclusive.Timeout {
		t.Fatal(err)
	}
	if skip, _, _ := exclusive.ShouldSkipDatabase(dir); skip {
		t.Fatal("the lock is still there")
	}
}

func TestIsProcessAlive(t *testing.T) {
	host, _ := os.Hostname()
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	cases := []bool{
		exclusive.IsProcessAlive(os.Getpid(), host),
		exclusive.IsProcessAlive(os.Getpid(), strings.ToUpper(host)),
		exclusive.IsProcessAlive(dead.Process.Pid, "another-host"),
		exclusive.IsProcessAlive(1, host),
		exclusive.IsProcessAlive(dead.Process.Pid, host),
	}
	if !slices.Equal(cases, []bool{true, true, true, true, false}) {
		t.Fatal(cases)
	}
}
