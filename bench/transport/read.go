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
	inputBytes = 32 << 10 // the most of a header block with its frames, and more than any other frame
	firstBytes = 512      // of TLS, which a connection reads into that has no other buffer
)

// Buffers and readers of frames are those of connections that are being read. One that waits has none.
var (
	inputs  = sync.Pool{New: func() any { return new([inputBytes]byte) }}
	parsers = sync.Pool{New: func() any { return newParser() }}
)

// A parser reads frames from memory.
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

// Read implements io.Reader.
func (p *parser) Read(b []byte) (int, error) {
	n := copy(b, p.rest)
	if p.rest = p.rest[n:]; n == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return n, nil
}

// An input is what was read from a connection and not handled.
type input struct {
	held *[inputBytes]byte // nil while there is nothing in it
	n    int
	err  error
}

// space returns where the next bytes are read to.
func (in *input) space() []byte {
	if in.held == nil {
		in.held = inputs.Get().(*[inputBytes]byte)
	}
	return in.held[in.n:]
}

// drop returns the buffer if there is nothing in it.
func (in *input) drop() {
	if in.held != nil && in.n == 0 {
		inputs.Put(in.held)
		in.held = nil
	}
}

// readAll reads from a plaintext socket until that fails, and reports whether it need not wait for more. The bytes that
// were read are handled before the connection waits, within one call for the life of the connection: if the socket had
// less than there was space for, no further call has to find that out.
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

// readTLS reads from TLS until that fails.
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

// took handles all complete frames, with n new bytes, and writes what they lead to.
func (c *Conn) took(n int) error {
	c.in.n += n
	all := c.in.held[:c.in.n]
	rest, err := c.parse(all)
	if err != nil {
		return err
	}
	if len(rest) == len(c.in.held) {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm) // a header block, of many frames
	}
	c.in.n = copy(c.in.held[:], rest)
	c.in.drop()
	return c.flush()
}

// parse handles all complete frames, and returns the rest.
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
			return nil, err // the parser is not used again
		}
		b = b[n:]
	}
}

// complete returns the length of the frame that b starts with, together with the CONTINUATION frames of a header block;
// 0 if b does not have all of that.
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
