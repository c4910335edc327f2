package transport

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

const (
	headerBytes = 9
	inputBytes  = 32 << 10 // a buffer for reading; larger than any frame
	firstBytes  = 512      // the buffer in which a connection waits that cannot wait without one

	// frameTimeout is the timeout from the first byte of a frame to its last one, and to that of a header block.
	frameTimeout = 30 * time.Second
)

// Pools of buffers and frame readers. A connection holds them only while it handles input.
var (
	inputs  = sync.Pool{New: func() any { b := make([]byte, inputBytes); return &b }}
	parsers = sync.Pool{New: func() any { return newParser() }}
)

// A parser reads frames from rest with the framer of package http2.
type parser struct {
	frames *http2.Framer
	rest   []byte
}

func newParser() *parser {
	p := &parser{}
	p.frames = http2.NewFramer(io.Discard, p)
	p.frames.SetMaxReadFrameSize(maxFrame)
	p.frames.SetReuseFrames()
	return p
}

// Read implements io.Reader for the framer.
func (p *parser) Read(b []byte) (int, error) {
	n := copy(b, p.rest)
	if p.rest = p.rest[n:]; n == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return n, nil
}

// An input holds the bytes that were read from a connection and not yet handled.
type input struct {
	held    *[]byte // nil while empty; from the pool if it has inputBytes
	n       int     // bytes in held
	charged int     // bytes of held that the account is charged for, since a frame is incomplete
}

// space returns the free part of the buffer, and gets a buffer from the pool if necessary.
func (in *input) space() []byte {
	if in.held == nil {
		in.held = inputs.Get().(*[]byte)
	}
	return (*in.held)[in.n:]
}

// drop returns an empty buffer to the pool.
func (in *input) drop() {
	if in.held == nil || in.n > 0 {
		return
	}
	if len(*in.held) == inputBytes {
		inputs.Put(in.held)
	}
	in.held = nil
}

// release drops the input of a connection that has ended.
func (in *input) release(c *Conn) {
	in.n = 0
	_ = in.charge(c, 0) // a release cannot fail
	in.drop()
}

// charge charges the account of the connection for so many bytes in total. The error means that they exceed a limit.
func (in *input) charge(c *Conn, bytes int) error {
	more := bytes - in.charged
	switch {
	case more > 0:
		if err := c.entry.Account.Hold(more); err != nil {
			return err
		}
	case more < 0:
		c.entry.Account.Release(-more)
	}
	in.charged = bytes
	return nil
}

// grow doubles the buffer, which a header block has filled.
func (in *input) grow() {
	larger := make([]byte, 2*len(*in.held))
	copy(larger, (*in.held)[:in.n])
	if len(*in.held) == inputBytes {
		inputs.Put(in.held)
	}
	in.held = &larger
}

// readFrom reads and handles input until the connection ends.
func (c *Conn) readFrom(conn net.Conn) error {
	first := make([]byte, firstBytes)
	for {
		space := first
		if c.in.held != nil {
			space = c.in.space()
		}
		n, err := conn.Read(space[:c.entry.Account.AwaitRead(len(space))])
		if n > 0 {
			if c.in.held == nil {
				copy(c.in.space(), first[:n])
			}
			if failed := c.took(n); failed != nil {
				return failed
			}
		}
		if err != nil {
			return err
		}
	}
}

// took handles all complete frames after n new bytes were read, and writes the resulting frames.
func (c *Conn) took(n int) error {
	c.heard.Store(int64(time.Since(c.began)))
	if c.pinged.Load() {
		c.pinged.Store(false)
	}
	c.in.n += n
	rest, err := c.parse((*c.in.held)[:c.in.n])
	if err != nil {
		return err
	}
	c.in.n = copy(*c.in.held, rest)
	if err := c.await(); err != nil {
		return err
	}
	c.server.cfg.Guard.Throttle(c.entry.Account)
	return c.flush()
}

// await charges for the bytes of an incomplete frame and starts its timeout. It ends both once the frame is complete.
func (c *Conn) await() error {
	held := 0
	if c.in.n == len(*c.in.held) {
		if c.in.n >= 4*c.server.cfg.MaxHeaderBytes+inputBytes {
			return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm) // only a header block of many frames can fill it
		}
		c.in.grow()
	}
	if c.in.n > 0 {
		held = len(*c.in.held)
	}
	if err := c.in.charge(c, held); err != nil {
		return c.refuse(err)
	}
	c.in.drop()
	if incomplete := held > 0 && c.settled; incomplete != c.deadline {
		c.deadline = incomplete
		var until time.Time
		if incomplete {
			until = time.Now().Add(frameTimeout)
		}
		return c.socket.SetReadDeadline(until)
	}
	return nil
}

// parse handles all complete frames in b, and returns the incomplete rest.
func (c *Conn) parse(b []byte) (rest []byte, err error) {
	if !c.greeted {
		n := len(http2.ClientPreface)
		if len(b) < n {
			return b, nil
		}
		if string(b[:n]) != http2.ClientPreface {
			return nil, http2.ConnectionError(http2.ErrCodeProtocol)
		}
		b, c.greeted = b[n:], true
		if err := c.greet(); err != nil {
			return nil, err
		}
	}
	p := parsers.Get().(*parser)
	for {
		n, err := c.complete(b)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			p.frames.ReadMetaHeaders, p.rest = nil, nil
			parsers.Put(p)
			return b, nil
		}
		p.rest = b[:n]
		if err := c.next(p, http2.FrameType(b[3])); err != nil {
			return nil, err // does not return the parser to the pool, since its state is undefined
		}
		b = b[n:]
	}
}

// complete returns the length of the frame that b starts with, including the CONTINUATION frames of a header block, and
// counts these frames. It returns 0 if b does not contain all of them.
func (c *Conn) complete(b []byte) (n int, err error) {
	for want := http2.FrameHeaders; ; want = http2.FrameContinuation {
		if len(b)-n < headerBytes {
			return 0, nil
		}
		head := b[n:]
		length := int(binary.BigEndian.Uint32(head) >> 8)
		if length > maxFrame {
			return 0, http2.ErrFrameTooLarge
		}
		if n += headerBytes + length; len(b) < n {
			return 0, nil
		}
		if http2.FrameType(head[3]) != want || http2.Flags(head[4]).Has(http2.FlagHeadersEndHeaders) {
			break
		}
	}
	for at := 0; at < n; {
		length := int(binary.BigEndian.Uint32(b[at:]) >> 8)
		c.entry.Account.Count(b[at+3], length)
		at += headerBytes + length
	}
	return n, nil
}

// next handles the frame of a type in p. It resets the stream for stream errors, and returns connection errors.
func (c *Conn) next(p *parser, kind http2.FrameType) error {
	p.frames.ReadMetaHeaders, p.frames.MaxHeaderListSize = c.decoder, uint32(c.server.cfg.MaxHeaderBytes)
	f, err := p.frames.ReadFrame()
	if e, is := errors.AsType[http2.StreamError](err); is && kind == http2.FrameHeaders && e.Cause == nil {
		return http2.ConnectionError(e.Code) // the header block was not decoded, and the next one may depend on it
	}
	if err == nil && !c.settled {
		err = c.settle(f)
	}
	if err == nil {
		err = c.handle(f)
	}
	if e, is := errors.AsType[http2.StreamError](err); is {
		return c.reset(e, kind)
	}
	return err
}
