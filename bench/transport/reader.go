package transport

import (
	"errors"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// inputs has the buffers of connections that are being read. One that waits has none.
var inputs = sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}

// A reader reads from a connection. Before it waits, it writes what is to be written.
type reader struct {
	conn *Conn
	held *[]byte // from inputs; nil while there is nothing in it
	rest []byte  // of held
	err  error
	try  func(fd uintptr) bool // fill, made once
}

// Read implements io.Reader.
func (r *reader) Read(b []byte) (int, error) {
	if r.conn.tls != nil {
		return r.conn.tls.Read(b) // which has a buffer of its own, for one record
	}
	if len(r.rest) == 0 {
		r.drop()
		if err := r.conn.flush(); err != nil {
			return 0, err
		}
		if err := r.conn.raw.Read(r.try); err != nil {
			return 0, err
		}
		if r.err != nil {
			return 0, r.err
		}
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	if len(r.rest) == 0 {
		r.drop()
	}
	return n, nil
}

// fill reads from a socket, and reports whether it need not be waited for.
func (r *reader) fill(fd uintptr) bool {
	if r.held == nil {
		r.held = inputs.Get().(*[]byte)
	}
	n, err := unix.Read(int(fd), *r.held)
	switch {
	case errors.Is(err, unix.EINTR):
		return r.fill(fd)
	case errors.Is(err, unix.EAGAIN):
		r.drop()
		return false
	case err != nil:
		r.drop()
		r.err = err
	case n == 0:
		r.drop()
		r.err = io.EOF
	default:
		r.rest = (*r.held)[:n]
	}
	return true
}

// drop returns the buffer, which is empty.
func (r *reader) drop() {
	if r.held != nil {
		inputs.Put(r.held)
		r.held, r.rest = nil, nil
	}
}
