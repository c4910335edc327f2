// Package transport is an experiment: a server transport of HTTP/2 and gRPC for one purpose, long-lived ADS streams.
//
// A connection has one goroutine, which reads. It holds no read buffer while it waits. Writers write to the socket
// themselves, without blocking. Only while a socket accepts no more does the connection have a second goroutine, which
// waits for it. Responses are bytes that all streams share; a stream's queue has references to them, and frame headers
// are made when a window admits the frame.
//
// The product does not use it.
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

// A Handler serves the streams of a [Server]. The goroutine of the stream's connection calls it, so calls for one
// connection do not overlap.
type Handler interface {
	// Open is called for a new stream. An error ends the stream.
	Open(s *Stream, path string) error

	// Message is called for each request, which is valid until Message returns. An error ends the stream.
	Message(s *Stream, request []byte) error

	// Closed is called once for each opened stream, when it takes no more responses.
	Closed(s *Stream)
}

// Limits are the bounds of a [Server]. All are checked where bytes are read, before anything is allocated for them.
type Limits struct {
	Connections     int           // open connections; more are closed at once
	Streams         int           // open streams of a connection; more are refused
	MessageBytes    int           // length of a request
	BufferedBytes   int64         // incomplete requests of all connections
	HeaderListBytes uint32        // decoded header fields of a stream
	FrameBurst      int           // frames of a connection that carry no request, at once
	FrameRate       int           // the same, per second
	QueuedMessages  int           // responses that wait for the windows of a stream
	ControlBytes    int           // frames other than DATA that wait for a socket
	Handshake       time.Duration // from the connection until its first SETTINGS
	Write           time.Duration // for a socket to accept the next bytes
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
	tls      *tls.Config // nil is plaintext
	buffered atomic.Int64

	// Guarded by mu.
	mu     sync.Mutex
	conns  map[*Conn]struct{}
	closed bool
}

// New returns a server. Its TLS configuration must offer h2 by ALPN; nil is plaintext.
func New(h Handler, l Limits, config *tls.Config) *Server {
	if config != nil {
		config = config.Clone()
		config.DynamicRecordSizingDisabled = true // small first records would cost encryption, and save no delay
	}
	return &Server{handler: h, limits: l, tls: config, conns: map[*Conn]struct{}{}}
}

// Serve accepts connections until the listener fails.
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
			_ = socket.Close() // it is refused
			continue
		}
		go func() {
			c.serve()
			s.remove(c)
		}()
	}
}

// Close sends GOAWAY on all connections, and ends their streams.
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

// charge accounts for n more bytes of incomplete requests, and reports whether the limit admits them.
func (s *Server) charge(n int) bool {
	if s.buffered.Add(int64(n)) <= s.limits.BufferedBytes {
		return true
	}
	s.buffered.Add(-int64(n))
	return false
}

func (s *Server) release(n int) { s.buffered.Add(-int64(n)) }
