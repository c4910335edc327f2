package transport

import (
	"encoding/binary"
	"io"
	"math/bits"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// offeredBytes is the maximum size of a request that the reading goroutine offers to the receiver: nearly all ACKs. A SotW
// client repeats all names of its subscription in an ACK.
const offeredBytes = 64 << 10

// minBuffer and maxBuffer are the sizes of the smallest and the largest pooled buffer of an inbox. Their sizes are powers of
// two, so that a buffer is less than twice as large as its content, which is charged. The largest has room for what may
// follow the longest request that is offered.
const (
	minBuffer = 4 << 10
	maxBuffer = 2 * offeredBytes
)

// buffers has the buffers of inboxes, by the binary logarithm of their size.
var buffers [32]sync.Pool

// An inbox has the requests of a stream that were not handled yet. It is guarded by the connection's mutex.
type inbox struct {
	bytes     []byte        // content of DATA frames, with the prefixes of messages; charged to the account
	buffer    *[]byte       // the pooled memory of bytes; nil if bytes has other memory, or is in use without mu
	ungranted int           // how many of the last bytes count against the receive window still
	receiving bool          // a goroutine receives, or the reading goroutine is in Receiver.Offer
	lost      error         // why the stream ended before its requests; nil if it has not
	arrived   chan struct{} // closed when bytes, half or lost change; nil if no handler waits
}

// drop discards the requests, and releases their bytes.
func (in *inbox) drop(c *Conn) {
	c.entry.Account.Release(len(in.bytes))
	in.remove(len(in.bytes))
	in.ungranted = 0
}

// add appends content, in a pooled buffer unless it is short or long.
func (in *inbox) add(data []byte) {
	size := len(in.bytes) + len(data)
	if size > cap(in.bytes) && size > minBuffer/2 && size <= maxBuffer {
		class := bits.Len(uint(max(size, minBuffer) - 1))
		buffer, ok := buffers[class].Get().(*[]byte)
		if !ok {
			b := make([]byte, 0, 1<<class)
			buffer = &b
		}
		moved := append(*buffer, in.bytes...)
		in.remove(len(in.bytes))
		in.bytes, in.buffer = moved, buffer
	}
	in.bytes = append(in.bytes, data...)
}

// remove removes the first n bytes. It returns the buffer to its pool after the last one.
func (in *inbox) remove(n int) {
	if in.bytes = in.bytes[n:]; len(in.bytes) > 0 {
		return
	}
	in.bytes = nil
	freeBuffer(in.buffer)
	in.buffer = nil
}

// freeBuffer returns a buffer, unless it is nil, to its pool.
func freeBuffer(buffer *[]byte) {
	if buffer != nil {
		buffers[bits.Len(uint(cap(*buffer)-1))].Put(buffer)
	}
}

// wake wakes the handler that waits for a request.
func (in *inbox) wake() {
	if in.arrived != nil {
		close(in.arrived)
		in.arrived = nil
	}
}

// deliver handles content of a stream, and that its client has ended its side. It charges the content before it keeps
// it, and offers short requests to the receiver.
func (c *Conn) deliver(s *Stream, data []byte, ended bool) error {
	if err := c.entry.Account.HoldData(len(data)); err != nil {
		return c.refuse(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	in := &s.inbox
	left := false
	for s.mayOffer() && len(in.bytes) == 0 {
		n := c.offerable(data)
		if n == 0 {
			break
		}
		left = s.offer(data[prefixBytes:n])
		data = data[n:]
		s.consume(n)
	}
	s.half = s.half || ended
	if s.ended || s.dead {
		c.entry.Account.Release(len(data))
		s.consume(len(data))
	} else {
		in.add(data)
		in.ungranted += len(data)
		in.wake()
		left = left || s.offerInbox()
	}
	s.startReceiving(left)
	return nil
}

// mayOffer reports whether the reading goroutine may offer a request. The caller must hold the connection's mutex.
func (s *Stream) mayOffer() bool {
	return s.receiver != nil && !s.ended && !s.dead && !s.inbox.receiving && s.inbox.lost == nil
}

// offer offers a request, and reports whether the receiver has left it. The caller must hold the connection's mutex, which
// offer releases meanwhile.
func (s *Stream) offer(request []byte) (left bool) {
	s.inbox.receiving = true
	s.conn.mu.Unlock()
	left = !s.receiver.Offer(request)
	s.conn.mu.Lock()
	s.inbox.receiving = left
	return left
}

// offerInbox offers the complete requests of the inbox, which have come in several frames. It reports whether the receiver
// has left one. The caller must hold the connection's mutex, which offerInbox releases meanwhile.
func (s *Stream) offerInbox() (left bool) {
	in := &s.inbox
	for s.mayOffer() && !left {
		n := s.conn.offerable(in.bytes)
		if n == 0 {
			break
		}
		buffer := in.buffer
		in.buffer = nil
		left = s.offer(in.bytes[prefixBytes:n])
		if in.bytes == nil { // the inbox was dropped
			freeBuffer(buffer)
			break
		}
		in.buffer = buffer
		in.remove(n)
		s.grant()
	}
	return left
}

// grant returns bytes to the receive window of the client that the inbox does not have any more. The caller must hold the
// connection's mutex.
func (s *Stream) grant() {
	in := &s.inbox
	if granted := in.ungranted - len(in.bytes); granted > 0 {
		s.consume(granted)
		in.ungranted -= granted
	}
}

// offerable returns the length, with its prefix, of a short complete request at the start of data, or 0.
func (c *Conn) offerable(data []byte) int {
	if len(data) < prefixBytes || data[0] != 0 {
		return 0
	}
	n := int64(binary.BigEndian.Uint32(data[1:]))
	if n > offeredBytes || n > int64(c.server.cfg.MaxMessageBytes) || n+prefixBytes > int64(len(data)) {
		return 0
	}
	return prefixBytes + int(n)
}

// startReceiving starts a goroutine if there is something to receive. left means that Offer has left a request. The
// caller must hold the connection's mutex.
func (s *Stream) startReceiving(left bool) {
	in := &s.inbox
	switch {
	case s.receiver == nil:
	case left:
		go s.receiveAll(true) // ends when no request waits
	case in.receiving || s.ended:
	case in.lost != nil || s.half || s.hasMessage():
		in.receiving = true
		go s.receiveAll(false) // the same
	default: // the receiver waits for the rest of a message, which may be larger than the window
		s.consume(in.ungranted)
		in.ungranted = 0
	}
}

// hasMessage reports whether the inbox has a complete message, or the prefix of one that is not allowed. The caller
// must hold the connection's mutex.
func (s *Stream) hasMessage() bool {
	n, err := s.message()
	return n > 0 || err != nil
}

// message returns the length of the first message in the inbox, with its prefix; 0 if it is incomplete. The error
// refuses it. The caller must hold the connection's mutex.
func (s *Stream) message() (n int, err error) {
	b, limit := s.inbox.bytes, s.conn.server.cfg.MaxMessageBytes
	if len(b) < prefixBytes {
		return 0, nil
	}
	size := binary.BigEndian.Uint32(b[1:])
	switch {
	case b[0] == 1:
		return 0, status.Error(codes.Internal, "grpc: compressed flag set with identity or empty encoding")
	case b[0] != 0:
		return 0, status.Errorf(codes.Internal, "grpc: received unexpected payload format %d", b[0])
	case int64(size) > int64(limit):
		return 0, status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", size, limit)
	case len(b)-prefixBytes < int(size):
		return 0, nil
	default:
		return prefixBytes + int(size), nil
	}
}

// receiveAll passes requests to the receiver until none waits. continued means that Offer has left one.
func (s *Stream) receiveAll(continued bool) {
	if continued {
		s.receiver.Continue()
	}
	for {
		request, more, err := s.take()
		switch {
		case err != nil:
			s.receiver.Closed(err)
			return
		case !more:
			return
		default:
			s.receiver.Receive(request)
		}
	}
}

// take removes the next request from the inbox. Without one, the calling goroutine must end. After an error, no
// goroutine receives any more.
func (s *Stream) take() (request []byte, more bool, err error) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	in := &s.inbox
	if s.ended {
		return nil, false, nil
	}
	n := 0
	if err = in.lost; err == nil {
		n, err = s.message()
	}
	switch {
	case err != nil:
		return nil, false, err
	case n > 0:
		request = in.bytes[prefixBytes:n:n]
		in.buffer = nil // the receiver uses its memory
		in.remove(n)
		s.grant()
		s.conn.pump()
		return request, true, nil
	case s.half && len(in.bytes) > 0:
		return nil, false, status.Error(codes.Internal, io.ErrUnexpectedEOF.Error())
	case s.half:
		return nil, false, io.EOF
	}
	in.receiving = false
	s.consume(in.ungranted)
	in.ungranted = 0
	s.conn.pump()
	return nil, false, nil
}

// consume returns bytes to the receive window of the client, once they are a quarter of it. The caller must hold the
// connection's mutex.
func (s *Stream) consume(n int) {
	if s.window.consumed += n; s.half || s.dead || s.window.consumed < s.conn.server.cfg.Window/4 {
		return
	}
	s.conn.control = appendWindowUpdate(s.conn.control, s.id, s.window.consumed)
	s.window.receive += s.window.consumed
	s.window.consumed = 0
}

// closedLocked makes the receiver or the handler see the end of the stream, unless it has ended. The caller must hold
// the connection's mutex.
func (s *Stream) closedLocked(err error) {
	in := &s.inbox
	if in.lost == nil {
		in.lost = err
	}
	in.drop(s.conn)
	in.wake()
	s.startReceiving(false)
}
