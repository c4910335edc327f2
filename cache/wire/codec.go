package wire

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for all other messages
	"google.golang.org/grpc/mem"
)

// Codec is gRPC's protobuf codec, except for three types: a [*Response] is sent from
// shared buffers, a [*Request] is decoded without the generated decoder, and a
// [*Message] is received and sent without decoding. Install it with
// grpc.ForceServerCodecV2 and grpc.ForceCodecV2.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// A Message is an encoded message. It must not be changed once it was sent.
type Message struct{ Bytes []byte }

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *Response:
		if m.Gzip {
			return m.AppendGzip(append(make(mem.BufferSlice, 0, 4), compressedMarker)), nil
		}
		return m.buffers(), nil
	case *Message:
		return mem.BufferSlice{mem.SliceBuffer(m.Bytes)}, nil
	default:
		return protoCodec().Marshal(v)
	}
}

// Unmarshal implements encoding.CodecV2.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *Request:
		m.Size = Framed(data.Len())
		if m.decodeRepeated(data) {
			return nil
		}
		buf := data.MaterializeToBuffer(requestBuffers{mem.DefaultBufferPool()})
		defer buf.Free()
		m.Err = m.Decode(buf.ReadOnlyData())
		return nil
	case *Message:
		m.Bytes = data.Materialize()
		return nil
	default:
		return protoCodec().Unmarshal(data, v)
	}
}

// requestBuffers allocates buffers of more than 32 KiB in the exact size of the request. The default pool would return
// buffers of 1 MiB, up to 32 times the size that the client was charged for.
type requestBuffers struct{ mem.BufferPool }

const pooledRequest = 32 << 10

func (p requestBuffers) Get(length int) *[]byte {
	if length <= pooledRequest {
		return p.BufferPool.Get(length)
	}
	b := make([]byte, length)
	return &b
}

func (p requestBuffers) Put(b *[]byte) {
	if cap(*b) <= pooledRequest {
		p.BufferPool.Put(b)
	}
}

// Name implements encoding.CodecV2: the encoding is protobuf.
func (Codec) Name() string { return "proto" }

// Framed returns the size of a message including its gRPC frame, in bytes.
func Framed(message int) int { return message + 5 }

func protoCodec() encoding.CodecV2 { return encoding.GetCodecV2("proto") }
