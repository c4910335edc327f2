package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
)

const (
	headerBytes    = 9
	arenaBytes     = 8 << 10 // of a batch; a stalled client keeps one batch in memory
	batchFrames    = 64      // maximum frames per batch in plaintext
	copiedBytes    = 4 << 10 // longer parts of a response are not copied into the arena
	keptStreams    = 4       // capacity above which an empty list or queue is freed
	batchFramesTLS = 4       // maximum frames per batch with TLS, whose ciphertext a stalled client keeps in memory
)

// A batch is a set of frames that are written with one system call.
type batch struct {
	arena  []byte   // frame headers, message prefixes and short frames; must not grow, since pieces refers to it
	pieces [][]byte // slices of arena and of responses, in order
	frames int
	bytes  []byte // with TLS: the ciphertext, in a buffer from scratches
}

var (
	batches = sync.Pool{New: func() any {
		return &batch{arena: make([]byte, 0, arenaBytes), pieces: make([][]byte, 0, 2*batchFrames+1)}
	}}
	scratches = sync.Pool{New: func() any { b := make([]byte, 0, 80<<10); return &b }}
)

// release returns a batch and its buffers to their pools. It clears pieces, so that the pool does not keep responses.
func (b *batch) release() {
	if b.bytes != nil {
		whole := b.bytes[:0]
		scratches.Put(&whole)
	}
	clear(b.pieces[:cap(b.pieces)])
	*b = batch{arena: b.arena[:0], pieces: b.pieces[:0]}
	batches.Put(b)
}

// pump writes as many frames as the windows and the socket accept. If the socket accepts no more, it starts wait. The
// caller must hold mu.
func (c *Conn) pump() {
	for !c.waiting && c.failed == nil {
		b := c.batch()
		if b == nil {
			return
		}
		if err := c.seal(b); err != nil {
			c.fail(err)
			return
		}
		done, err := c.write(b, false)
		if err != nil {
			c.fail(err)
			return
		}
		if !done {
			c.waiting = true
			go c.wait(b)
			return
		}
		b.release()
	}
}

