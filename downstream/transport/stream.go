package transport

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
)

const (
	prefixBytes = 5 // of each gRPC message: flag and length

	// queuedBytes is the number of unsent bytes of a stream from which on SendMsg blocks, as in grpc-go.
	queuedBytes = 64 << 10

	keptMessages = 1 // capacity above which an empty queue is freed
)

// errLost ends a stream whose client has reset it or has disconnected. grpc-go reports the same.
var errLost = status.Error(codes.Canceled, context.Canceled.Error())

// A Stream is a gRPC call. Its methods may be called from any goroutine.
type Stream struct {
	// Read-only after the stream was opened.
	conn     *Conn
	id       uint32
	ctx      context.Context
	cancel   context.CancelFunc
	timer    *time.Timer // of grpc-timeout; nil if there is none
	receiver Receiver    // nil for a stream of an http.Handler
	status   int         // the HTTP status of a request that is not one of gRPC; 0 for others

	acceptsGzip bool // the client accepts messages that are compressed with gzip

	// Written by the reading goroutine with the connection's mutex.
	half bool // the client has ended its side

	// Guarded by the connection's mutex.
	window  windows
	inbox   inbox
	header  []string      // fields that follow the first ones of the response; alternates names and values
	headers bool          // the headers were sent
	queue   []message     // messages that are not sent completely
	next    int           // index in queue of the first of them
	unsent  int           // bytes in queue
	cursor  cursor        // in the first message
	room    chan struct{} // closed once SendMsg need not block; nil if no goroutine waits
	trailer []byte        // frames sent after the queue; nil before the stream ends
	ready   bool          // the stream is in conn.ready
	over    bool          // the handler has returned, so that nothing may wait for the client
	ended   bool          // End was called, or the http.Handler has returned
	dead    bool          // the stream is closed: it sends nothing
}

// windows are the flow-control windows of a stream, in bytes.
type windows struct {
	send     int64 // below 0 after SETTINGS have reduced it
	receive  int
	consumed int // not yet returned to the client by a WINDOW_UPDATE
}

// A message waits to be sent. Streams share its bytes.
type message struct {
	data     mem.BufferSlice
	tail     []byte // follows data
	size     int
	prefixed bool // the prefix of a gRPC message precedes data
	gzip     bool // the message is compressed
}

// length returns the number of bytes including the prefix.
func (m *message) length() int {
	if m.prefixed {
		return prefixBytes + m.size
	}
	return m.size
}

// Context returns the context of the stream, with the peer and the metadata as in grpc-go. It ends with the stream.
func (s *Stream) Context() context.Context { return s.ctx }

var errHeadersSent = errors.New("the headers were sent before")

// SetHeader adds to the metadata that is sent with the first response or by SendHeader.
func (s *Stream) SetHeader(md metadata.MD) error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.setHeaderLocked(md)
}

func (s *Stream) setHeaderLocked(md metadata.MD) error {
	switch {
	case s.headers:
		return status.Error(codes.Internal, errHeadersSent.Error())
	case s.dead:
		return errLost
	default:
		s.header = append(s.header, encodeMetadata(md)...)
		return nil
	}
}

// SendHeader sends the metadata immediately.
func (s *Stream) SendHeader(md metadata.MD) error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if err := s.setHeaderLocked(md); err != nil {
		return err
	}
	s.writeHeaders(responseHeaders)
	s.conn.pump()
	return nil
}

// writeHeaders queues the headers, which begin with a block. The caller must hold the connection's mutex.
func (s *Stream) writeHeaders(block []byte) {
	if s.headers {
		return
	}
	s.headers = true
	if len(s.header) > 0 {
		block = encodeFields(block[:len(block):len(block)], s.header...)
		s.header = nil
	}
	s.conn.control = appendBlock(s.conn.control, block, 0, s.id)
	s.conn.sent = true
}

// SendMsg queues a message that [wire.Codec] can encode. Flush or the next write of the connection sends it. SendMsg
// blocks while queuedBytes or more of the stream are unsent. The error is a gRPC status.
func (s *Stream) SendMsg(m any) error {
	encoded, err := encode(m)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	encoded.prefixed = true
	encoded.size = encoded.data.Len() + len(encoded.tail)
	return s.send(encoded, true)
}

// encode encodes the content of a message.
func encode(m any) (encoded message, err error) {
	r, ok := m.(*wire.Response)
	switch {
	case !ok:
		encoded.data, err = wire.Codec{}.Marshal(m)
	case r.Gzip:
		encoded.data, encoded.gzip = r.AppendGzip(nil), true
	default:
		encoded.data, encoded.tail = r.Encode()
	}
	return encoded, err
}

// Compress reports whether the client accepts messages that are compressed with gzip. If so, it says in the headers that
// messages may be. It must be called before the first message.
func (s *Stream) Compress() bool {
	return s.acceptsGzip && s.SetHeader(metadata.Pairs("grpc-encoding", gzip.Name)) == nil
}

