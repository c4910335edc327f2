package wire

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for all other messages
	"google.golang.org/grpc/mem"
)

// Codec is gRPC's protobuf codec, but for three types that it moves as bytes:
// a [*Response] is sent from shared pieces, a [*Request] is read without the
// generated decoder, a [*Message] is received and sent as it is. Install it with
// grpc.ForceServerCodecV2 and grpc.ForceCodecV2.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// A Message is a message as it came, undecoded. One that was sent must not be
// changed any more.
type Message struct{ Bytes []byte }

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *Response:
		return m.buffers(), nil
	case *Message:
		return mem.BufferSlice{mem.SliceBuffer(m.Bytes)}, nil
	default:
		return generated().Marshal(v)
	}
}

// Unmarshal implements encoding.CodecV2.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *Request:
		buf := data.MaterializeToBuffer(requestBuffers{mem.DefaultBufferPool()})
		defer buf.Free()
		m.Size = Framed(data.Len())
		m.Err = m.receive(buf.ReadOnlyData())
		return nil
	case *Message:
		m.Bytes = data.Materialize()
		return nil
	default:
		return generated().Unmarshal(data, v)
	}
}

// requestBuffers allocates buffers of more than 32 KiB with exactly the bytes that a request has: for these, the
// default pool has buffers of 1 MiB, which is up to 32 times what the client was charged for.
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

// Name implements encoding.CodecV2: on the wire this is protobuf.
func (Codec) Name() string { return "proto" }

// Framed returns how many bytes of a stream a message takes.
func Framed(message int) int { return message + 5 }

func generated() encoding.CodecV2 { return encoding.GetCodecV2("proto") }
