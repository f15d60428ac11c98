//go:build unix

// Package holder has the identity of a lock's holder and the check whether it is alive: the `tenure`
// block of lock records, K6 (the `tenure` block) to K16 (permission denied means alive).
package holder

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxPid is the largest process id of Linux: K15 (records without a block).
	maxPid              = 1 << 22
	initialPidNamespace = 4026531836
	initialTimeNS       = 4026531834
	// Skew is the allowance for clocks: K45 (age by the store's clock).
	Skew = 10 * time.Second
	// BeatDigits is the width of the heartbeat counter.
	BeatDigits = 10
)

// Identity is the `tenure` block of a record. A zero member is missing. The order of the members is the
// order in which they are written.
type Identity struct {
	V      int    `json:"v"`
	PID    int64  `json:"pid,omitempty"`
	Start  uint64 `json:"start,omitempty"`
	Boot   string `json:"boot,omitempty"`
	PidNS  uint64 `json:"pidns,omitempty"`
	TimeNS uint64 `json:"timens,omitempty"`
	Dev    uint64 `json:"dev,omitempty"`
	Host   string `json:"host,omitempty"`
	Token  string `json:"token,omitempty"`
	Beat   string `json:"beat,omitempty"`
	Flock  *bool  `json:"flock,omitempty"`
	Local  *bool  `json:"local,omitempty"`
	Fence  uint64 `json:"fence,omitempty"`
	TTL    uint64 `json:"ttl,omitempty"`
}

// Verdict says whether a holder is alive.
type Verdict int

// The verdicts. Without proof the verdict is Unknown, never Dead: K3 (resolve doubt toward exclusion).
const (
	Unknown Verdict = iota
	Alive
	Dead
)

// Token returns 32 random hex digits.
func Token() string { return randomHex(16) }

// Suffix returns 16 random hex digits, for names of private files.
func Suffix() string { return randomHex(8) }

func randomHex(n int) string {
	random := make([]byte, n)
	_, _ = rand.Read(random)
	return hex.EncodeToString(random)
}

type surroundings struct {
	boot          string
	pidns, timens uint64
	start         uint64
}

var here = sync.OnceValue(func() surroundings {
	var s surroundings
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		s.boot = strings.TrimRight(string(boot), "\n")
	}
	s.pidns, s.timens = inode("/proc/self/ns/pid"), inode("/proc/self/ns/time")
	if stat, ok := readStat("self"); ok {
		s.start = stat.start
	}
	return s
})

func inode(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return stat.Ino
}

// HostName returns this host's name, or "" if it is unknown.
func HostName() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// IsThisHost compares whole names and ignores the case of ASCII letters: K8 (compare host names).
func IsThisHost(name string) bool {
	own := HostName()
	return own != "" && lowerASCII(own) == lowerASCII(name)
}

func lowerASCII(text string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, text)
}

// Own returns the identity of this process as a holder.
func Own(isLocal bool, dev uint64) Identity {
	at := here()
	return Identity{
		V: 1, PID: int64(os.Getpid()), Start: at.start, Boot: at.boot, PidNS: at.pidns, TimeNS: at.timens, Dev: dev,
		Host: HostName(), Token: Token(), Beat: strings.Repeat("0", BeatDigits), Flock: &isLocal, Local: &isLocal,
	}
}

// Parse reads a block. A member of the wrong type or a pid out of range counts as missing.
func Parse(raw json.RawMessage) *Identity {
	var members map[string]json.RawMessage
	if len(raw) == 0 || json.Unmarshal(raw, &members) != nil || members == nil {
		return nil
	}
	var id Identity
	for name, into := range map[string]any{
		"v": &id.V, "pid": &id.PID, "start": &id.Start, "boot": &id.Boot, "pidns": &id.PidNS, "timens": &id.TimeNS,
		"dev": &id.Dev, "host": &id.Host, "token": &id.Token, "beat": &id.Beat, "flock": &id.Flock, "local": &id.Local,
		"fence": &id.Fence, "ttl": &id.TTL,
	} {
		_ = json.Unmarshal(members[name], into)
	}
	if !IsPid(id.PID) {
		id.PID = 0
	}
	return &id
}

// IsPid returns whether the number can be a process id.
func IsPid(n int64) bool { return 1 <= n && n <= maxPid }

type procStat struct {
	state byte
	start uint64
}

// readStat reads /proc/<pid>/stat. The command's name may have blanks and parentheses, so the fields are
// counted from the last one: K7 (parse the process stat file).
func readStat(pid string) (procStat, bool) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return procStat{}, false
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return procStat{}, false
	}
	// The first of these is field 3; the start time is field 22.
	start, err := strconv.ParseUint(fields[22-3], 10, 64)
	return procStat{state: fields[0][0], start: start}, err == nil
}

func procIsOurs() bool {
	link, err := os.Readlink("/proc/self")
	return err == nil && link == strconv.Itoa(os.Getpid())
}

