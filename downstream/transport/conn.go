package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/peer"

	"github.com/xdstender/tender/downstream/guard"
)

const (
	defaultWindow = 65535
	maxWindow     = 1<<31 - 1
	maxFrame      = 16 << 10 // in both directions; larger frames would save little
	hpackTable    = 4096
	controlBytes  = 64 << 10 // of frames other than DATA that may wait for the socket, before the connection is closed
	keptControl   = 1 << 10  // capacity above which an empty buffer of such frames is freed
	lingerTimeout = time.Second
	lingerBytes   = 1 << 20
	keptEnded     = 16
)

// A Conn is a connection of a [Server].
type Conn struct {
	server *Server
	socket socket

	// Set by the reading goroutine before it processes frames, read-only afterwards.
	entry  guard.Entry
	peer   *peer.Peer
	ctx    context.Context // has the peer; streams derive theirs from it
	wire   *lower          // below TLS; nil for plaintext
	began  time.Time
	pinged atomic.Bool  // nothing was received since a PING was sent
	heard  atomic.Int64 // when bytes were last received, in nanoseconds since began

	// Owned by the reading goroutine.
	in       input
	decoder  *hpack.Decoder
	greeted  bool // the preface was read
	settled  bool // the first SETTINGS were read
	receive  int  // receive window of the connection, in bytes
	pings    pingLimit
	deadline bool // reads have a deadline, since a frame is incomplete

	// Guarded by mu.
	mu       sync.Mutex
	streams  []*Stream // open ones, by ID
	live     int       // streams whose Receiver or Handler has not ended
	last     uint32    // highest stream ID of the client
	ended    [keptEnded]uint32
	endedAt  int           // in ended, which has the last streams that the server ended before their clients did
	control  []byte        // frames other than DATA that wait for the socket
	ready    []*Stream     // streams with frames that their own window may admit
	window   int64         // send window of the connection, in bytes
	initial  int64         // send window of a new stream, in bytes
	sent     bool          // HEADERS or DATA were sent since the client's last PING
	begun    bool          // the preface was read
	waiting  bool          // a goroutine waits for the socket
	written  chan struct{} // closed when that goroutine ends; nil if nothing waits for it
	leaving  leaving       // whether the connection accepts streams
	finished bool          // everything was written, and the sending side is closed
	failed   error         // why nothing can be written any more; nil before that
	timers   timers
}

// newConn returns a connection on an accepted socket. The caller must call start, and then serve, which closes it.
func newConn(s *Server, conn net.Conn) *Conn {
	return &Conn{
		server: s, socket: newSocket(conn), receive: defaultWindow, window: defaultWindow, initial: defaultWindow,
		decoder: hpack.NewDecoder(hpackTable, nil),
	}
}

// start performs the handshake. It reports whether serve must follow.
func (c *Conn) start() bool {
	err := c.socket.SetDeadline(time.Now().Add(c.server.cfg.Handshake))
	if err == nil {
		err = c.handshake()
	}
	if err != nil {
		_ = c.socket.Close() // the guard has logged the error
	}
	return err == nil
}

// serve reads until the connection ends, and then closes it.
func (c *Conn) serve() { c.end(c.read()) }

// handshake makes the guard admit the connection and perform the TLS handshake.
func (c *Conn) handshake() (err error) {
	raw := net.Conn(c.socket.Conn)
	if c.server.secure() {
		c.wire = &lower{Conn: raw}
		raw = c.wire
	}
	if c.entry, err = c.server.cfg.Guard.Handshake(raw, c.server.cfg.Credentials); err != nil {
		return err
	}
	if c.wire != nil {
		c.wire.held = true
	}
	c.peer = &peer.Peer{Addr: c.socket.RemoteAddr(), LocalAddr: c.socket.LocalAddr(), AuthInfo: c.entry.Info}
	c.ctx = peer.NewContext(context.Background(), c.peer)
	c.began = time.Now()
	return nil
}

// read reads and handles frames until the connection ends.
func (c *Conn) read() error {
	if c.wire == nil && c.socket.raw != nil {
		return c.readRaw()
	}
	return c.readFrom(c.entry.Conn)
}

// greet queues the server's preface: SETTINGS, and the receive window of the connection.
func (c *Conn) greet() error {
	if err := c.socket.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = true
	cfg := &c.server.cfg
	c.control = appendSettings(c.control,
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(cfg.MaxStreams)},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(cfg.Window)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(cfg.MaxHeaderBytes)},
	)
	if cfg.Window > defaultWindow {
		c.control = appendWindowUpdate(c.control, 0, cfg.Window-defaultWindow)
		c.receive = cfg.Window
	}
	if c.leaving != staying {
		c.goAwayLocked()
	}
	return nil
}

