//go:build !linux

package tenure

import "time"

// boottime returns the time since the process started, on the monotonic clock.
func boottime() time.Duration { return time.Since(processStart) }
