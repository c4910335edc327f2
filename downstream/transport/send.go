package transport

import (
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

const (
	arenaBytes  = 40 << 10 // of a batch; a stalled client keeps one batch in memory
	copiedBytes = 2 << 10  // longer pieces of a message are not copied into the arena

	// A batch ends before the arena could be too small for a frame of short pieces, or the pieces too many for the
	// system.
	frameSpace = maxFrame + headerBytes + prefixBytes
	maxPieces  = 512
	tlsBytes   = 64 << 10 // of a batch with TLS, whose ciphertext a stalled client keeps in memory

	keptStreams  = 4 // capacity above which an empty list of ready streams is freed
	scratchBytes = 80 << 10

	// writeTimeout is the timeout until the socket accepts further bytes.
	writeTimeout = time.Minute
)

// A batch is a set of frames that are written with one system call.
type batch struct {
	arena  []byte   // frame headers, message prefixes and short pieces; must not grow, since pieces refers to it
	pieces [][]byte // slices of arena and of messages, in order
	bytes  int      // total length of pieces
	cipher []byte   // with TLS: the ciphertext, in a buffer from scratches
	rest   [][]byte // pieces that are not written yet
}

var (
	batches = sync.Pool{New: func() any {
		return &batch{arena: make([]byte, 0, arenaBytes), pieces: make([][]byte, 0, maxPieces)}
	}}
	scratches = sync.Pool{New: func() any { b := make([]byte, 0, scratchBytes); return &b }}
)

// release returns a batch and its buffers to their pools. It clears pieces, so that the pool does not keep messages. Those
// beyond the length are clear already.
func (b *batch) release() {
	putScratch(b.cipher)
	clear(b.pieces)
	*b = batch{arena: b.arena[:0], pieces: b.pieces[:0]}
	batches.Put(b)
}

// putScratch returns a buffer to scratches, unless it has grown.
func putScratch(b []byte) {
	if b != nil && cap(b) <= 2*scratchBytes {
		kept := b[:0] // b itself would be allocated in each call
		scratches.Put(&kept)
	}
}

// full reports whether another frame may not fit.
func (b *batch) full(secure bool) bool {
	return cap(b.arena)-len(b.arena) < frameSpace || len(b.pieces) > maxPieces-2*maxFrame/copiedBytes ||
		secure && b.bytes >= tlsBytes
}

// own appends bytes that the arena has from start on to pieces. It extends the last piece if that ends at start.
func (b *batch) own(start int) {
	added := b.arena[start:]
	b.bytes += len(added)
	if n := len(b.pieces); n > 0 && start > 0 && len(added) > 0 {
		if last := b.pieces[n-1]; len(last) <= start && &last[0] == &b.arena[start-len(last)] {
			b.pieces[n-1] = b.arena[start-len(last):]
			return
		}
	}
	b.pieces = append(b.pieces, added)
}

// refer appends bytes without copying them.
func (b *batch) refer(bytes []byte) {
	b.bytes += len(bytes)
	b.pieces = append(b.pieces, bytes)
}

// pump writes as many frames as the windows and the socket accept. If the socket accepts no more, it starts wait. The
// caller must hold mu.
func (c *Conn) pump() {
	for !c.waiting && c.failed == nil && c.begun {
		b := c.batch()
		if b == nil {
			c.finish()
			return
		}
		if err := c.seal(b); err != nil {
			c.failLocked(err)
			b.release()
			return
		}
		var err error
		if b.rest = b.pieces; c.socket.raw != nil {
			b.rest, err = c.socket.tryWrite(b.pieces, false)
		}
		if err != nil {
			c.failLocked(err)
			b.release()
			return
		}
		if len(b.rest) > 0 {
			c.waiting = true
			go c.wait(b) // ends once everything was written, or a write has failed
			return
		}
		b.release()
	}
}

// wait writes b and all further frames, blocking on the socket. It returns when all are written or a write fails.
func (c *Conn) wait(b *batch) {
	for {
		err := c.writeAll(b)
		c.mu.Lock()
		b.release()
		if err == nil && c.failed == nil {
			if b = c.batch(); b != nil {
				err = c.seal(b)
				b.rest = b.pieces
			}
		}
		if err != nil || c.failed != nil || b == nil {
			c.waiting = false
			if c.written != nil {
				close(c.written)
				c.written = nil
			}
			if err != nil {
				c.failLocked(err)
			}
			c.finish()
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// writeAll writes a batch. It fails if the socket accepts nothing for writeTimeout.
func (c *Conn) writeAll(b *batch) error {
	for len(b.rest) > 0 {
		err := c.socket.SetWriteDeadline(time.Now().Add(writeTimeout))
		if err != nil {
			return err
		}
		if c.socket.raw != nil {
			b.rest, err = c.socket.tryWrite(b.rest, true)
		} else {
			var n int64
			buffers := net.Buffers(slices.Clone(b.rest))
			n, err = buffers.WriteTo(c.socket.Conn)
			b.rest = skip(b.rest, int(n))
		}
		if err != nil {
			return err
		}
	}
	return c.socket.SetWriteDeadline(time.Time{})
}

// batch returns the next frames, or nil if the windows admit none. The caller must hold mu.
func (c *Conn) batch() *batch {
	secure := c.wire != nil
	if len(c.control) == 0 && len(c.ready) == 0 && (!secure || !c.wire.pending()) {
		return nil
	}
	b := batches.Get().(*batch)
	c.takeControl(b) // goes before DATA, since it may contain the HEADERS of the same stream
	for c.round(b, secure) && !b.full(secure) {
		continue
	}
	if len(b.pieces) == 0 && (!secure || !c.wire.pending()) {
		b.release()
		return nil
	}
	return b
}

// takeControl moves the frames other than DATA to a batch. The caller must hold mu.
func (c *Conn) takeControl(b *batch) {
	n := len(c.control)
	if n > copiedBytes {
		b.refer(c.control)
		c.control = nil
		return
	}
	if n > 0 {
		b.arena = append(b.arena, c.control...)
		b.own(0)
	}
	if c.control = c.control[:0]; cap(c.control) > keptControl {
		c.control = nil
	}
}

// round appends at most one frame of each ready stream, and reports whether streams may have more. Streams that do not
// fit into the batch are first in the next round.
func (c *Conn) round(b *batch, secure bool) (again bool) {
	kept := 0
	for i, s := range c.ready {
		if b.full(secure) {
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
	case !s.pending() || s.window.send <= 0:
		return idle
	case c.window <= 0:
		return full
	}
	left := s.queue[s.next].length() - s.cursor.sent
	n := int(min(int64(left), s.window.send, c.window, maxFrame))
	s.window.send -= int64(n)
	c.window -= int64(n)
	s.unsent -= n
	c.sent = true
	s.appendTo(b, n)
	s.wakeSender()
	if n < left {
		return more
	}
	if s.pop(); s.pending() || s.trailer != nil {
		return more
	}
	return idle
}

// A cursor is a position in the first message of a stream.
type cursor struct {
	sent   int // bytes that were sent, including the prefix
	piece  int // index of the next piece in data; that of the tail is the length of data
	offset int // in it
}

// appendTo appends the next n bytes of a stream as a DATA frame.
func (s *Stream) appendTo(b *batch, n int) {
	start := len(b.arena)
	b.arena = appendHeader(b.arena, n, http2.FrameData, 0, s.id)
	m, at := &s.queue[s.next], &s.cursor
	at.sent += n
	if before := at.sent - n; m.prefixed && before < prefixBytes {
		var prefix [prefixBytes]byte
		binary.BigEndian.PutUint32(prefix[1:], uint32(m.size))
		if m.gzip {
			prefix[0] = 1
		}
		part := prefix[before:min(at.sent, prefixBytes)]
		b.arena = append(b.arena, part...)
		n -= len(part)
	}
	for n > 0 {
		piece := at.next(m, n)
		n -= len(piece)
		if len(piece) <= copiedBytes {
			b.arena = append(b.arena, piece...)
			continue
		}
		b.own(start)
		start = len(b.arena)
		b.refer(piece)
	}
	if len(b.arena) > start {
		b.own(start)
	}
}

// next returns at most n further bytes of one piece of a message.
func (at *cursor) next(m *message, n int) []byte {
	piece := m.tail
	if at.piece < len(m.data) {
		piece = m.data[at.piece].ReadOnlyData()
	}
	piece = piece[at.offset:]
	if len(piece) > n {
		at.offset += n
		return piece[:n]
	}
	at.piece, at.offset = at.piece+1, 0
	return piece
}

// trail ends a stream with its trailers. RST_STREAM follows if the client has not ended its side.
func (c *Conn) trail(s *Stream, b *batch) {
	trailer := s.trailer
	if !s.half {
		trailer = appendReset(trailer, s.id, http2.ErrCodeNo)
		c.rememberEnded(s.id)
	}
	c.sent = true
	b.refer(trailer)
	s.removeLocked()
}

// finish closes the sending side of a connection that has no stream and accepts none. The client then closes its side.
// The caller must hold mu.
func (c *Conn) finish() {
	if c.leaving != gone || len(c.streams) > 0 || len(c.control) > 0 || c.waiting || c.finished || c.failed != nil {
		return
	}
	c.finished = true
	if !c.socket.closeWrite() {
		c.failLocked(net.ErrClosed)
		return
	}
	_ = c.socket.SetReadDeadline(time.Now().Add(lingerTimeout)) // fails if the client has disconnected
}

// seal encrypts a batch if the connection uses TLS. The caller must hold mu.
func (c *Conn) seal(b *batch) (err error) {
	if c.wire == nil {
		return nil
	}
	if len(b.pieces) > 0 {
		plain := (*scratches.Get().(*[]byte))[:0]
		for _, piece := range b.pieces {
			plain = append(plain, piece...)
		}
		_, err = c.entry.Conn.Write(plain)
		putScratch(plain)
	}
	b.cipher = c.wire.take()
	clear(b.pieces)
	b.pieces = append(b.pieces[:0], b.cipher)
	return err
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
