package tenure

import (
	"context"
	"time"
)

var processStart = time.Now()

// lease is a confirmed lease. It counts from the sending of its request, on a clock that includes
// suspended time, and its holder uses four fifths of it: the rest allows for clocks of different speed.
type lease struct {
	sent time.Duration
	ttl  time.Duration
}

func (l lease) safeUntil() time.Duration { return l.sent + l.ttl*4/5 }
func (l lease) renewAt() time.Duration   { return l.sent + l.ttl/3 }
func (l lease) inDanger() time.Duration  { return l.sent + l.ttl/2 }

// longestSleep limits one timer. Go's timers stand still while the machine is suspended, so a sleep
// looks at the clock again at this interval.
const longestSleep = time.Second

// sleepUntil waits until a time of boottime, or until one of the channels is readable. It returns
// whether the time was reached.
func sleepUntil(until time.Duration, wake <-chan struct{}, done <-chan struct{}) bool {
	for {
		left := until - boottime()
		if left <= 0 {
			return true
		}
		timer := time.NewTimer(min(left, longestSleep))
		select {
		case <-timer.C:
		case <-wake:
			timer.Stop()
			return false
		case <-done:
			timer.Stop()
			return false
		}
	}
}

// sleep waits, or returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
