package transport

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/downstream/guard"
)

// malformed reports whether HEADERS violate rules of HTTP/2 for requests that the framer does not check.
func malformed(f *http2.MetaHeadersFrame) bool {
	if f.Truncated {
		return false
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

// open opens a stream. Streams of a connection that is closing, and those above the limit, are refused. A stream counts
// until its receiver or handler has ended, and until its trailers were sent.
func (c *Conn) open(f *http2.MetaHeadersFrame) error {
	s := &Stream{conn: c, id: f.StreamID, half: f.StreamEnded()}
	c.mu.Lock()
	if c.leaving == gone || max(c.live, len(c.streams)) >= c.server.cfg.MaxStreams {
		c.mu.Unlock()
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeRefusedStream}
	}
	s.window.send, s.window.receive = c.initial, c.server.cfg.Window
	c.streams = append(c.streams, s)
	c.live++
	c.mu.Unlock()
	if code, err := notGRPC(f); err != nil {
		s.init(c.ctx, nil, 0)
		s.status = code
		s.End(err)
		return nil
	}
	serve, own := c.server.cfg.Streams[f.PseudoValue("path")]
	if !own {
		c.openOther(s, f)
		return nil
	}
	md, timeout, err := parseFields(f)
	if err != nil {
		s.init(c.ctx, nil, 0)
		s.End(err)
		return nil
	}
	s.init(c.ctx, md, timeout)
	if e := fieldOf(f, "grpc-encoding"); e != "" && e != encoding.Identity {
		c.refuseCompression(s, e)
		return nil
	}
	s.acceptsGzip = slices.Contains(strings.Split(fieldOf(f, "grpc-accept-encoding"), ","), gzip.Name)
	receiver := serve(s)
	c.mu.Lock()
	s.receiver = receiver
	c.mu.Unlock()
	return c.deliver(s, nil, s.half)
}

// errCompressed ends a stream whose requests are compressed. A small one could become a large one in memory.
var errCompressed = errors.New("compressed requests are not accepted")

// refuseCompression refuses a stream of compressed requests.
func (c *Conn) refuseCompression(s *Stream, encoded string) {
	if encoded != gzip.Name && encoding.GetCompressor(encoded) == nil { // as in grpc-go
		s.End(status.Errorf(codes.Unimplemented, "grpc: Decompressor is not installed for grpc-encoding %q", encoded))
		return
	}
	err := status.Error(codes.Unimplemented, errCompressed.Error())
	c.server.cfg.Guard.Counters.RequestRefused(guard.InvalidCompression, guard.PeerName(guard.PeerOf(s.ctx)), "", err)
	_ = s.SetHeader(metadata.Pairs("grpc-accept-encoding", encoding.Identity)) // fails if the client has disconnected
	s.End(err)
}

// notGRPC returns the HTTP status and the gRPC status with which a request is refused that is not one of gRPC.
func notGRPC(f *http2.MetaHeadersFrame) (code int, err error) {
	if method := f.PseudoValue("method"); method != http.MethodPost {
		return http.StatusMethodNotAllowed,
			status.Errorf(codes.Internal, "Received a HEADERS frame with :method %q which should be POST", method)
	}
	kind := fieldOf(f, "content-type")
	rest, found := strings.CutPrefix(kind, "application/grpc")
	if !found || rest != "" && rest[0] != '+' && rest[0] != ';' {
		return http.StatusUnsupportedMediaType,
			status.Errorf(codes.InvalidArgument, "invalid gRPC request content-type %q", kind)
	}
	return 0, nil
}

// fieldOf returns the first value of a regular field, empty if there is none.
func fieldOf(f *http2.MetaHeadersFrame, name string) string {
	for _, field := range f.RegularFields() {
		if field.Name == name {
			return field.Value
		}
	}
	return ""
}

// parseFields returns the metadata of a request, and its timeout, zero if it has none. The error is its status.
func parseFields(f *http2.MetaHeadersFrame) (md metadata.MD, timeout time.Duration, err error) {
	md = make(metadata.MD, len(f.RegularFields())+1)
	if authority := f.PseudoValue("authority"); authority != "" {
		md[":authority"] = []string{authority}
	}
	for _, field := range f.RegularFields() {
		value := field.Value
		switch {
		case field.Name == "grpc-timeout":
			if timeout, err = parseTimeout(value); err != nil {
				return nil, 0, status.Errorf(codes.Internal, "malformed grpc-timeout: %v", err)
			}
			continue
		case field.Name == "te", strings.HasPrefix(field.Name, "grpc-"):
			continue
		case field.Name == "host":
			field.Name = ":authority"
			if md[field.Name] != nil {
				continue
			}
		case strings.HasSuffix(field.Name, "-bin"):
			if value, err = decodeBinary(value); err != nil {
				return nil, 0, status.Errorf(codes.Internal, "malformed binary metadata %q in header %q: %v",
					field.Value, field.Name, err)
			}
		}
		md[field.Name] = append(md[field.Name], value)
	}
	return md, timeout, nil
}

// decodeBinary decodes the value of a field whose name ends with -bin. Padding is optional.
func decodeBinary(value string) (string, error) {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
	return string(b), err
}

// units are the units of grpc-timeout.
var units = map[byte]time.Duration{
	'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
}

// parseTimeout parses grpc-timeout. A timeout above the largest duration is that duration.
func parseTimeout(text string) (time.Duration, error) {
	const digits = 8
	if len(text) < 2 || len(text) > digits+1 {
		return 0, fmt.Errorf("%q has %d bytes, want 2 to %d", text, len(text), digits+1)
	}
	unit, known := units[text[len(text)-1]]
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 63)
	if err != nil || !known {
		return 0, fmt.Errorf("%q is not a number with one of the units HMSmun", text)
	}
	if limit := uint64(1<<63-1) / uint64(unit); n > limit {
		return 1<<63 - 1, nil
	}
	return max(time.Duration(n)*unit, 1), nil // a timeout of zero is over at once
}