// send queues a message. With wait it blocks as SendMsg does.
func (s *Stream) send(m message, wait bool) error {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for wait && s.blocked() {
		if s.over {
			return errLost
		}
		if err := s.awaitRoom(); err != nil {
			return err
		}
	}
	if s.dead || s.trailer != nil || c.failed != nil {
		return errLost
	}
	s.writeHeaders(responseHeaders)
	s.push(m)
	return nil
}

// blocked reports whether send must wait for the client. The caller must hold the connection's mutex.
func (s *Stream) blocked() bool { return s.unsent >= queuedBytes && !s.dead && s.conn.failed == nil }

// awaitRoom waits until send may be possible. The caller must hold the connection's mutex, which awaitRoom releases
// meanwhile.
func (s *Stream) awaitRoom() error {
	c := s.conn
	if c.pump(); !s.blocked() {
		return nil
	}
	if s.room == nil {
		s.room = make(chan struct{})
	}
	room := s.room
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case <-room:
		return nil
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

// Flush writes what the windows and the socket accept. It does not block.
func (s *Stream) Flush() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.conn.pump()
}

// End ends the stream with a status, after the queued messages. It must be called once for each stream with a Receiver.
func (s *Stream) End(err error) {
	c := s.conn
	c.mu.Lock()
	s.endLocked(statusFields(err))
	c.pump()
	c.mu.Unlock()
	s.cancel()
}

// endLocked queues the trailers. The caller must hold the connection's mutex.
func (s *Stream) endLocked(fields []string) {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.ended = true
	s.conn.live--
	s.inbox.drop(s.conn)
	if s.dead {
		return
	}
	var block []byte
	if !s.headers { // only trailers, in one frame
		s.headers = true
		begin := slices.Clone(responseFields)
		if s.status != 0 {
			begin[1] = strconv.Itoa(s.status)
		}
		block = encodeFields(nil, append(begin, s.header...)...)
	}
	s.trailer = appendBlock(nil, encodeFields(block, fields...), http2.FlagHeadersEndStream, s.id)
	s.readyLocked()
}

// push adds a message to the queue. The caller must hold the connection's mutex.
func (s *Stream) push(m message) {
	if s.next > len(s.queue)/2 { // the queue is not empty, or pop would have reset next
		n := copy(s.queue, s.queue[s.next:])
		clear(s.queue[n:])
		s.queue, s.next = s.queue[:n], 0
	}
	s.queue = append(s.queue, m)
	s.unsent += m.length()
	s.readyLocked()
}

// pop removes the first message, which was sent completely.
func (s *Stream) pop() {
	s.queue[s.next], s.cursor = message{}, cursor{}
	if s.next++; s.next < len(s.queue) {
		return
	}
	if s.queue, s.next = s.queue[:0], 0; cap(s.queue) > keptMessages {
		s.queue = nil
	}
}

// pending reports whether messages are queued.
func (s *Stream) pending() bool { return s.next < len(s.queue) }

// readyLocked adds the stream to the ready streams of its connection. The caller must hold the connection's mutex.
func (s *Stream) readyLocked() {
	if !s.ready && !s.dead {
		s.ready = true
		s.conn.ready = append(s.conn.ready, s)
	}
}

// widened makes the stream ready if its window admits a frame again. The caller must hold the connection's mutex.
func (s *Stream) widened() {
	if s.window.send > 0 && s.pending() {
		s.readyLocked()
	}
}

// wakeSender wakes the goroutine that waits in send, if it need not wait. The caller must hold the connection's mutex.
func (s *Stream) wakeSender() {
	if s.room != nil && (s.dead || s.over || s.unsent < queuedBytes) {
		close(s.room)
		s.room = nil
	}
}

// abortLocked resets the stream. The caller must hold the connection's mutex.
func (s *Stream) abortLocked(code http2.ErrCode) {
	s.conn.control = appendReset(s.conn.control, s.id, code)
	s.conn.rememberEnded(s.id)
	s.lostLocked(errLost)
}

// lostLocked closes a stream that was reset, or whose connection has ended. The caller must hold the connection's
// mutex.
func (s *Stream) lostLocked(err error) {
	s.removeLocked()
	s.closedLocked(err)
	s.cancel()
}

// removeLocked closes the sending side. The caller must hold the connection's mutex.
func (s *Stream) removeLocked() {
	if s.dead {
		return
	}
	s.dead, s.queue, s.next, s.unsent, s.trailer = true, nil, 0, 0, nil
	c := s.conn
	if at, found := c.position(s.id); found {
		copy(c.streams[at:], c.streams[at+1:])
		c.streams[len(c.streams)-1] = nil
		if c.streams = c.streams[:len(c.streams)-1]; len(c.streams) == 0 {
			c.streams = nil
		}
	}
	s.wakeSender()
}

// rememberEnded records that the server has ended a stream before its client did. The caller must hold mu.
func (c *Conn) rememberEnded(id uint32) {
	c.ended[c.endedAt%keptEnded] = id
	c.endedAt++
}
