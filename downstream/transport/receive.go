package transport

import (
	"slices"

	"golang.org/x/net/http2"
)

// handle handles a frame.
func (c *Conn) handle(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.DataFrame:
		return c.data(f)
	case *http2.MetaHeadersFrame:
		return c.headers(f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case *http2.RSTStreamFrame:
		return c.cancelled(f)
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.WindowUpdateFrame:
		return c.widen(f)
	case *http2.PingFrame:
		return c.ping(f)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	}
	return nil // GOAWAY and unknown types
}

// answer appends a frame to those that wait for the socket. Errors: too many of them wait, because the client does not
// read. The caller must hold mu.
func (c *Conn) answer(add func(b []byte) []byte) error {
	if len(c.control) > controlBytes {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.control = add(c.control)
	return nil
}

// known returns an error for a frame of a stream that the client has not opened. PRIORITY may precede a stream.
func (c *Conn) known(id uint32, kind http2.FrameType) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if (id > c.last || id%2 == 0) && kind != http2.FramePriority {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// opened records that the client has opened a stream, unless it is open already.
func (c *Conn) opened(id uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.last = max(c.last, id)
	return nil
}

// endedBefore reports whether the server has ended a stream before its client did. Frames of such a stream may have
// been on the way. The caller must hold mu.
func (c *Conn) endedBefore(id uint32) bool { return slices.Contains(c.ended[:], id) }

// headers opens a stream, or ends the client's side of one.
func (c *Conn) headers(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	s, last, ended := c.find(id)
	switch {
	case s != nil:
		return c.trailers(s, f)
	case id <= last && ended && len(f.PseudoFields()) == 0: // trailers
		return nil
	case id <= last:
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	}
	if err := c.opened(id); err != nil {
		return err
	}
	switch {
	case f.Truncated:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeFrameSize} // as grpc-go
	case malformed(f):
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	default:
		return c.open(f)
	}
}

// trailers ends the client's side of a stream.
func (c *Conn) trailers(s *Stream, f *http2.MetaHeadersFrame) error {
	switch {
	case s.half:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeStreamClosed}
	case len(f.PseudoFields()) > 0 || !f.StreamEnded():
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeProtocol}
	default:
		return c.deliver(s, nil, true)
	}
}

// find returns an open stream, or nil; the highest stream ID of the client; and endedBefore.
func (c *Conn) find(id uint32) (s *Stream, last uint32, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream(id), c.last, c.endedBefore(id)
}

// data handles a DATA frame: flow control, and then its content.
func (c *Conn) data(f *http2.DataFrame) error {
	length, id := int(f.Length), f.StreamID
	if err := c.charge(length); err != nil {
		return err
	}
	switch s, last, ended := c.find(id); {
	case s == nil && (id > last || id%2 == 0):
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case s == nil && ended:
		return nil
	case s == nil, s.half:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	case !s.charge(length, length-len(f.Data())):
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeFlowControl}
	default:
		return c.deliver(s, f.Data(), f.StreamEnded())
	}
}

// charge charges the receive window of the connection. It returns it to the client immediately, since the windows of
// streams and the guard limit what is kept.
func (c *Conn) charge(length int) error {
	if c.receive -= length; c.receive < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	window := c.server.cfg.Window
	owed := window - c.receive
	if owed < window/4 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receive += owed
	return c.answer(func(b []byte) []byte { return appendWindowUpdate(b, 0, owed) })
}

// charge charges the receive window of a stream, and returns the padding to the client. It reports whether the window
// admits the frame.
func (s *Stream) charge(length, padding int) bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.window.receive -= length
	s.consume(padding)
	return s.window.receive >= 0
}

// cancelled handles RST_STREAM.
func (c *Conn) cancelled(f *http2.RSTStreamFrame) error {
	if err := c.known(f.StreamID, http2.FrameRSTStream); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.stream(f.StreamID); s != nil {
		s.lostLocked(errLost)
	}
	return nil
}

// settings applies and acknowledges the client's SETTINGS.
func (c *Conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		if s.ID == http2.SettingInitialWindowSize {
			return c.resize(int64(s.Val))
		}
		return nil // other settings only permit larger frames and header tables, which are not used
	})
	if err != nil {
		return err
	}
	return c.answer(func(b []byte) []byte { return appendHeader(b, 0, http2.FrameSettings, http2.FlagSettingsAck, 0) })
}

// resize sets the initial window, and adjusts the windows of all open streams by the difference. The caller must hold
// mu.
func (c *Conn) resize(initial int64) error {
	for _, s := range c.streams {
		if s.window.send += initial - c.initial; s.window.send > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		s.widened()
	}
	c.initial = initial
	return nil
}

// widen handles WINDOW_UPDATE.
func (c *Conn) widen(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.window += int64(f.Increment); c.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		return nil
	}
	s := c.stream(f.StreamID)
	if s == nil {
		if f.StreamID > c.last || f.StreamID%2 == 0 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return nil
	}
	if s.window.send += int64(f.Increment); s.window.send > maxWindow {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	}
	s.widened()
	return nil
}
