package transport

import (
	"net"
	"sync"
)

// A wire is the socket below TLS. After the handshake it buffers ciphertext until take is called, so that a write to
// TLS never blocks.
type wire struct {
	*net.TCPConn
	held bool // buffer writes; set after the handshake, before other goroutines use the wire

	// Guarded by mu, since TLS may also write from the reading goroutine.
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

// take returns the buffered ciphertext and empties the buffer. The caller must return the slice to scratches.
func (w *wire) take() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.out
	w.out = nil
	return out
}
