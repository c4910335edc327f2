package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/net/http2"
)

// gRPC status codes.
const (
	statusOK          = 0
	unknown           = 2
	resourceExhausted = 8
	unimplemented     = 12
	internal          = 13
	unavailable       = 14
)

const prefixBytes = 5 // of each gRPC message: flag and length

// An Error ends a stream with a gRPC status.
type Error struct {
	Code    int
	Message string
}

// Error implements error.
func (e Error) Error() string { return fmt.Sprintf("status %d: %s", e.Code, e.Message) }

// A Stream is a gRPC call.
type Stream struct {
	conn *Conn
	id   uint32

	// Owned by the reading goroutine.
	receive int    // receive window, in bytes
	part    []byte // the start of an incomplete request, with its prefix
	charged int    // bytes of part that are charged to the server
	told    bool   // Handler.Closed was called, or Handler.Open was not

	// Guarded by the connection's mutex.
	queue   [][]byte // responses; streams share their bytes
	next    int      // index in queue of the next response
	sent    int      // bytes of the next response that were sent, including its prefix
	window  int64    // send window in bytes; below 0 after SETTINGS have reduced it
	ready   bool     // the stream is in conn.ready
	half    bool     // the client has ended its side
	trailer []byte   // encoded trailers, sent after the queue; nil before the stream ends
	dead    bool     // the stream is closed: it accepts and sends nothing
}

// Queue queues a response, which the connection sends before it waits for further requests, or in [Conn.SendAll]. Queue
// keeps the slice, which must not change. It returns false if the stream accepts no more responses.
func (s *Stream) Queue(response []byte) bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.queueLocked(response)
}

// Conn returns the connection of the stream.
func (s *Stream) Conn() *Conn { return s.conn }

// SendAll sends one response on several streams of the connection, with as few system calls as possible. It does not
// block. It keeps the slice response, which must not change.
func (c *Conn) SendAll(streams []*Stream, response []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range streams {
		s.queueLocked(response)
	}
	c.pump()
}

// queueLocked is Queue for callers that hold the connection's mutex. It resets the stream if the queue is full.
func (s *Stream) queueLocked(response []byte) bool {
	if s.dead || s.trailer != nil || s.conn.failed != nil {
		return false
	}
	if len(s.queue)-s.next >= s.conn.server.limits.QueuedMessages {
		s.abortLocked(http2.ErrCodeEnhanceYourCalm) // trailers cannot be sent within a message
		return false
	}
	if s.next > len(s.queue)/2 { // the queue is not empty, or pop would have reset next
		s.queue = slices.Delete(s.queue, 0, s.next)
		s.next = 0
	}
	s.queue = append(s.queue, response)
	s.readyLocked()
	return true
}

// readyLocked adds the stream to the ready streams of its connection. The caller must hold the connection's mutex.
func (s *Stream) readyLocked() {
	if !s.ready && !s.dead {
		s.ready = true
		s.conn.ready = append(s.conn.ready, s)
	}
}

// pending reports whether responses are queued.
func (s *Stream) pending() bool { return s.next < len(s.queue) }

// pop removes the next response, which was sent completely.
func (s *Stream) pop() {
	s.queue[s.next], s.sent = nil, 0
	if s.next++; s.next < len(s.queue) {
		return
	}
	s.queue, s.next = s.queue[:0], 0
	if cap(s.queue) > keptStreams {
		s.queue = nil
	}
}

// abortLocked resets and closes the stream. The caller must hold the connection's mutex.
func (s *Stream) abortLocked(code http2.ErrCode) {
	_ = s.conn.writer.WriteRSTStream(s.id, code) // writes to memory do not fail
	s.removeLocked()
}

// removeLocked closes the stream. The reading goroutine calls Handler.Closed later.
func (s *Stream) removeLocked() {
	if s.dead {
		return
	}
	s.dead, s.queue, s.next = true, nil, 0
	s.conn.gone = append(s.conn.gone, s)
	s.conn.streams = slices.DeleteFunc(s.conn.streams, func(other *Stream) bool { return other == s })
}

// close closes the stream and calls Handler.Closed. Only the reading goroutine may call it.
func (s *Stream) close() {
	s.conn.mu.Lock()
	s.removeLocked()
	s.conn.mu.Unlock()
	s.discard()
	s.tell()
}

// tell calls Handler.Closed, unless it was called before. Only the reading goroutine may call it.
func (s *Stream) tell() {
	if !s.told {
		s.told = true
		s.conn.server.handler.Closed(s)
	}
}

// end ends the stream with the status of err, after the queued responses are sent. Only the reading goroutine may call
// it.
func (s *Stream) end(err error) {
	s.discard()
	s.conn.mu.Lock()
	s.endLocked(err)
	s.conn.mu.Unlock()
	s.tell()
}

// endLocked queues the trailers with the status of err; nil is OK. The caller must hold the connection's mutex.
func (s *Stream) endLocked(err error) {
	if s.trailer != nil || s.dead {
		return
	}
	e := Error{Code: statusOK}
	if err != nil && !errors.As(err, &e) {
		e = Error{Code: unknown, Message: err.Error()}
	}
	s.trailer = trailers(e)
	s.readyLocked()
}

// take assembles requests from the content of DATA frames, and passes them to the handler.
func (s *Stream) take(data []byte) error {
	for len(data) > 0 {
		if len(s.part) == 0 {
			n, err := s.length(data)
			if err != nil {
				return err
			}
			if n > 0 && len(data) >= n { // complete: no copy
				if err := s.conn.server.handler.Message(s, data[prefixBytes:n]); err != nil {
					return err
				}
				data = data[n:]
				continue
			}
		}
		rest, err := s.keep(data)
		if err != nil {
			return err
		}
		data = rest
	}
	return nil
}

// keep appends data to the incomplete request, up to its end, and returns the rest. It passes a complete request to the
// handler.
func (s *Stream) keep(data []byte) (rest []byte, err error) {
	want := prefixBytes
	if len(s.part) >= prefixBytes {
		if want, err = s.length(s.part); err != nil {
			return nil, err
		}
	}
	n := min(want-len(s.part), len(data))
	if !s.conn.server.charge(n) {
		return nil, Error{resourceExhausted, "too many bytes of incomplete requests"}
	}
	s.charged += n
	s.part = append(s.part, data[:n]...)
	if want, err = s.length(s.part); err != nil || want == 0 || len(s.part) < want {
		return data[n:], err
	}
	err = s.conn.server.handler.Message(s, s.part[prefixBytes:])
	s.discard()
	return data[n:], err
}

// length returns the length of the request that b starts with, including its prefix, or 0 if b is shorter than a
// prefix. Errors: the request is compressed or exceeds the limit.
func (s *Stream) length(b []byte) (int, error) {
	if len(b) < prefixBytes {
		return 0, nil
	}
	if b[0] != 0 {
		return 0, Error{unimplemented, "compressed requests are not supported"}
	}
	n := binary.BigEndian.Uint32(b[1:])
	if int64(n) > int64(s.conn.server.limits.MessageBytes) {
		return 0, Error{resourceExhausted, fmt.Sprintf("request of %d bytes, more than %d", n, s.conn.server.limits.MessageBytes)}
	}
	return prefixBytes + int(n), nil
}

// discard drops the incomplete request, and releases its bytes.
func (s *Stream) discard() {
	s.conn.server.release(s.charged)
	s.part, s.charged = nil, 0
}
