package transport

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
)

const (
	inputBytes = 32 << 10 // maximum size of a header block with its frames; larger than any other frame
	firstBytes = 512      // buffer for the first read with TLS, while a connection holds no other buffer
)

// Pools of buffers and frame readers. A connection holds them only while it handles input.
var (
	inputs  = sync.Pool{New: func() any { return new([inputBytes]byte) }}
	parsers = sync.Pool{New: func() any { return newParser() }}
)

// A parser reads frames from rest with the framer of package http2.
type parser struct {
	frames *http2.Framer
	rest   []byte
}

func newParser() *parser {
	p := &parser{}
	p.frames = http2.NewFramer(nil, p)
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
	held *[inputBytes]byte // nil while empty
	n    int               // bytes in held
	err  error             // why readAll ended
}

// space returns the free part of the buffer, and gets a buffer from the pool if necessary.
func (in *input) space() []byte {
	if in.held == nil {
		in.held = inputs.Get().(*[inputBytes]byte)
	}
	return in.held[in.n:]
}

// drop returns an empty buffer to the pool.
func (in *input) drop() {
	if in.held != nil && in.n == 0 {
		inputs.Put(in.held)
		in.held = nil
	}
}

// readAll is the callback of RawConn.Read for plaintext. It reads and handles input, and returns false to wait for
// more, or true when the connection has ended. After a short read it waits without another read, which would only
// return EAGAIN.
func (c *Conn) readAll(fd uintptr) bool {
	for {
		space := c.in.space()
		n, err := unix.Read(int(fd), space)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			c.in.drop()
			return false
		case err == nil && n == 0:
			err = io.EOF
		}
		if err == nil {
			err = c.took(n)
		}
		if err != nil {
			c.in.err = err
			return true
		}
		if n < len(space) {
			return false
		}
	}
}

// readTLS reads and handles input with TLS until the connection ends.
func (c *Conn) readTLS() error {
	first := make([]byte, firstBytes)
	for {
		var n int
		var err error
		if c.in.held == nil {
			if n, err = c.tls.Read(first); n > 0 {
				copy(c.in.space(), first[:n])
			}
		} else {
			n, err = c.tls.Read(c.in.space())
		}
		if err == nil {
			err = c.took(n)
		}
		if err != nil {
			return err
		}
	}
}

// took handles all complete frames after n new bytes were read, and writes the resulting frames.
func (c *Conn) took(n int) error {
	c.in.n += n
	all := c.in.held[:c.in.n]
	rest, err := c.parse(all)
	if err != nil {
		return err
	}
	if len(rest) == len(c.in.held) {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm) // only a header block of many frames can fill the buffer
	}
	c.in.n = copy(c.in.held[:], rest)
	c.in.drop()
	return c.flush()
}

// parse handles all complete frames in b, and returns the incomplete rest.
func (c *Conn) parse(b []byte) (rest []byte, err error) {
	if !c.greeted {
		if len(b) < len(http2.ClientPreface) {
			return b, nil
		}
		if string(b[:len(http2.ClientPreface)]) != http2.ClientPreface {
			return nil, http2.ConnectionError(http2.ErrCodeProtocol)
		}
		b, c.greeted = b[len(http2.ClientPreface):], true
		if err := c.greet(); err != nil {
			return nil, err
		}
	}
	p := parsers.Get().(*parser)
	for {
		n, err := complete(b)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			p.frames.ReadMetaHeaders = nil
			parsers.Put(p)
			return b, nil
		}
		p.rest = b[:n]
		if err := c.next(p); err != nil {
			return nil, err // does not return the parser to the pool, since its state is undefined
		}
		b = b[n:]
	}
}

// complete returns the length of the frame that b starts with, including the CONTINUATION frames of a header block. It
// returns 0 if b does not contain all of them.
func complete(b []byte) (n int, err error) {
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
			return n, nil
		}
	}
}
