package transport

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	defaultWindow = 65535
	maxWindow     = 1<<31 - 1
	maxFrame      = 16 << 10 // in both directions; larger frames would save little
	receiveWindow = 64 << 10 // of each stream and each connection, in bytes
	hpackTable    = 4096
	keptControl   = 4 << 10 // capacity above which an empty control buffer is freed
)

// A Conn is a connection of a [Server].
type Conn struct {
	server *Server
	socket *net.TCPConn
	raw    syscall.RawConn
	tls    *tls.Conn             // nil for plaintext
	wire   *wire                 // below tls
	try    func(fd uintptr) bool // the method value writeTo, to allocate it only once

	// Owned by the reading goroutine.
	in      input
	decoder *hpack.Decoder
	greeted bool      // the preface was read
	settled bool      // the first SETTINGS were read
	last    uint32    // highest stream ID of the client
	receive int       // receive window of the connection, in bytes
	tokens  int       // frames without a request that the client may still send
	filled  time.Time // last refill of tokens

	// Guarded by mu.
	mu      sync.Mutex
	streams []*Stream     // open ones, oldest first
	control bytes.Buffer  // frames other than DATA that wait for the socket
	writer  *http2.Framer // writes to control
	gone    []*Stream     // closed streams for which Handler.Closed may be pending
	ready   []*Stream     // streams with frames that their own window may admit
	window  int64         // send window of the connection, in bytes
	initial int64         // send window of a new stream, in bytes
	credit  int           // free frames that the client may send in response to DATA
	begun   bool          // the TLS handshake is done and the preface was read
	waiting bool          // a goroutine waits for the socket
	closing bool          // close the connection once everything is written
	out     output        // owned by the waiting goroutine while waiting is set
	failed  error         // why nothing can be written any more; nil before that
}

// newConn returns a connection on an accepted socket. The caller must call serve, which closes it.
func newConn(s *Server, socket *net.TCPConn) (*Conn, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	c := &Conn{
		server: s, socket: socket, raw: raw, receive: receiveWindow, window: defaultWindow, initial: defaultWindow,
		tokens: s.limits.FrameBurst, filled: time.Now(), decoder: hpack.NewDecoder(hpackTable, nil),
	}
	c.writer = http2.NewFramer(&c.control, nil)
	c.try = c.writeTo
	return c, nil
}

// serve reads until the connection ends, and then closes it.
func (c *Conn) serve() {
	err := c.socket.SetDeadline(time.Now().Add(c.server.limits.Handshake))
	switch {
	case err != nil:
	case c.server.tls == nil:
		if err = c.raw.Read(c.readAll); err == nil {
			err = c.in.err
		}
	default:
		if err = c.handshake(); err == nil {
			err = c.readTLS()
		}
	}
	c.end(err)
}

// handshake performs the TLS handshake. Errors: the client does not negotiate h2.
func (c *Conn) handshake() error {
	c.wire = &wire{TCPConn: c.socket}
	c.tls = tls.Server(c.wire, c.server.tls)
	if err := c.tls.Handshake(); err != nil {
		return err
	}
	if p := c.tls.ConnectionState().NegotiatedProtocol; p != http2.NextProtoTLS {
		return fmt.Errorf("ALPN negotiated %q, not h2", p)
	}
	c.wire.held = true
	return nil
}

// greet queues the server's preface: SETTINGS, and the receive window of the connection.
func (c *Conn) greet() error {
	if err := c.socket.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = true
	return errors.Join(c.writer.WriteSettings(
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(c.server.limits.Streams)},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: receiveWindow},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: c.server.limits.HeaderListBytes},
	), c.writer.WriteWindowUpdate(0, receiveWindow-defaultWindow))
}

