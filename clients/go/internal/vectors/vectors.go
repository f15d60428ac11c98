// Package vectors reads the interoperability vectors of the repository, for tests.
package vectors

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func directory(crate, kind string) string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "../../../../crates", crate, "tests/vectors", kind)
}

// Names lists the vectors of a kind.
func Names(t testing.TB, crate, kind string) []string {
	t.Helper()
	entries, err := os.ReadDir(directory(crate, kind))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// Machine has the values that templates need: a living process, a dead one, one of another user.
type Machine struct{ values *strings.Replacer }

// NewMachine starts the processes; they end with the test.
func NewMachine(t testing.TB) *Machine {
	t.Helper()
	alive := start(t, nil)
	// A process of another user; if this test may not start one, process 1 is not ours either.
	otherUser := 1
	if os.Getuid() == 0 {
		otherUser = start(t, &syscall.Credential{Uid: 65534, Gid: 65534})
	}
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", alive))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	pidns := namespace.Sys().(*syscall.Stat_t).Ino
	return &Machine{strings.NewReplacer(
		"@ALIVE_PID@", strconv.Itoa(alive), "@ALIVE_START@", fields[19], "@ALIVE_PID_HEX@", strconv.FormatInt(int64(alive), 16),
		"@DEAD_PID@", strconv.Itoa(dead.Process.Pid), "@OTHER_USER_PID@", strconv.Itoa(otherUser),
		"@OWN_PID@", strconv.Itoa(os.Getpid()), "@HOST@", host, "@HOST_UPPER@", strings.ToUpper(host),
		"@BOOT@", strings.TrimSpace(string(boot)), "@PIDNS@", strconv.FormatUint(pidns, 10), "@OTHER_PIDNS@", strconv.FormatUint(pidns+1, 10),
	)}
}

func start(t testing.TB, as *syscall.Credential) int {
	t.Helper()
	command := exec.Command("sleep", "1000")
	command.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return command.Process.Pid
}

// Read returns a vector with its placeholders filled in.
func (m *Machine) Read(t testing.TB, crate, kind, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(directory(crate, kind), name))
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(name, ".tmpl") {
		content = []byte(m.values.Replace(string(content)))
	}
	return content
}