// init sets the context of a stream. A timeout of zero is none.
func (s *Stream) init(parent context.Context, md metadata.MD, timeout time.Duration) {
	ctx := metadata.NewIncomingContext(parent, md)
	if timeout == 0 {
		s.ctx, s.cancel = context.WithCancel(ctx)
		return
	}
	s.ctx, s.cancel = context.WithTimeout(ctx, timeout)
	s.timer = time.AfterFunc(timeout, func() { // stopped by release
		s.conn.mu.Lock()
		defer s.conn.mu.Unlock()
		s.closedLocked(status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error()))
	})
}

// Header blocks are encoded without the dynamic table, so that all connections can share them.

// responseFields are the header fields of a response, and responseHeaders their encoding.
var (
	responseFields  = []string{":status", "200", "content-type", "application/grpc"}
	responseHeaders = encodeFields(nil, responseFields...)
)

// encodeFields appends the encoding of header fields. pairs alternates names and values.
func encodeFields(b []byte, pairs ...string) []byte {
	var out bytes.Buffer
	e := hpack.NewEncoder(&out)
	e.SetMaxDynamicTableSizeLimit(0)
	for i := 0; i < len(pairs); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}) // writes to memory do not fail
	}
	return append(b, out.Bytes()...)
}

// encodeMetadata returns metadata as alternating names and values. It leaves out names that the transport sets.
func encodeMetadata(md metadata.MD) (pairs []string) {
	for name, values := range md {
		if name == "content-type" || name == "te" || name == "grpc-status" || name == "grpc-message" ||
			strings.HasPrefix(name, ":") {
			continue
		}
		for _, value := range values {
			if strings.HasSuffix(name, "-bin") {
				value = base64.RawStdEncoding.EncodeToString([]byte(value))
			}
			pairs = append(pairs, name, value)
		}
	}
	return pairs
}

// statusFields returns the trailers of a status error, nil for OK.
func statusFields(err error) (pairs []string) {
	st := status.Convert(err)
	pairs = []string{"grpc-status", strconv.Itoa(int(st.Code()))}
	if st.Message() != "" {
		pairs = append(pairs, "grpc-message", percent(st.Message()))
	}
	if len(st.Proto().GetDetails()) > 0 {
		if details, err := proto.Marshal(st.Proto()); err == nil {
			pairs = append(pairs, "grpc-status-details-bin", base64.RawStdEncoding.EncodeToString(details))
		}
	}
	return pairs
}

// percent percent-encodes a status message as gRPC requires.
func percent(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\ufffd")
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// appendHeader appends the header of a frame with so many bytes.
func appendHeader(b []byte, length int, t http2.FrameType, flags http2.Flags, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(t), byte(flags))
	return binary.BigEndian.AppendUint32(b, stream)
}

// appendBlock appends a header block in as many frames as it needs.
func appendBlock(b, block []byte, flags http2.Flags, stream uint32) []byte {
	kind := http2.FrameHeaders
	for {
		n := min(len(block), maxFrame)
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders
		}
		b = append(appendHeader(b, n, kind, flags, stream), block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return b
		}
		kind, flags = http2.FrameContinuation, 0
	}
}

func appendSettings(b []byte, settings ...http2.Setting) []byte {
	const settingBytes = 6
	b = appendHeader(b, settingBytes*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

func appendWindowUpdate(b []byte, stream uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendHeader(b, 4, http2.FrameWindowUpdate, 0, stream), uint32(n))
}

func appendReset(b []byte, stream uint32, code http2.ErrCode) []byte {
	return binary.BigEndian.AppendUint32(appendHeader(b, 4, http2.FrameRSTStream, 0, stream), uint32(code))
}

func appendPing(b []byte, flags http2.Flags, data [8]byte) []byte {
	return append(appendHeader(b, len(data), http2.FramePing, flags, 0), data[:]...)
}

func appendGoAway(b []byte, last uint32, code http2.ErrCode, debug string) []byte {
	b = appendHeader(b, 8+len(debug), http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, debug...)
}
