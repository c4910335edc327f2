// Package transport is an experiment: an HTTP/2 and gRPC server transport that is specialized for long-lived ADS
// streams.
//
// Each connection has one goroutine, which reads; it holds no read buffer while it waits. Goroutines that send write to
// the socket themselves, without blocking. While a socket accepts no more bytes, its connection has a second goroutine,
// which waits for the socket. Streams share the bytes of responses: the queue of a stream holds references, and frame
// headers are created when a flow-control window admits the frame.
//
// Tender does not use this package; bench compares it with grpc-go.
package transport

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A Handler serves the streams of a [Server]. The reading goroutine of a connection calls it, so calls for one
// connection do not overlap. Calls for different connections do.
type Handler interface {
	// Open is called for a new stream. path is the gRPC method. An error ends the stream.
	Open(s *Stream, path string) error

	// Message is called for each request. The request is valid until Message returns. An error ends the stream.
	Message(s *Stream, request []byte) error

	// Closed is called once for each opened stream, when it accepts no more responses.
	Closed(s *Stream)
}

// Limits are the limits of a [Server]. Each is checked before memory is allocated for the limited input.
type Limits struct {
	Connections     int           // open connections; further ones are closed at once
	Streams         int           // open streams per connection; further ones are refused
	MessageBytes    int           // length of a request in bytes
	BufferedBytes   int64         // total bytes of incomplete requests on all connections
	HeaderListBytes uint32        // decoded header fields of a stream, in bytes
	FrameBurst      int           // burst of frames without a request, per connection
	FrameRate       int           // frames without a request per second, per connection
	QueuedMessages  int           // queued responses per stream
	ControlBytes    int           // bytes of frames other than DATA that wait for the socket, per connection
	Handshake       time.Duration // timeout from the connection until the first SETTINGS
	Write           time.Duration // timeout until the socket accepts further bytes
}

// DefaultLimits returns the limits that the benchmarks and tests use.
func DefaultLimits() Limits {
	return Limits{
		Connections: 20_000, Streams: 100, MessageBytes: 16 << 20, BufferedBytes: 256 << 20, HeaderListBytes: 16 << 10,
		FrameBurst: 2000, FrameRate: 200, QueuedMessages: 1000, ControlBytes: 64 << 10,
		Handshake: 10 * time.Second, Write: 30 * time.Second,
	}
}

// A Server serves ADS streams.
type Server struct {
	handler  Handler
	limits   Limits
	tls      *tls.Config  // nil for plaintext
	buffered atomic.Int64 // bytes of incomplete requests on all connections

	// Guarded by mu.
	mu     sync.Mutex
	conns  map[*Conn]struct{}
	closed bool
}

// New returns a server. config must offer h2 by ALPN; nil means plaintext.
func New(h Handler, l Limits, config *tls.Config) *Server {
	if config != nil {
		config = config.Clone()
		config.DynamicRecordSizingDisabled = true // small first records cost CPU time and do not reduce the delay
	}
	return &Server{handler: h, limits: l, tls: config, conns: map[*Conn]struct{}{}}
}

// Serve accepts connections until the listener fails, and returns that error. The listener must be a TCP listener.
func (s *Server) Serve(l net.Listener) error {
	for {
		accepted, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		socket, ok := accepted.(*net.TCPConn)
		if !ok {
			return errors.Join(fmt.Errorf("accept %T: not a TCP connection", accepted), accepted.Close())
		}
		c, err := newConn(s, socket)
		if err != nil || !s.add(c) {
			_ = socket.Close() // the connection is rejected
			continue
		}
		go func() {
			c.serve()
			s.remove(c)
		}()
	}
}

// Close sends GOAWAY on all connections and ends their streams. It does not close the listener, and does not wait.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	conns := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.goAway()
	}
}

// add registers a connection, and reports whether the limit admits it.
func (s *Server) add(c *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= s.limits.Connections {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// charge adds n bytes of incomplete requests, and reports whether the limit admits them. The caller must release them.
func (s *Server) charge(n int) bool {
	if s.buffered.Add(int64(n)) <= s.limits.BufferedBytes {
		return true
	}
	s.buffered.Add(-int64(n))
	return false
}

// release subtracts n bytes that charge has added.
func (s *Server) release(n int) { s.buffered.Add(-int64(n)) }
