// Package h2 implements the parts of HTTP/2 and gRPC that the load generator and the
// server of the kind raw need, at minimal cost. It reads frames in place, and callers
// can write encoded frames many times.
//
// Nothing in this package is safe for concurrent use.
package h2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Stream is the ID of the first stream of a connection. Functions without a stream parameter use it.
const Stream = 1

// StreamOf returns the ID of the stream with index i, counted from 0.
func StreamOf(i int) uint32 { return uint32(Stream + 2*i) }

// StreamIndex is the inverse of [StreamOf]: it returns the index of a stream.
func StreamIndex(stream uint32) int { return (int(stream) - Stream) / 2 }

// Receive windows of a client in bytes, which are those of an Envoy. A client sends
// WINDOW_UPDATE when half of StreamWindow is used.
const (
	StreamWindow     = 16 << 20
	ConnectionWindow = 24 << 20
)

// Lengths in bytes of the header of a frame, and of the header of a gRPC message.
const (
	FrameHeaderBytes   = 9
	MessageHeaderBytes = 5

	maxFrame = 16 << 10 // default of SETTINGS_MAX_FRAME_SIZE
)

// A Frame is a frame whose payload refers to the input.
type Frame struct {
	Type    http2.FrameType
	Flags   http2.Flags
	Stream  uint32
	Payload []byte
}

// ErrFrame reports a frame that exceeds the default maximum size.
var ErrFrame = errors.New("frame longer than 16 KiB")

// NextFrame returns the frame at the start of b, and its length with the header. The
// length is 0 if the frame is incomplete.
func NextFrame(b []byte) (f Frame, n int, err error) {
	if len(b) < FrameHeaderBytes {
		return Frame{}, 0, nil
	}
	length := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	if length > maxFrame {
		return Frame{}, 0, fmt.Errorf("read frame of %d bytes: %w", length, ErrFrame)
	}
	n = FrameHeaderBytes + length
	if len(b) < n {
		return Frame{}, 0, nil
	}
	return Frame{
		Type:    http2.FrameType(b[3]),
		Flags:   http2.Flags(b[4]),
		Stream:  binary.BigEndian.Uint32(b[5:]) & (1<<31 - 1),
		Payload: b[FrameHeaderBytes:n],
	}, n, nil
}

// Data returns the payload of a DATA frame without its padding, or nil if the padding is invalid.
func (f Frame) Data() []byte {
	if !f.Flags.Has(http2.FlagDataPadded) || len(f.Payload) == 0 {
		return f.Payload
	}
	padding := int(f.Payload[0])
	if padding >= len(f.Payload) {
		return nil
	}
	return f.Payload[1 : len(f.Payload)-padding]
}

// appendFrameHeader appends the header of a frame with a payload of length bytes. The caller appends the payload.
func appendFrameHeader(b []byte, length int, t http2.FrameType, flags http2.Flags, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(t), byte(flags))
	return binary.BigEndian.AppendUint32(b, stream)
}

// AppendMessage appends a gRPC message in DATA frames of the first stream. It ignores flow control.
func AppendMessage(b, message []byte) []byte {
	first := min(len(message), maxFrame-MessageHeaderBytes)
	b = appendFrameHeader(b, MessageHeaderBytes+first, http2.FrameData, 0, Stream)
	b = AppendMessageHeader(b, len(message))
	b = append(b, message[:first]...)
	for rest := message[first:]; len(rest) > 0; {
		var n int
		b, n = AppendData(b, Stream, rest, maxFrame)
		rest = rest[n:]
	}
	return b
}

// AppendMessageHeader appends the header of an uncompressed gRPC message of the given length.
func AppendMessageHeader(b []byte, length int) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0), uint32(length)) // 0: not compressed
}

// AppendData appends one DATA frame with up to limit bytes from the start of data, and
// returns their number.
func AppendData(b []byte, stream uint32, data []byte, limit int) ([]byte, int) {
	n := min(len(data), limit, maxFrame)
	return append(appendFrameHeader(b, n, http2.FrameData, 0, stream), data[:n]...), n
}

// AppendWindowUpdate appends a WINDOW_UPDATE; stream 0 is the connection.
func AppendWindowUpdate(b []byte, stream, increment uint32) []byte {
	b = appendFrameHeader(b, 4, http2.FrameWindowUpdate, 0, stream)
	return binary.BigEndian.AppendUint32(b, increment)
}

// AppendSettingsAck appends the acknowledgement of SETTINGS.
func AppendSettingsAck(b []byte) []byte {
	return appendFrameHeader(b, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
}

// AppendPong appends the acknowledgement of a PING with this payload.
func AppendPong(b, payload []byte) []byte {
	return append(appendFrameHeader(b, len(payload), http2.FramePing, http2.FlagPingAck, 0), payload...)
}

// ClientPreface returns the first bytes that a client sends: the preface, SETTINGS, the
// connection's window, and HEADERS of the first stream. header has names and values of further fields.
func ClientPreface(path string, header ...string) []byte {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&b, nil)
	must(f.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}, // so that header blocks can be decoded independently
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: StreamWindow},
	))
	must(f.WriteWindowUpdate(0, ConnectionWindow-65535))
	must(f.WriteHeaders(http2.HeadersFrameParam{StreamID: Stream, EndHeaders: true, BlockFragment: callHeaders(path, header)}))
	return b.Bytes()
}

// AppendCall appends the HEADERS that start a call on a stream. header has names and values of further fields.
func AppendCall(b []byte, path string, stream uint32, header ...string) []byte {
	block := callHeaders(path, header)
	return append(appendFrameHeader(b, len(block), http2.FrameHeaders, http2.FlagHeadersEndHeaders, stream), block...)
}

// callHeaders returns the header block of a gRPC call of the method path.
func callHeaders(path string, more []string) []byte {
	return headers(append([]string{
		":method", "POST", ":scheme", "http", ":path", path, ":authority", "bench",
		"content-type", "application/grpc", "te", "trailers", "user-agent", "xds-bench",
	}, more...)...)
}

// ServerPreface returns the first bytes that a server sends: SETTINGS, the acknowledgement of the client's SETTINGS,
// and HEADERS of the first stream.
func ServerPreface() []byte {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	must(f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}))
	must(f.WriteSettingsAck())
	must(f.WriteHeaders(http2.HeadersFrameParam{StreamID: Stream, EndHeaders: true, BlockFragment: headers(
		":status", "200", "content-type", "application/grpc",
	)}))
	return b.Bytes()
}

// headers returns a header block that uses no dynamic table. pairs alternates names and values.
func headers(pairs ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSizeLimit(0)
	for i := 0; i < len(pairs); i += 2 {
		must(e.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}))
	}
	return b.Bytes()
}

// Describe returns the header fields of a HEADERS frame as text, for error messages
// about a call that the server has ended.
func Describe(f Frame) string {
	fields, err := hpack.NewDecoder(0, nil).DecodeFull(f.Payload)
	if err != nil {
		return err.Error()
	}
	var b bytes.Buffer
	for _, field := range fields {
		fmt.Fprintf(&b, "%s=%s ", field.Name, field.Value)
	}
	return b.String()
}

// must panics on errors of writes to memory, which cannot fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
