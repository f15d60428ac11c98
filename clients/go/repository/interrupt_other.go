//go:build !unix

package repository

import "os"

// interrupt ends a wait of the command.
var interrupt = os.Kill
