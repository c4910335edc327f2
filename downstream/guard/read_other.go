//go:build !unix

package guard

import (
	"net"

	"google.golang.org/grpc/mem"
)

// A waitingReader exists on Unix only.
type waitingReader struct{}

func newWaitingReader(net.Conn) *waitingReader { return nil }

func (*waitingReader) read(int, mem.BufferPool) (*[]byte, int, error) { panic("unreachable") }
