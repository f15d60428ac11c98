//go:build unix && !linux

package holder

import (
	"os"
	"time"
)

// Place calls every file system remote: what is not known to be local proves nothing.
func Place(*os.File) (isLocal bool, dev uint64, err error) { return false, 0, nil }

func changeTime(*os.File) (time.Time, error) { return time.Now(), nil }