// OfProcess judges by pid and start time (0: unknown) in this PID namespace.
func OfProcess(pid int64, start uint64) Verdict {
	if errors.Is(syscall.Kill(int(pid), 0), syscall.ESRCH) {
		return Dead
	}
	// Everything else, in particular EPERM, means that the process exists: K16.
	if !procIsOurs() {
		return Alive
	}
	stat, ok := readStat(strconv.FormatInt(pid, 10))
	if !ok {
		return Alive
	}
	if start != 0 && start != stat.start {
		return Dead
	}
	if strings.IndexByte("ZXx", stat.state) >= 0 && !hasOtherThreads(pid) {
		return Dead
	}
	return Alive
}

// hasOtherThreads: a main thread that ended shows as a zombie while others work: K13 (zombie processes).
func hasOtherThreads(pid int64) bool {
	tasks, err := os.ReadDir("/proc/" + strconv.FormatInt(pid, 10) + "/task")
	if err != nil {
		return false
	}
	for _, task := range tasks {
		if task.Name() != strconv.FormatInt(pid, 10) {
			return true
		}
	}
	return false
}

// OfBarePid judges the process of a record that names a pid but not its PID namespace: K15. A missing
// process proves death only if no process of another namespace has this pid there.
func OfBarePid(pid int64) Verdict {
	verdict := OfProcess(pid, 0)
	if verdict == Dead && mayRunInAnotherNamespace(pid) {
		return Unknown
	}
	return verdict
}

// mayRunInAnotherNamespace: only a judge in the initial namespace sees every process (`NSpid`).
func mayRunInAnotherNamespace(pid int64) bool {
	_, err := os.ReadFile("/proc/1/status")
	if here().pidns != initialPidNamespace || !procIsOurs() || err != nil {
		return true
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return true
	}
	for _, process := range processes {
		if _, err := strconv.Atoi(process.Name()); err != nil {
			continue
		}
		status, err := os.ReadFile("/proc/" + process.Name() + "/status")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		if err != nil {
			return true
		}
		for _, line := range strings.Split(string(status), "\n") {
			if rest, found := strings.CutPrefix(line, "NSpid:"); found {
				for at, number := range strings.Fields(rest) {
					if at > 0 && number == strconv.FormatInt(pid, 10) {
						return true
					}
				}
			}
		}
	}
	return false
}

// WithoutLock judges a holder without a flock: K11 (a different boot id) to K14 (a different PID
// namespace).
func (id *Identity) WithoutLock(isLocal bool) Verdict {
	at := here()
	isOurHost := IsThisHost(id.Host)
	if id.Boot == "" || at.boot == "" {
		return Unknown
	}
	if id.Boot != at.boot {
		wasLocal := isOurHost
		if id.Local != nil {
			wasLocal = *id.Local
		}
		if isLocal && wasLocal {
			return Dead
		}
		return Unknown
	}
	// Machines that were started from one snapshot share a boot id: K12.
	if !isLocal && !isOurHost {
		return Unknown
	}
	if id.PidNS == 0 || id.PidNS != at.pidns || id.PID == 0 {
		return Unknown
	}
	start := id.Start
	sameClock := at.timens == id.TimeNS || (id.TimeNS == 0 && at.timens == initialTimeNS)
	if !sameClock {
		start = 0
	}
	return OfProcess(id.PID, start)
}

// Judge judges the holder of an open record. isLocked says that the record's flock was free and is kept,
// for the removal: K24 (lock before removal).
func (id *Identity) Judge(record *os.File, isLocal bool, dev uint64) (verdict Verdict, isLocked bool, err error) {
	if id.Flock != nil && *id.Flock && isLocal && (id.Dev == 0 || id.Dev == dev) {
		isLocked, err = TryFlock(record)
		if err != nil {
			return Unknown, false, err
		}
		if !isLocked {
			return Alive, false, nil
		}
		if id.Boot != "" && here().boot != "" {
			return Dead, true, nil
		}
	}
	verdict = id.WithoutLock(isLocal)
	// Another boot id proves a restart only if the record is older than this boot.
	if verdict == Dead && id.Boot != here().boot && !changedBeforeBoot(record) {
		verdict = Unknown
	}
	return verdict, isLocked, nil
}

// DamagedBeforeBoot returns whether a record that does not parse is older than this boot and its flock is
// free: then its writer is dead, K19 (durable records and torn records).
func DamagedBeforeBoot(record *os.File, isLocal bool) bool {
	if !isLocal || !changedBeforeBoot(record) {
		return false
	}
	isLocked, err := TryFlock(record)
	return err == nil && isLocked
}

func changedBeforeBoot(record *os.File) bool {
	booted, ok := bootTime()
	changed, err := changeTime(record)
	return ok && err == nil && changed.Before(booted.Add(-Skew))
}

func bootTime() (time.Time, bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}, false
	}
	for _, line := range strings.Split(string(text), "\n") {
		if rest, found := strings.CutPrefix(line, "btime "); found {
			seconds, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return time.Unix(seconds, 0), err == nil
		}
	}
	return time.Time{}, false
}

// TryFlock takes the exclusive flock without waiting.
func TryFlock(file *os.File) (bool, error) {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case errors.Is(err, syscall.EINTR):
		default:
			return false, err
		}
	}
}
