package transport

import (
	"encoding/binary"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// offeredBytes is the maximum size of a request that the reading goroutine offers to the receiver: most ACKs.
const offeredBytes = 4 << 10

// An inbox has the requests of a stream that were not handled yet. It is guarded by the connection's mutex.
type inbox struct {
	bytes     []byte        // content of DATA frames, with the prefixes of messages; charged to the account
	ungranted int           // how many of the last bytes count against the receive window still
	receiving bool          // a goroutine receives, or the reading goroutine is in Receiver.Offer
	lost      error         // why the stream ended before its requests; nil if it has not
	arrived   chan struct{} // closed when bytes, half or lost change; nil if no handler waits
}

// drop discards the requests, and releases their bytes.
func (in *inbox) drop(c *Conn) {
	c.entry.Account.Release(len(in.bytes))
	in.bytes, in.ungranted = nil, 0
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
		return c.reject(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	in := &s.inbox
	left := false
	for s.receiver != nil && !s.ended && !in.receiving && len(in.bytes) == 0 && !left {
		n := c.offerable(data)
		if n == 0 {
			break
		}
		in.receiving = true
		c.mu.Unlock()
		left = !s.receiver.Offer(data[prefixBytes:n])
		c.mu.Lock()
		in.receiving = left
		data = data[n:]
		s.consume(n)
	}
	s.half = s.half || ended
	if s.ended || s.dead {
		c.entry.Account.Release(len(data))
		s.consume(len(data))
	} else {
		in.bytes = append(in.bytes, data...)
		in.ungranted += len(data)
		in.wake()
	}
	s.startReceiving(left)
	return nil
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
// rejects it. The caller must hold the connection's mutex.
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
		if in.bytes = in.bytes[n:]; len(in.bytes) == 0 {
			in.bytes = nil
		}
		if granted := in.ungranted - len(in.bytes); granted > 0 {
			s.consume(granted)
			in.ungranted -= granted
			s.conn.pump()
		}
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