// wait writes b and all further frames, blocking on the socket. It returns when all are written or a write times out.
// It runs on its own goroutine while waiting is set.
func (c *Conn) wait(b *batch) {
	for {
		err := c.socket.SetWriteDeadline(time.Now().Add(c.server.limits.Write))
		if err == nil {
			_, err = c.write(b, true)
		}
		c.mu.Lock()
		b.release()
		if err == nil {
			if b = c.batch(); b != nil {
				err = c.seal(b)
			}
		}
		if err != nil || b == nil {
			c.waiting = false
			_ = c.socket.SetWriteDeadline(time.Time{}) // fails only if the socket is closed
			if err != nil {
				c.fail(err)
			}
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// fail shuts the socket down, upon which the reading goroutine closes the connection. Closing it here would wait for
// the reading goroutine, which may be the caller. The caller must hold mu.
func (c *Conn) fail(err error) {
	c.failed = err
	_ = c.socket.CloseRead()
	_ = c.socket.CloseWrite() // both fail if the client has disconnected
}

// batch returns the next frames, or nil if the windows admit none. The caller must hold mu.
func (c *Conn) batch() *batch {
	if c.control.Len() == 0 && len(c.ready) == 0 {
		c.finish()
		return nil
	}
	b := batches.Get().(*batch)
	limit := batchFrames
	if c.tls != nil {
		limit = batchFramesTLS
	}
	for c.round(b, limit) && b.frames < limit {
		continue
	}
	if n := c.control.Len(); n > 0 { // goes before DATA, since it may contain the HEADERS of the same stream
		control := append([]byte(nil), c.control.Bytes()...)
		c.control.Reset()
		if n > keptControl {
			c.control = bytes.Buffer{}
		}
		b.pieces = slices.Insert(b.pieces, 0, control)
	}
	if len(b.pieces) == 0 {
		b.release()
		return nil
	}
	c.credit += 2 * b.frames
	return b
}

// round appends at most one frame of each ready stream, and reports whether streams may have more. Streams that the
// limit excludes are first in the next round.
func (c *Conn) round(b *batch, limit int) (again bool) {
	kept := 0
	for i, s := range c.ready {
		if b.frames >= limit {
			c.ready = append(slices.Clone(c.ready[i:]), c.ready[:kept]...)
			return true
		}
		result := c.frame(s, b)
		if result == idle {
			s.ready = false
			continue
		}
		again = again || result == more
		c.ready[kept] = s
		kept++
	}
	clear(c.ready[kept:])
	if c.ready = c.ready[:kept]; kept == 0 && cap(c.ready) > keptStreams {
		c.ready = nil
	}
	return again
}

// An outcome is the state of a stream after a call of frame.
type outcome int

const (
	more outcome = iota // the stream may have more frames
	full                // the connection's window is exhausted
	idle                // the stream has no frame that its window admits
)

// frame appends the next frame of a stream to a batch, and charges it to the flow-control windows. The caller must hold
// mu.
func (c *Conn) frame(s *Stream, b *batch) outcome {
	switch {
	case s.dead:
		return idle
	case !s.pending() && s.trailer != nil:
		c.trail(s, b)
		return idle
	case !s.pending() || s.window <= 0:
		return idle
	case c.window <= 0:
		return full
	}
	message := s.queue[s.next]
	n := int(min(int64(prefixBytes+len(message)-s.sent), s.window, c.window, maxFrame))
	s.window -= int64(n)
	c.window -= int64(n)
	s.appendTo(b, n)
	if s.sent += n; s.sent < prefixBytes+len(message) {
		return more
	}
	if s.pop(); s.pending() || s.trailer != nil {
		return more
	}
	return idle
}

// appendTo appends the next n bytes of a stream as a DATA frame. It copies short parts of a response into the arena.
func (s *Stream) appendTo(b *batch, n int) {
	start := len(b.arena)
	b.arena = appendHeader(b.arena, n, http2.FrameData, 0, s.id)
	message, from, to := s.queue[s.next], s.sent, s.sent+n
	if from < prefixBytes {
		var prefix [prefixBytes]byte
		binary.BigEndian.PutUint32(prefix[1:], uint32(len(message)))
		b.arena = append(b.arena, prefix[from:min(to, prefixBytes)]...)
	}
	body := message[max(from-prefixBytes, 0):max(to-prefixBytes, 0)]
	if len(body) <= copiedBytes && len(body) <= cap(b.arena)-len(b.arena)-reserved(b) {
		b.arena, body = append(b.arena, body...), nil
	}
	b.addArena(start)
	if len(body) > 0 {
		b.pieces = append(b.pieces, body)
	}
	b.frames++
}

// reserved returns the number of arena bytes that the headers of further frames of the batch may need.
func reserved(b *batch) int { return (batchFrames - b.frames) * (headerBytes + prefixBytes) }

// addArena adds the arena from start to its end to pieces. It extends the last piece if that ends at start.
func (b *batch) addArena(start int) {
	if n := len(b.pieces); n > 0 && start > 0 {
		if last := b.pieces[n-1]; len(last) <= start && &last[0] == &b.arena[start-len(last)] {
			b.pieces[n-1] = b.arena[start-len(last):]
			return
		}
	}
	b.pieces = append(b.pieces, b.arena[start:])
}

// trail ends a stream with its trailers. RST_STREAM follows if the client has not ended its side.
func (c *Conn) trail(s *Stream, b *batch) {
	frame := appendHeader(nil, len(s.trailer), http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, s.id)
	frame = append(frame, s.trailer...)
	if !s.half {
		frame = appendHeader(frame, 4, http2.FrameRSTStream, 0, s.id)
		frame = binary.BigEndian.AppendUint32(frame, uint32(http2.ErrCodeNo))
	}
	b.pieces = append(b.pieces, frame)
	b.frames++
	s.removeLocked()
}

func appendHeader(b []byte, length int, t http2.FrameType, flags http2.Flags, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(t), byte(flags))
	return binary.BigEndian.AppendUint32(b, stream)
}

// finish closes the sending side of a connection after goAway, once all streams have ended.
func (c *Conn) finish() {
	if c.closing && len(c.streams) == 0 {
		_ = c.socket.CloseWrite() // the client then closes its side
	}
}

// seal encrypts a batch if the connection uses TLS. The caller must hold mu.
func (c *Conn) seal(b *batch) error {
	if c.tls == nil {
		return nil
	}
	scratch := scratches.Get().(*[]byte)
	plain := (*scratch)[:0]
	for _, piece := range b.pieces {
		plain = append(plain, piece...)
	}
	_, err := c.tls.Write(plain)
	*scratch = plain[:0]
	scratches.Put(scratch)
	b.bytes = c.wire.take()
	clear(b.pieces)
	b.pieces = append(b.pieces[:0], b.bytes)
	return err
}

// write writes a batch without blocking, or completely if wait is set. done reports whether the batch is complete. The
// caller must hold mu or be the waiting goroutine.
func (c *Conn) write(b *batch, wait bool) (done bool, err error) {
	c.out = output{rest: b.pieces, wait: wait}
	err = c.raw.Write(c.try)
	rest, failed := c.out.rest, c.out.err
	c.out = output{}
	b.pieces = b.pieces[:copy(b.pieces, rest)]
	if failed != nil {
		err = failed
	}
	return len(b.pieces) == 0, err
}

// An output is a batch that is being written.
type output struct {
	rest [][]byte // unwritten pieces
	wait bool     // block until everything is written
	err  error
}

// writeTo is the callback of RawConn.Write: it writes c.out, and returns false to wait until the socket is writable.
func (c *Conn) writeTo(fd uintptr) bool {
	for len(c.out.rest) > 0 {
		n, err := writev(int(fd), c.out.rest)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return !c.out.wait
		case err != nil:
			c.out.err = err
			return true
		default:
			c.out.rest = skip(c.out.rest, n)
		}
	}
	return true
}

// writev writes pieces with one system call, and returns the number of written bytes.
func writev(fd int, pieces [][]byte) (int, error) {
	if len(pieces) == 1 {
		return unix.Write(fd, pieces[0])
	}
	return unix.Writev(fd, pieces)
}

// skip removes the first n bytes of pieces, and modifies pieces.
func skip(pieces [][]byte, n int) [][]byte {
	for len(pieces) > 0 && n >= len(pieces[0]) {
		n -= len(pieces[0])
		pieces = pieces[1:]
	}
	if n > 0 {
		pieces[0] = pieces[0][n:]
	}
	return pieces
}
