package transport

import (
	"net"
	"sync"
)

// A lower is the socket below TLS. After the handshake it buffers ciphertext until take is called, so that a write to
// TLS never blocks.
type lower struct {
	net.Conn
	held bool // buffer writes; set after the handshake, before other goroutines use the wire

	// Guarded by mu, since TLS also writes when it reads, for example to renew its keys.
	mu  sync.Mutex
	out []byte
}

// Write implements net.Conn.
func (w *lower) Write(b []byte) (int, error) {
	if !w.held {
		return w.Conn.Write(b)
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
func (w *lower) take() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.out
	w.out = nil
	return out
}

// pending reports whether there is ciphertext that no frame has caused.
func (w *lower) pending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.out) > 0
}
