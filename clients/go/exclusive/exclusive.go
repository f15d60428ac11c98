//go:build unix

// Package exclusive takes a whole database for an external tool: the file `.exclusive-lock` in the
// database's directory, which the database's own server respects.
//
//	lock, err := exclusive.New("night-import", "2.4.0")
//	err = lock.Acquire(ctx, ".beads")
//	defer lock.Release()
//
// A server asks ShouldSkipDatabase at the start of each cycle, or better BeginCycle. The format is that
// of the published protocol; in addition, two tools of this package exclude each other, a dead holder is
// recognised by the kernel, and an overwritten or deleted lock is noticed.
package exclusive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"tenure.example/tenure/internal/holder"
)

const (
	// FileName is the name of the lock file: X1.
	FileName = ".exclusive-lock"
	gateName = ".exclusive-lock.gate"
	limit    = 64 << 10
	tries    = 5
	poll     = time.Second
	// writingTime is how long a damaged record may be one that another tool is still writing.
	writingTime = 10 * time.Second
	// heartbeat is the interval at which the holder shows that it lives and looks for its record.
	heartbeat     = 2 * time.Second
	longestHolder = 200
)

// Class says what kind of failure an Error is.
type Class string

// The classes: K2 (error classes).
const (
	Held        Class = "Held"
	Foreign     Class = "Foreign"
	Timeout     Class = "Timeout"
	Malformed   Class = "Malformed"
	Unreadable  Class = "Unreadable"
	NotALock    Class = "NotALock"
	LostRace    Class = "LostRace"
	Compromised Class = "Compromised"
	NotHeld     Class = "NotHeld"
	NotFound    Class = "NotFound"
	BadInput    Class = "BadInput"
	IO          Class = "Io"
)

