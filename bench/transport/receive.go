package transport

import (
	"golang.org/x/net/http2"
)

// handle handles a frame, and charges it to the rate limit. DATA and HEADERS are charged in data and headers.
func (c *Conn) handle(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.DataFrame:
		return c.data(f)
	case *http2.MetaHeadersFrame:
		return c.headers(f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if err := c.spend(); err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.RSTStreamFrame:
		return c.cancelled(f)
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.WindowUpdateFrame:
		return c.widen(f)
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return c.answer(func() error { return c.writer.WritePing(true, f.Data) })
	case *http2.PriorityFrame:
		return prioritized(f)
	default: // GOAWAY and unknown types
		return nil
	}
}

// prioritized ignores the priority of a stream. Errors: the stream depends on itself.
func prioritized(f *http2.PriorityFrame) error {
	if f.StreamDep == f.StreamID {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
	}
	return nil
}

// answer writes frames to the control buffer. Errors: the buffer exceeds its limit, because the client does not read.
func (c *Conn) answer(write func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.control.Len() > c.server.limits.ControlBytes {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return write()
}

// headers opens a stream, or ends the client's side of one.
func (c *Conn) headers(f *http2.MetaHeadersFrame) error {
	if err := c.spend(); err != nil {
		return err
	}
	id := f.StreamID
	if s := c.stream(id); s != nil {
		if !f.StreamEnded() {
			return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
		}
		return c.halfClose(s)
	}
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if id <= c.last {
		if len(f.PseudoFields()) > 0 {
			return http2.ConnectionError(http2.ErrCodeStreamClosed)
		}
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed} // trailers of a stream that was reset
	}
	c.last = id
	if malformed(f) {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	return c.open(f)
}

// open opens a stream. A stream above the limit is reset, and an invalid request is answered with a status.
func (c *Conn) open(f *http2.MetaHeadersFrame) error {
	path, headers, refused := request(f)
	s := &Stream{conn: c, id: f.StreamID, receive: receiveWindow}
	c.mu.Lock()
	if len(c.streams) >= c.server.limits.Streams || c.closing {
		c.mu.Unlock()
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeRefusedStream}
	}
	s.window, s.half = c.initial, f.StreamEnded()
	if refused != nil {
		s.trailer = headers
		s.told = true // Handler.Open was not called, so Closed must not be called
		if headers == nil {
			s.trailer = trailers(*refused, responseFields...)
		}
	}
	c.streams = append(c.streams, s)
	if refused != nil {
		s.readyLocked()
		c.mu.Unlock()
		return nil
	}
	err := c.writer.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, EndHeaders: true, BlockFragment: responseHeaders})
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if err := c.server.handler.Open(s, path); err != nil {
		s.end(err)
	} else if s.half {
		s.end(nil)
	}
	return nil
}

// malformed reports whether HEADERS violate rules of HTTP/2 for requests that the framer does not check.
func malformed(f *http2.MetaHeadersFrame) bool {
	if f.Truncated {
		return false // request rejects the stream with status 431
	}
	if f.PseudoValue("method") == "" || f.PseudoValue("scheme") == "" || f.PseudoValue("path") == "" {
		return true
	}
	for _, field := range f.RegularFields() {
		switch field.Name {
		case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
			return true
		case "te":
			if field.Value != "trailers" {
				return true
			}
		}
	}
	return f.HasPriority() && f.Priority.StreamDep == f.StreamID
}

// request returns the gRPC method of a request. For an invalid request, refused is the status. headers is then the
// complete HTTP response, or nil for a gRPC response.
func request(f *http2.MetaHeadersFrame) (path string, headers []byte, refused *Error) {
	var contentType, encoding string
	for _, field := range f.RegularFields() {
		switch field.Name {
		case "content-type":
			contentType = field.Value
		case "grpc-encoding":
			encoding = field.Value
		}
	}
	switch {
	case f.Truncated:
		return "", encode(":status", "431"), &Error{resourceExhausted, "too many header fields"}
	case f.PseudoValue("method") != "POST":
		return "", encode(":status", "405"), &Error{internal, "method is not POST"}
	case !isGRPC(contentType):
		return "", encode(":status", "415"), &Error{internal, "content type is not application/grpc"}
	case encoding != "" && encoding != "identity":
		return "", nil, &Error{unimplemented, "compressed requests are not supported"}
	default:
		return f.PseudoValue("path"), nil, nil
	}
}

// data handles a DATA frame: flow control, and then its content.
func (c *Conn) data(f *http2.DataFrame) error {
	length, id := int(f.Length), f.StreamID
	if c.receive -= length; c.receive < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	if c.receive <= receiveWindow/2 {
		if err := c.grant(0, &c.receive); err != nil {
			return err
		}
	}
	if len(f.Data()) == 0 {
		if err := c.spend(); err != nil {
			return err
		}
	}
	s := c.stream(id)
	if s == nil {
		if id > c.last || id%2 == 0 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	}
	if s.half {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	}
	if s.receive -= length; s.receive < 0 {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeFlowControl}
	}
	return c.message(s, f)
}

// message handles the requests in a DATA frame.
func (c *Conn) message(s *Stream, f *http2.DataFrame) error {
	if s.told {
		return c.spend() // ignored: the stream has ended for the handler
	}
	if s.receive <= receiveWindow/2 && !f.StreamEnded() {
		if err := c.grant(s.id, &s.receive); err != nil {
			return err
		}
	}
	if err := s.take(f.Data()); err != nil {
		s.end(err)
		return nil
	}
	if f.StreamEnded() {
		return c.halfClose(s)
	}
	return nil
}

// grant restores a receive window with WINDOW_UPDATE. left is the rest of the window in bytes.
func (c *Conn) grant(stream uint32, left *int) error {
	n := receiveWindow - *left
	*left = receiveWindow
	return c.answer(func() error { return c.writer.WriteWindowUpdate(stream, uint32(n)) })
}

// halfClose ends a stream whose client has ended its side.
func (c *Conn) halfClose(s *Stream) error {
	c.mu.Lock()
	s.half = true
	c.mu.Unlock()
	if len(s.part) > 0 {
		s.end(Error{internal, "stream ended within a request"})
	} else {
		s.end(nil)
	}
	return nil
}

// cancelled handles RST_STREAM.
func (c *Conn) cancelled(f *http2.RSTStreamFrame) error {
	if f.StreamID > c.last || f.StreamID%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if s := c.stream(f.StreamID); s != nil {
		s.close()
	}
	return nil
}

// settings applies and acknowledges the client's SETTINGS.
func (c *Conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
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
	return c.answer(c.writer.WriteSettingsAck)
}

// resize sets the initial window, and adjusts the windows of all open streams by the difference.
func (c *Conn) resize(initial int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		if s.window += initial - c.initial; s.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		if s.window > 0 && s.pending() {
			s.readyLocked()
		}
	}
	c.initial = initial
	return nil
}

// widen handles WINDOW_UPDATE.
func (c *Conn) widen(f *http2.WindowUpdateFrame) error {
	if f.StreamID == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.window += int64(f.Increment); s.window > maxWindow {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	}
	if s.window > 0 && s.pending() {
		s.readyLocked()
	}
	return nil
}
