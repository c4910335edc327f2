// Package memnet is a network in memory, for tests in a testing/synctest bubble.
//
// The package is not a stable API: programs that embed Tender use package relay.
package memnet

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
)

// buffer is how many bytes a connection holds each way.
const buffer = 256 << 10

// refusesFor is how long a [Network] without a listener refuses every connection at once.
const refusesFor = 10 * time.Second

// A Network is an in-memory network with one address, which outlives its listeners. The zero value has no listener.
//
// Without a listener, connections are refused at once. After ten seconds, Dial instead waits for a listener or the end of its
// context, and is refused then: gRPC dials every second, which would dominate the cost of a test with a virtual hour without an
// origin. As on a real network, gRPC finds a new listener when it dials again.
type Network struct {
	mu       sync.Mutex
	listener *Listener     // guarded by mu; the last one
	refusing time.Time     // guarded by mu; the first refusal since the last Listen, zero if none
	listens  chan struct{} // guarded by mu; closed by the next Listen, nil if no Dial waits
}

// Listen replaces the listener, if there is one, which the caller closes.
func (m *Network) Listen() *Listener {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listener, m.refusing = Listen(buffer), time.Time{}
	if m.listens != nil {
		close(m.listens)
		m.listens = nil
	}
	return m.listener
}

// Dial connects to the last listener, and is refused if there is none.
func (m *Network) Dial(ctx context.Context) (net.Conn, error) {
	m.mu.Lock()
	l := m.listener
	m.mu.Unlock()
	if l != nil {
		if conn, err := l.Dial(ctx); !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
	}
	if listens := m.refuse(l); listens != nil {
		select {
		case <-listens:
		case <-ctx.Done():
		}
	}
	return nil, refused()
}

// refuse notes that there was no connection from a listener, nil if there is none. It
// returns a channel to wait on for the next listener, or nil to refuse at once.
func (m *Network) refuse(l *Listener) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listener != l {
		return nil // a new one, which the next attempt finds
	}
	if m.refusing.IsZero() {
		m.refusing = time.Now()
	}
	if time.Since(m.refusing) < refusesFor {
		return nil
	}
	if m.listens == nil {
		m.listens = make(chan struct{})
	}
	return m.listens
}

// DialOption has a gRPC client dial this network, whatever the address.
func (m *Network) DialOption() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return m.Dial(ctx) })
}