// Error is a failure with its class.
type Error struct {
	Class Class
	// Holder is the name of the tool that has the lock, if it is known.
	Holder  string
	Message string
	Err     error
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// Lock is the record of a lock, and after Acquire the lock itself.
type Lock struct {
	Holder    string    `json:"holder"`
	PID       int       `json:"pid"`
	Hostname  string    `json:"hostname"`
	StartedAt time.Time `json:"started_at"`
	Version   string    `json:"version,omitempty"`

	// Quiesce is how long Acquire waits for the cycles of servers that began before the lock was there;
	// 0 means 30 seconds, a negative time does not wait.
	Quiesce time.Duration `json:"-"`
	// Settle is a pause before Acquire returns, for servers that do not use BeginCycle.
	Settle time.Duration `json:"-"`
	// Private makes the record readable for the own user only.
	Private bool `json:"-"`

	mu     sync.Mutex
	dir    *holder.Dir
	file   *os.File
	bytes  []byte
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// New returns the lock of this process for a tool of this name. The version may be empty.
func New(name, version string) (*Lock, error) {
	if name == "" || len(name) > longestHolder || strings.IndexFunc(name, unicode.IsControl) >= 0 {
		return nil, &Error{Class: BadInput, Message: "the holder's name must have 1 to 200 bytes and no control characters"}
	}
	host := holder.HostName()
	if host == "" {
		return nil, &Error{Class: IO, Message: "this machine has no host name"}
	}
	return &Lock{Holder: name, PID: os.Getpid(), Hostname: host, StartedAt: time.Now().UTC(), Version: version}, nil
}

// Validate checks the fields: X2 (exclusive record fields).
func (l *Lock) Validate() error {
	switch {
	case l.Holder == "":
		return errors.New("holder is empty")
	case l.PID <= 0:
		return errors.New("pid is not positive")
	case l.Hostname == "":
		return errors.New("hostname is empty")
	case l.StartedAt.IsZero():
		return errors.New("started_at is not set")
	}
	return nil
}

// record is what is read. null and a missing field are the same.
type record struct {
	Holder    string          `json:"holder"`
	PID       int64           `json:"pid"`
	Hostname  string          `json:"hostname"`
	StartedAt *string         `json:"started_at"`
	Version   string          `json:"version"`
	Tenure    json.RawMessage `json:"tenure"`
}

// rfc3339 is strict: X4 (start time format). A looser reader would respect other locks than its peers.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$`)

type invalidError struct{ error }

// parse returns the record and its identity. An invalidError is valid JSON that breaks a rule.
func parse(content []byte) (*Lock, *holder.Identity, error) {
	if len(content) > limit {
		return nil, nil, fmt.Errorf("larger than %d bytes", limit)
	}
	var r record
	if err := json.Unmarshal(content, &r); err != nil {
		return nil, nil, err
	}
	lock := &Lock{Holder: r.Holder, PID: 1, Hostname: r.Hostname, Version: r.Version}
	if r.StartedAt != nil {
		if !rfc3339.MatchString(*r.StartedAt) {
			return nil, nil, errors.New("started_at is not an RFC 3339 time")
		}
		started, err := time.Parse(time.RFC3339Nano, *r.StartedAt)
		if err != nil {
			return nil, nil, errors.New("started_at is not an RFC 3339 time")
		}
		lock.StartedAt = started
	}
	if r.PID <= 0 {
		lock.PID = 0
	}
	if err := lock.Validate(); err != nil {
		return nil, nil, invalidError{err}
	}
	// A number that is no pid must not be cut to one and signalled: K15 (records without a block).
	if !holder.IsPid(r.PID) {
		return nil, nil, fmt.Errorf("%d cannot be a process id", r.PID)
	}
	lock.PID = int(r.PID)
	return lock, holder.Parse(r.Tenure), nil
}

// judged is the result of one look at the lock.
type judged struct {
	record *holder.Record // open; nil if there is no file
	holder string
	isDead bool
	err    *Error // set if the lock is held, or cannot be judged
}

func (j *judged) close() {
	if j.record != nil {
		j.record.Close()
	}
}

// judge looks at the lock in a directory: X12 (order of exclusive tests).
func judge(dir *holder.Dir) judged {
	found, err := dir.Open(FileName, limit)
	switch {
	case errors.Is(err, holder.ErrNotALock):
		return judged{err: &Error{Class: NotALock, Message: FileName, Err: err}}
	case err != nil:
		return judged{err: &Error{Class: Unreadable, Message: "cannot read the lock file", Err: err}}
	case found == nil:
		return judged{}
	}
	lock, id, err := parse(found.Bytes)
	if err != nil {
		if _, isInvalid := err.(invalidError); isInvalid {
			return judged{record: found, err: &Error{Class: Malformed, Message: "invalid lock file", Err: err}}
		}
		if holder.DamagedBeforeBoot(found.File, dir.IsLocal) {
			return judged{record: found, isDead: true}
		}
		return judged{record: found, err: &Error{Class: Malformed, Message: "malformed lock file", Err: err}}
	}
	var verdict holder.Verdict
	// A block that names another process than the fields was edited or copied: it proves nothing.
	if id != nil && id.PID == int64(lock.PID) && strings.EqualFold(id.Host, lock.Hostname) {
		verdict, _, err = id.Judge(found.File, dir.IsLocal, dir.Dev)
		if err != nil {
			return judged{record: found, holder: lock.Holder, err: &Error{Class: IO, Message: "cannot test the lock", Err: err}}
		}
	} else if holder.IsThisHost(lock.Hostname) && dir.IsLocal {
		verdict = holder.OfBarePid(int64(lock.PID))
	}
	result := judged{record: found, holder: lock.Holder}
	message := fmt.Sprintf("locked by %s (pid %d on %s since %s)", strconv.Quote(lock.Holder), lock.PID, lock.Hostname, lock.StartedAt.Format(time.RFC3339))
	switch verdict {
	case holder.Dead:
		result.isDead = true
	case holder.Alive:
		result.err = &Error{Class: Held, Holder: lock.Holder, Message: message}
	default:
		result.err = &Error{Class: Foreign, Holder: lock.Holder, Message: message + "; it may run on another host or in another container"}
	}
	return result
}

// ShouldSkipDatabase answers the server's question: skip this database in this cycle? holder is the tool
// that has the lock, or whose dead lock was removed. err says why the lock cannot be judged; then skip is
// true: X7 (answers of should_skip), X9 (when in doubt, skip).
func ShouldSkipDatabase(path string) (skip bool, holderName string, err error) {
	dir, err := holder.OpenDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, "", nil
	}
	if err != nil {
		return true, "", &Error{Class: Unreadable, Message: "cannot open the directory", Err: err}
	}
	defer dir.Close()
	return ask(dir)
}

func ask(dir *holder.Dir) (bool, string, error) {
	for range tries {
		found := judge(dir)
		defer found.close()
		switch {
		case found.record == nil && found.err == nil:
			return false, "", nil
		case found.isDead:
			removed, err := dir.Remove(found.record)
			if err != nil {
				return true, found.holder, &Error{Class: IO, Holder: found.holder, Message: "failed to remove stale lock", Err: err}
			}
			if removed {
				return false, found.holder, nil
			}
			// It changed meanwhile, or another process judges it.
		case found.err.Class == Held || found.err.Class == Foreign:
			return true, found.holder, nil
		default:
			return true, found.holder, found.err
		}
	}
	return true, "", &Error{Class: LostRace, Message: "failed to remove stale lock: other processes change it"}
}

// IsProcessAlive returns whether a process runs. A process of another host counts as alive, since it
// cannot be checked, and so does one that may not be signalled: X8 (dead holder on this host).
func IsProcessAlive(pid int, hostname string) bool {
	if !holder.IsThisHost(hostname) || !holder.IsPid(int64(pid)) {
		return true
	}
	return holder.OfProcess(int64(pid), 0) != holder.Dead
}

// Acquire takes the lock of a database's directory. It fails at once if another tool has it.
func (l *Lock) Acquire(ctx context.Context, path string) error { return l.acquire(ctx, path, false) }

// AcquireWait takes the lock, and waits until ctx ends.
func (l *Lock) AcquireWait(ctx context.Context, path string) error { return l.acquire(ctx, path, true) }

func (l *Lock) acquire(ctx context.Context, path string, waits bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		return &Error{Class: Held, Holder: l.Holder, Message: "this lock is held already"}
	}
	if err := l.Validate(); err != nil {
		return &Error{Class: BadInput, Message: "invalid lock", Err: err}
	}
	dir, err := holder.OpenDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Error{Class: NotFound, Message: "there is no directory " + path, Err: err}
	}
	if err != nil {
		return &Error{Class: IO, Message: "cannot open the directory", Err: err}
	}
	l.dir = dir
	if err := l.publish(ctx, waits); err != nil {
		dir.Close()
		return err
	}
	if err := l.quiesce(ctx); err != nil {
		_ = l.release()
		return err
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	go l.beat(l.ctx, l.file)
	return nil
}

