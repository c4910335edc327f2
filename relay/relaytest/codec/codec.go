// Package codec has a gRPC codec for encoded messages.
//
// The package is not a stable API: programs that embed Tender use package relay.
package codec

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that Bytes falls back to
	"google.golang.org/grpc/mem"
)

// Raw is an encoded message.
type Raw []byte

// Bytes is the protobuf codec of gRPC, which also accepts messages as []byte. Messages of type Raw are received
// into a reused buffer.
type Bytes struct{}

// Name returns the name of the codec that it replaces.
func (Bytes) Name() string { return "proto" }

// Marshal encodes a message.
func (Bytes) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case Raw:
		return mem.BufferSlice{mem.SliceBuffer(v)}, nil
	case []byte:
		return mem.BufferSlice{mem.SliceBuffer(v)}, nil
	}
	return encoding.GetCodecV2("proto").Marshal(v)
}

// Unmarshal decodes into a message, []byte or Raw.
func (Bytes) Unmarshal(data mem.BufferSlice, v any) error {
	if b, ok := v.(*[]byte); ok {
		*b = data.Materialize()
		return nil
	}
	r, ok := v.(*Raw)
	if !ok {
		return encoding.GetCodecV2("proto").Unmarshal(data, v)
	}
	n := data.Len()
	if cap(*r) < n {
		*r = make([]byte, n)
	}
	*r = (*r)[:n]
	data.CopyTo(*r)
	return nil
}
