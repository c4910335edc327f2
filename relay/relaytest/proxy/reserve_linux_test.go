package proxy

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
)

// TestFreeAddress: programs can listen on the address one after the other. A socket without SO_REUSEADDR cannot take the
// port even while nobody listens, so the kernel does not choose it for other sockets.
func TestFreeAddress(t *testing.T) {
	address := FreeAddress(t)
	exclusive := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0) })
		return errors.Join(err, failed)
	}}
	for range 2 {
		if l, err := exclusive.Listen(context.Background(), "tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("listen without SO_REUSEADDR: %v, %v, want EADDRINUSE", l, err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if another := FreeAddress(t); another == address {
		t.Errorf("%s is given twice", address)
	}
}
