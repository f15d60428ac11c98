package tenure

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7

// boottime returns the time since boot, including suspended time. time.Time has a monotonic reading,
// but it stands still while the machine is suspended, and the daemon's clock does not.
func boottime() time.Duration {
	var now syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&now)), 0)
	if errno != 0 {
		return time.Since(processStart)
	}
	return time.Duration(now.Nano())
}