// content returns the record in the plain form of X2, with the `tenure` block at the end.
func (l *Lock) content() ([]byte, error) {
	id := holder.Own(l.dir.IsLocal, l.dir.Dev)
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	l.StartedAt = time.Now().UTC()
	err := encoder.Encode(struct {
		*Lock
		Tenure holder.Identity `json:"tenure"`
	}{l, id})
	return buffer.Bytes(), err
}

func (l *Lock) publish(ctx context.Context, waits bool) error {
	content, err := l.content()
	if err != nil {
		return &Error{Class: IO, Message: "cannot write the record", Err: err}
	}
	mode := fs.FileMode(0o644)
	if l.Private {
		mode = 0o600
	}
	var damagedSince time.Time
	var damaged []byte
	for reclaims := 0; ; {
		file, err := l.dir.Publish(FileName, content, mode)
		if err != nil {
			return &Error{Class: IO, Message: "cannot write the record", Err: err}
		}
		if file != nil {
			l.file, l.bytes = file, content
			return nil
		}
		found := judge(l.dir)
		wait, err := poll, error(nil)
		switch {
		case found.record == nil && found.err == nil:
			wait = 0
		case found.isDead:
			if reclaims++; reclaims > tries {
				err = &Error{Class: LostRace, Message: "other processes were faster several times"}
				break
			}
			removed, removeErr := l.dir.Remove(found.record)
			if removeErr != nil {
				err = &Error{Class: IO, Holder: found.holder, Message: "failed to remove stale lock", Err: removeErr}
			} else if removed {
				wait = 0
			} else {
				wait = 10 * time.Millisecond
			}
		case !waits || found.err.Class == NotALock || found.err.Class == IO:
			err = found.err
		case found.err.Class == Held || found.err.Class == Foreign:
			damagedSince = time.Time{}
		default:
			// Another tool writes its record in several steps: wait as long as the file changes.
			var now []byte
			if found.record != nil {
				now = found.record.Bytes
			}
			if damagedSince.IsZero() || !bytes.Equal(now, damaged) {
				damagedSince, damaged = time.Now(), now
			} else if time.Since(damagedSince) > writingTime {
				err = found.err
			}
		}
		found.close()
		if err != nil {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			timedOut := &Error{Class: Timeout, Holder: found.holder, Message: "timed out", Err: ctx.Err()}
			if found.err != nil {
				timedOut.Message = "timed out: " + found.err.Message
			}
			return timedOut
		}
	}
}