// settle starts the timers of a connection. The error refuses a first frame that is not SETTINGS.
func (c *Conn) settle(first http2.Frame) error {
	if settings, is := first.(*http2.SettingsFrame); !is || settings.IsAck() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.settled = true
	c.mu.Lock()
	c.startTimers()
	c.mu.Unlock()
	return c.socket.SetReadDeadline(time.Time{})
}

// reset ends a stream with RST_STREAM because of a stream error in a frame of a type.
func (c *Conn) reset(e http2.StreamError, kind http2.FrameType) error {
	err := c.known(e.StreamID, kind)
	if kind == http2.FrameHeaders {
		err = c.opened(e.StreamID) // an invalid header block also opens its stream
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.control) > controlBytes {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	if s := c.stream(e.StreamID); s != nil {
		s.abortLocked(e.Code)
		return nil
	}
	c.control = appendReset(c.control, e.StreamID, e.Code)
	return nil
}

// end closes the connection and its streams. It first sends GOAWAY with the error code if the client violated the
// protocol or a limit of HTTP/2.
func (c *Conn) end(err error) {
	code, broken := errorCode(err)
	c.mu.Lock()
	c.timers.stop()
	if broken && c.begun && c.failed == nil {
		c.control = appendGoAway(c.control, c.last, code, debugOf(err))
		c.pump()
		c.awaitWritten()
	}
	if c.failed == nil {
		c.failed = net.ErrClosed
	}
	for _, s := range slices.Clone(c.streams) {
		s.lostLocked(errLost)
	}
	linger := (broken || c.finished) && c.socket.closeWrite()
	c.mu.Unlock()
	if linger { // closing with unread input would reset the connection and lose what was written
		_ = c.socket.SetReadDeadline(time.Now().Add(lingerTimeout))
		_, _ = io.CopyN(io.Discard, c.socket, lingerBytes)
	}
	c.in.release(c)
	c.entry.End()
	_ = c.socket.Close() // an error has no consequence here
}

// awaitWritten waits for the goroutine that waits for the socket, if there is one, until it has written everything. The
// caller must hold mu, which awaitWritten releases meanwhile.
func (c *Conn) awaitWritten() {
	if !c.waiting {
		return
	}
	written := make(chan struct{})
	c.written = written
	c.mu.Unlock()
	select {
	case <-written:
	case <-time.After(lingerTimeout):
	}
	c.mu.Lock()
}

// errorCode returns the code of a GOAWAY frame for an error, and whether the client has violated HTTP/2.
func errorCode(err error) (code http2.ErrCode, broken bool) {
	if e, is := errors.AsType[http2.ConnectionError](err); is {
		return http2.ErrCode(e), true
	}
	switch {
	case errors.Is(err, http2.ErrFrameTooLarge):
		return http2.ErrCodeFrameSize, true
	case errors.Is(err, errPings):
		return http2.ErrCodeEnhanceYourCalm, true
	default:
		return http2.ErrCodeNo, false
	}
}

// Why the server closes a connection.
var (
	errPings    = errors.New("too_many_pings") // clients of gRPC expect this text, and ping less often
	errNoAnswer = errors.New("no answer to a ping")
	errAge      = errors.New("the maximum age of the connection was exceeded")
)

// debugOf returns the debug data of a GOAWAY frame for an error.
func debugOf(err error) string {
	if errors.Is(err, errPings) {
		return err.Error()
	}
	return ""
}

// refuse ends the connection because it exceeds a limit of the guard.
func (c *Conn) refuse(err error) error {
	c.server.cfg.Guard.RefuseConnection(c.entry.Account, err)
	return fmt.Errorf("connection refused: %w", err)
}

// stop closes the connection immediately. The reading goroutine does the rest.
func (c *Conn) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(net.ErrClosed)
}

// failLocked records that nothing can be written any more, and wakes the reading goroutine, which closes the
// connection. Closing it here would wait for the reading goroutine, which may be the caller. The caller must hold mu.
func (c *Conn) failLocked(err error) {
	if c.failed != nil {
		return
	}
	c.failed = err
	if c.begun {
		c.entry.Account.Close() // ends a pause of the reading goroutine
	}
	c.socket.shutdown()
}

// flush writes as many frames as the windows and the socket accept.
func (c *Conn) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pump()
	return c.failed
}

// stream returns an open stream, or nil. The caller must hold mu.
func (c *Conn) stream(id uint32) *Stream {
	if at, found := c.position(id); found {
		return c.streams[at]
	}
	return nil
}

// position returns the index of a stream in c.streams. The caller must hold mu.
func (c *Conn) position(id uint32) (at int, found bool) {
	if n := len(c.streams); n > 0 && c.streams[n-1].id == id { // the usual case
		return n - 1, true
	}
	return slices.BinarySearchFunc(c.streams, id, func(s *Stream, id uint32) int { return int(s.id) - int(id) })
}
