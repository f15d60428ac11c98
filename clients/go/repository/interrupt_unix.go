//go:build unix

package repository

import "syscall"

// interrupt ends a wait of the command.
const interrupt = syscall.SIGTERM
