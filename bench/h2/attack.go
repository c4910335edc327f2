package h2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// AppendNothing appends valid frames without effect, one of each of several types. It is for package attack.
func AppendNothing(b []byte) []byte {
	b = appendFrameHeader(b, 0, http2.FrameSettings, 0, 0)
	b = AppendWindowUpdate(b, Stream, 1)
	b = append(appendFrameHeader(b, 5, http2.FramePriority, 0, Stream), 0, 0, 0, 0, 1)
	b = appendFrameHeader(b, 0, http2.FrameData, 0, Stream)
	const unknown = 0xee
	return appendFrameHeader(b, 0, unknown, 0, Stream)
}

// AppendPing appends a PING.
func AppendPing(b []byte) []byte {
	return append(appendFrameHeader(b, 8, http2.FramePing, 0, 0), make([]byte, 8)...)
}

// AppendReset appends the reset of a stream.
func AppendReset(b []byte, stream uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, http2.FrameRSTStream, 0, stream), uint32(http2.ErrCodeCancel))
}

// AppendPart appends DATA frames with the first bytes of a gRPC message of the given length. first is the number of
// these bytes, including the message header.
func AppendPart(b []byte, stream uint32, length, first int) []byte {
	part := append(AppendMessageHeader(nil, length), make([]byte, first-MessageHeaderBytes)...)
	for len(part) > 0 {
		n := min(len(part), maxFrame)
		b = append(appendFrameHeader(b, n, http2.FrameData, 0, stream), part[:n]...)
		part = part[n:]
	}
	return b
}
