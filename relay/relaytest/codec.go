package relaytest

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that BytesCodec falls back to
	"google.golang.org/grpc/mem"
)

// raw is an encoded message.
type raw []byte

// BytesCodec is the protobuf codec of gRPC, which also accepts messages as []byte. Messages of type raw are received
// into a reused buffer.
type BytesCodec struct{}

// Name returns the name of the codec that it replaces.
func (BytesCodec) Name() string { return "proto" }

// Marshal encodes a message.
func (BytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case raw:
		return mem.BufferSlice{mem.SliceBuffer(v)}, nil
	case []byte:
		return mem.BufferSlice{mem.SliceBuffer(v)}, nil
	}
	return encoding.GetCodecV2("proto").Marshal(v)
}

// Unmarshal decodes into a message, []byte or raw.
func (BytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if b, ok := v.(*[]byte); ok {
		*b = data.Materialize()
		return nil
	}
	r, ok := v.(*raw)
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
