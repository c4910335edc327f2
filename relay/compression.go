package relay

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip" // registers it: origins may compress what they send (B.32)
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

var errCompressed = errors.New("compressed requests are not accepted (TENDER_REQUEST_COMPRESSION=off)")

// compression returns the options of a server whose streams take compressed requests, or not. Bytes on the wire are bounded, and one
// of them may stand for a thousand in memory: so gRPC decompresses none, whatever is registered (exporters of telemetry register
// what they use). Where they are taken, wire decompresses them, and charges for the memory before it is taken.
func compression(taken bool) []grpc.ServerOption {
	if taken {
		return []grpc.ServerOption{grpc.RPCDecompressor(passing{})} //nolint:staticcheck // SA1019: nothing else is handed a message as it came
	}
	return []grpc.ServerOption{
		grpc.ChainStreamInterceptor(refuseCompressed),
		grpc.RPCDecompressor(refusing{}), //nolint:staticcheck // SA1019: unary calls are decompressed before any interceptor is called
	}
}

// refuseCompressed ends streams whose messages are said to be compressed before one is read.
func refuseCompressed(server any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if c := compressionOf(rpc.Context()); c == "" || c == encoding.Identity {
		return handle(server, rpc)
	}
	_ = rpc.SetHeader(metadata.Pairs("grpc-accept-encoding", encoding.Identity)) // fails only if the client has left
	return status.Error(codes.Unimplemented, errCompressed.Error())
}

// compressionOf returns what a stream's request says of its messages (grpc-encoding), which gRPC shows nobody but by its own stream.
func compressionOf(ctx context.Context) string {
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string }); ok {
		return s.RecvCompress()
	}
	return ""
}

// refusing refuses what gzip would decompress.
type refusing struct{}

// Do implements grpc.Decompressor.
func (refusing) Do(io.Reader) ([]byte, error) { return nil, errCompressed }

// Type implements grpc.Decompressor.
func (refusing) Type() string { return gzip.Name }

// passing leaves what gzip would decompress as it is.
type passing struct{}

// Do implements grpc.Decompressor.
func (passing) Do(r io.Reader) ([]byte, error) { return io.ReadAll(r) }

// Type implements grpc.Decompressor.
func (passing) Type() string { return gzip.Name }