// next handles the frame in p. It resets the stream for stream errors, and returns connection errors.
func (c *Conn) next(p *parser) error {
	p.frames.ReadMetaHeaders, p.frames.MaxHeaderListSize = c.decoder, c.server.limits.HeaderListBytes
	f, err := p.frames.ReadFrame()
	if err == nil && !c.settled {
		err = c.settle(f)
	}
	if err == nil {
		err = c.handle(f)
	}
	if err == nil {
		return nil
	}
	var stream http2.StreamError
	if errors.As(err, &stream) {
		return c.reset(stream)
	}
	return err
}

// settle checks the first frame, which must be SETTINGS, and clears the timeout of the handshake.
func (c *Conn) settle(f http2.Frame) error {
	if settings, is := f.(*http2.SettingsFrame); !is || settings.IsAck() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.settled = true
	return c.socket.SetReadDeadline(time.Time{})
}

// reset ends a stream with RST_STREAM.
func (c *Conn) reset(e http2.StreamError) error {
	if err := c.spend(); err != nil {
		return err
	}
	s := c.stream(e.StreamID)
	c.mu.Lock()
	err := c.writer.WriteRSTStream(e.StreamID, e.Code)
	c.mu.Unlock()
	if s != nil {
		s.close()
	}
	return err
}

// spend charges a frame without a request to the rate limit. Frames in response to DATA, such as WINDOW_UPDATE, are
// free.
func (c *Conn) spend() error {
	if c.tokens > 0 {
		c.tokens--
		return nil
	}
	c.mu.Lock()
	c.tokens, c.credit = min(c.credit, c.server.limits.FrameBurst), 0
	c.mu.Unlock()
	now := time.Now()
	c.tokens += min(int(now.Sub(c.filled).Seconds()*float64(c.server.limits.FrameRate)), c.server.limits.FrameBurst)
	c.filled = now
	if c.tokens == 0 {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.tokens--
	return nil
}

// end closes the connection and its streams. It first sends GOAWAY with the error code if the client violated the
// protocol or a limit.
func (c *Conn) end(err error) {
	code, broken := http2.ErrCodeNo, true
	var connection http2.ConnectionError
	switch {
	case errors.As(err, &connection):
		code = http2.ErrCode(connection)
	case errors.Is(err, http2.ErrFrameTooLarge):
		code = http2.ErrCodeFrameSize
	default:
		broken = false
	}
	c.mu.Lock()
	if broken && c.begun {
		_ = c.writer.WriteGoAway(c.last, code, nil) // writes to memory do not fail
		c.pump()
	}
	if c.failed == nil {
		c.failed = net.ErrClosed
	}
	streams := append(slices.Clone(c.streams), c.gone...)
	c.mu.Unlock()
	for _, s := range streams {
		s.close()
	}
	if broken {
		_ = c.socket.CloseWrite() // closing with unread input would reset the connection and lose GOAWAY
		_ = c.socket.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.CopyN(io.Discard, c.socket, 1<<20)
	}
	_ = c.socket.Close() // an error has no consequence here
}

// goAway sends GOAWAY, ends all streams, and closes the connection once everything is written.
func (c *Conn) goAway() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		_ = c.socket.Close() // the handshake is not done
		return
	}
	_ = c.socket.SetReadDeadline(time.Now().Add(c.server.limits.Write)) // timeout for the client to close
	_ = c.writer.WriteGoAway(maxWindow, http2.ErrCodeNo, nil)           // writes to memory do not fail
	for _, s := range c.streams {
		s.endLocked(Error{Code: unavailable, Message: "server is shutting down"})
	}
	c.closing = true
	c.pump()
}

// flush writes as many frames as the windows and the socket accept, and calls Handler.Closed for closed streams. Only
// the reading goroutine may call it.
func (c *Conn) flush() error {
	c.mu.Lock()
	c.pump()
	gone, err := c.gone, c.failed
	c.gone = nil
	c.mu.Unlock()
	for _, s := range gone {
		s.discard()
		s.tell()
	}
	return err
}

// stream returns an open stream, or nil.
func (c *Conn) stream(id uint32) *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		if s.id == id {
			return s
		}
	}
	return nil
}
