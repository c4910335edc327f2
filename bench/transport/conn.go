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
	maxFrame      = 16 << 10 // of both ends: larger ones would not save much
	receiveWindow = 64 << 10 // of a stream, and of a connection
	hpackTable    = 4096
	keptControl   = 4 << 10 // a larger buffer of frames that wait is not kept
)

// A Conn is a connection.
type Conn struct {
	server *Server
	socket *net.TCPConn
	raw    syscall.RawConn
	tls    *tls.Conn             // nil is plaintext
	wire   *wire                 // below tls
	try    func(fd uintptr) bool // writeTo, made once

	// Owned by the goroutine that reads.
	in      input
	decoder *hpack.Decoder
	greeted bool   // the preface was read
	settled bool   // the first SETTINGS were read
	last    uint32 // highest stream of the client
	receive int    // bytes that the client may still send
	tokens  int    // frames without a request that the client may still send
	filled  time.Time

	// Guarded by mu.
	mu      sync.Mutex
	streams []*Stream // open ones, oldest first
	control bytes.Buffer
	writer  *http2.Framer // writes to control
	gone    []*Stream     // closed ones, of which the handler may have to be told
	ready   []*Stream     // those with frames that their own window may admit
	window  int64         // bytes that the connection may still send
	initial int64         // window of a new stream
	credit  int           // frames that the client may send in answer to DATA
	begun   bool          // the handshakes are over
	waiting bool          // a goroutine waits for the socket
	closing bool          // close once everything is written
	out     output        // belongs to the goroutine that waits, if there is one
	failed  error         // nothing can be written any more
}

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

// serve reads until the connection ends.
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

// handshake does the handshake of TLS.
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

// greet sends the server's preface.
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

// next handles the next frame.
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

// settle is called for the first frame, which has to be SETTINGS.
func (c *Conn) settle(f http2.Frame) error {
	if settings, is := f.(*http2.SettingsFrame); !is || settings.IsAck() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.settled = true
	return c.socket.SetReadDeadline(time.Time{})
}

// reset ends a stream by RST_STREAM.
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

// spend accounts for a frame that carries no request. Frames that answer DATA are free.
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

// end closes the connection and its streams, and says why by GOAWAY if the client broke a rule.
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
		_ = c.writer.WriteGoAway(c.last, code, nil) // to memory
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
		_ = c.socket.CloseWrite() // GOAWAY would be lost with what the client has sent and nobody reads
		_ = c.socket.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.CopyN(io.Discard, c.socket, 1<<20)
	}
	_ = c.socket.Close() // nothing depends on it
}

// goAway ends all streams, and closes the connection once that is written.
func (c *Conn) goAway() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		_ = c.socket.Close() // within a handshake
		return
	}
	_ = c.socket.SetReadDeadline(time.Now().Add(c.server.limits.Write)) // for the client to close
	_ = c.writer.WriteGoAway(maxWindow, http2.ErrCodeNo, nil)           // to memory
	for _, s := range c.streams {
		s.endLocked(Error{Code: unavailable, Message: "server is shutting down"})
	}
	c.closing = true
	c.pump()
}

// flush writes what windows and socket admit. Only the goroutine that reads may call it.
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
