package transport

import (
	"net"
	"sync"
)

// A wire is the socket below TLS. After the handshake it holds ciphertext until somebody takes it, so that a write to
// TLS never blocks.
type wire struct {
	*net.TCPConn
	held bool // set after the handshake, before anything else uses the wire

	// Guarded by mu: TLS may write from the reading goroutine too.
	mu  sync.Mutex
	out []byte
}

// Write implements net.Conn.
func (w *wire) Write(b []byte) (int, error) {
	if !w.held {
		return w.TCPConn.Write(b)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out == nil {
		w.out = (*scratches.Get().(*[]byte))[:0]
	}
	w.out = append(w.out, b...)
	return len(b), nil
}

// take returns the ciphertext.
func (w *wire) take() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.out
	w.out = nil
	return out
}
