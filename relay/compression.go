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

// Values of [Config.RequestCompression].
const (
	CompressionOff  = "off"  // requests that are compressed are refused
	CompressionGzip = "gzip" // they are understood
)

var errCompressed = errors.New("compressed requests are not accepted (TENDER_REQUEST_COMPRESSION=off)")

// uncompressedOnly returns the options of a server that reads no compressed request. Bytes on the wire are bounded, and one of them
// may stand for a thousand in memory. That no decompressor is imported would not do: exporters of telemetry register them.
func uncompressedOnly() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainStreamInterceptor(refuseCompressed),
		grpc.RPCDecompressor(refusingDecompressor{}), //nolint:staticcheck // SA1019: unary calls are decompressed before any interceptor is called
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

// A refusingDecompressor refuses what gzip would decompress.
type refusingDecompressor struct{}

// Do implements grpc.Decompressor.
func (refusingDecompressor) Do(io.Reader) ([]byte, error) { return nil, errCompressed }

// Type implements grpc.Decompressor.
func (refusingDecompressor) Type() string { return gzip.Name }
