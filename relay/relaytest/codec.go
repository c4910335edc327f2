package relaytest

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that wireCodec falls back to
	"google.golang.org/grpc/mem"
)

// raw is a message in the form it travels.
type raw []byte

// wireCodec is gRPC's protobuf codec that also takes raw: sent as it is, and
// received into the same buffer again and again.
type wireCodec struct{}

func (wireCodec) Name() string { return "proto" }

func (wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(raw); ok {
		return mem.BufferSlice{mem.SliceBuffer(r)}, nil
	}
	return encoding.GetCodecV2("proto").Marshal(v)
}

func (wireCodec) Unmarshal(data mem.BufferSlice, v any) error {
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
