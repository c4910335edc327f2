//go:build !linux

package transport

import (
	"syscall"
	"time"
)

// setUserTimeout does nothing: pings find connections whose data is not acknowledged.
func setUserTimeout(syscall.RawConn, time.Duration) {}
