package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/net/http2"
)

// Status codes of gRPC.
const (
	statusOK          = 0
	unknown           = 2
	resourceExhausted = 8
	unimplemented     = 12
	internal          = 13
	unavailable       = 14
)

const prefixBytes = 5 // before each message of gRPC

// An Error ends a stream with a status of gRPC.
type Error struct {
	Code    int
	Message string
}

// Error implements error.
func (e Error) Error() string { return fmt.Sprintf("status %d: %s", e.Code, e.Message) }

// A Stream is a call.
type Stream struct {
	conn *Conn
	id   uint32

	// Owned by the goroutine that reads.
	receive int    // bytes that the client may still send
	part    []byte // the start of a request, with its prefix
	charged int    // bytes of part
	told    bool   // the handler was told that the stream has closed, or never of the stream

	// Guarded by the connection's mutex.
	queue   [][]byte // responses, which streams share
	next    int      // of queue
	sent    int      // bytes of the next response with its prefix
	window  int64    // bytes that the stream may still send; below 0 after a change of settings
	ready   bool     // in the connection's ready
	half    bool     // the client has ended its side
	trailer []byte   // encoded fields, to be sent after the queue; nil before the stream ends
	dead    bool     // takes and sends nothing any more
}

// Queue queues a response without sending it: the connection does that before it waits for requests, and [SendAll] does.
// It keeps the bytes, which must not change. It reports whether the stream takes responses.
func (s *Stream) Queue(response []byte) bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.queueLocked(response)
}

// Conn returns the connection of the stream.
func (s *Stream) Conn() *Conn { return s.conn }

// SendAll sends one response to streams of one connection, with as few calls as possible.
func (c *Conn) SendAll(streams []*Stream, response []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range streams {
		s.queueLocked(response)
	}
	c.pump()
}

func (s *Stream) queueLocked(response []byte) bool {
	if s.dead || s.trailer != nil || s.conn.failed != nil {
		return false
	}
	if len(s.queue)-s.next >= s.conn.server.limits.QueuedMessages {
		s.abortLocked(http2.ErrCodeEnhanceYourCalm) // within a message there can be no trailers
		return false
	}
	if s.next > len(s.queue)/2 { // not empty: pop would have reset it
		s.queue = slices.Delete(s.queue, 0, s.next)
		s.next = 0
	}
	s.queue = append(s.queue, response)
	s.readyLocked()
	return true
}

func (s *Stream) readyLocked() {
	if !s.ready && !s.dead {
		s.ready = true
		s.conn.ready = append(s.conn.ready, s)
	}
}

// pending reports whether responses wait.
func (s *Stream) pending() bool { return s.next < len(s.queue) }

// pop removes the response that was sent.
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

func (s *Stream) abortLocked(code http2.ErrCode) {
	_ = s.conn.writer.WriteRSTStream(s.id, code) // to memory
	s.removeLocked()
}

func (s *Stream) removeLocked() {
	if s.dead {
		return
	}
	s.dead, s.queue, s.next = true, nil, 0
	s.conn.gone = append(s.conn.gone, s)
	s.conn.streams = slices.DeleteFunc(s.conn.streams, func(other *Stream) bool { return other == s })
}

// close forgets the stream, and tells the handler. Only the goroutine that reads may call it.
func (s *Stream) close() {
	s.conn.mu.Lock()
	s.removeLocked()
	s.conn.mu.Unlock()
	s.discard()
	s.tell()
}

func (s *Stream) tell() {
	if !s.told {
		s.told = true
		s.conn.server.handler.Closed(s)
	}
}

// end ends the stream with trailers, once everything before them is sent.
func (s *Stream) end(err error) {
	s.discard()
	s.conn.mu.Lock()
	s.endLocked(err)
	s.conn.mu.Unlock()
	s.tell()
}

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

// take puts requests together from DATA.
func (s *Stream) take(data []byte) error {
	for len(data) > 0 {
		if len(s.part) == 0 {
			n, err := s.length(data)
			if err != nil {
				return err
			}
			if n > 0 && len(data) >= n { // in place
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

// keep adds the bytes of one request to its part, and returns the others.
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

// length returns the length of the request that b starts with, with its prefix; 0 if b has less than that.
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

// discard drops the incomplete request.
func (s *Stream) discard() {
	s.conn.server.release(s.charged)
	s.part, s.charged = nil, 0
}