// quiesce waits until no cycle runs that began before the lock was there: X20 (the gate file).
func (l *Lock) quiesce(ctx context.Context) error {
	time.Sleep(max(l.Settle, 0))
	if l.Quiesce < 0 {
		return nil
	}
	limit := l.Quiesce
	if limit == 0 {
		limit = 30 * time.Second
	}
	gate, err := openGate(l.dir)
	if err != nil {
		return &Error{Class: IO, Message: "cannot open " + gateName, Err: err}
	}
	defer gate.Close()
	for end := time.Now().Add(limit); ; {
		isFree, err := holder.TryFlock(gate)
		if err != nil {
			return &Error{Class: IO, Message: "cannot lock " + gateName, Err: err}
		}
		if isFree {
			return nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return &Error{Class: Timeout, Message: "a cycle of the database's server still runs", Err: ctx.Err()}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func openGate(dir *holder.Dir) (*os.File, error) {
	for {
		gate, err := dir.OpenFile(gateName, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return gate, err
		}
		gate, err = dir.OpenFile(gateName, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil || !errors.Is(err, fs.ErrExist) {
			return gate, err
		}
	}
}

// Context is cancelled when the lock is released or lost; context.Cause says which. It is nil before
// Acquire.
func (l *Lock) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctx
}

// Check returns an error of class Compromised if the lock is no longer ours.
func (l *Lock) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.check()
}

func (l *Lock) check() error {
	if l.file == nil {
		return &Error{Class: NotHeld, Message: "the lock is not held"}
	}
	same, err := l.dir.LeadsTo(FileName, l.file)
	if err != nil {
		return &Error{Class: Unreadable, Message: "cannot look for the own record", Err: err}
	}
	now := make([]byte, len(l.bytes)+1)
	n, _ := l.file.ReadAt(now, 0)
	if !same || !sameButBeat(now[:n], l.bytes) {
		return &Error{Class: Compromised, Message: "the lock was deleted or overwritten"}
	}
	return nil
}

func beatAt(content []byte) int {
	const key = `"beat": "`
	at := bytes.LastIndex(content, []byte(key))
	if at < 0 {
		return -1
	}
	return at + len(key)
}

func sameButBeat(one, two []byte) bool {
	at := beatAt(two)
	if len(one) != len(two) || at < 0 {
		return bytes.Equal(one, two)
	}
	end := at + holder.BeatDigits
	return bytes.Equal(one[:at], two[:at]) && bytes.Equal(one[end:], two[end:])
}

// beat shows in the record that the holder lives, and looks whether the record is still ours.
func (l *Lock) beat(ctx context.Context, file *os.File) {
	timer := time.NewTicker(heartbeat)
	defer timer.Stop()
	for count := 1; ; count++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		l.mu.Lock()
		if l.file != file {
			l.mu.Unlock()
			return
		}
		err := l.check()
		if err == nil {
			if at := beatAt(l.bytes); at >= 0 {
				_, _ = file.WriteAt(fmt.Appendf(nil, "%0*d", holder.BeatDigits, count), int64(at))
			}
		}
		var failed *Error
		if errors.As(err, &failed) && failed.Class == Compromised {
			l.cancel(err)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
	}
}

// Release removes the lock. A second call is an error of class NotHeld; a lock that is no longer ours is
// left alone and is an error of class Compromised.
func (l *Lock) Release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.release()
}

func (l *Lock) release() error {
	if l.file == nil {
		return &Error{Class: NotHeld, Message: "the lock is not held"}
	}
	err := l.check()
	if err == nil {
		removed, removeErr := l.dir.TakeOwn(FileName, l.file)
		switch {
		case removeErr != nil:
			err = &Error{Class: IO, Message: "cannot remove the lock", Err: removeErr}
		case !removed:
			err = &Error{Class: Compromised, Message: "the lock was deleted or overwritten"}
		}
	}
	l.file.Close()
	l.dir.Close()
	l.file, l.dir = nil, nil
	if l.cancel != nil {
		l.cancel(&Error{Class: NotHeld, Message: "the lock was released"})
	}
	return err
}

// Cycle is a running cycle of a server. Tools that take the lock meanwhile wait for its End.
type Cycle struct{ gate *os.File }

// BeginCycle begins a cycle of a server and asks ShouldSkipDatabase. cycle is nil if the database must be
// skipped; otherwise call End.
func BeginCycle(path string) (cycle *Cycle, holderName string, err error) {
	dir, err := holder.OpenDir(path)
	if err != nil {
		return nil, "", &Error{Class: NotFound, Message: "cannot open the directory", Err: err}
	}
	defer dir.Close()
	gate, err := openGate(dir)
	if err != nil {
		return nil, "", &Error{Class: IO, Message: "cannot open " + gateName, Err: err}
	}
	// Before the question: a tool that publishes its lock after our question finds the gate taken.
	if err := syscall.Flock(int(gate.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		gate.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = nil // A tool passes the gate at this moment.
		}
		return nil, "", err
	}
	skip, holderName, err := ask(dir)
	if skip {
		gate.Close()
		return nil, holderName, err
	}
	return &Cycle{gate}, holderName, nil
}

// End ends the cycle.
func (c *Cycle) End() {
	_ = syscall.Flock(int(c.gate.Fd()), syscall.LOCK_UN)
	_ = c.gate.Close()
}
