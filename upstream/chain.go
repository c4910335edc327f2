package upstream

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/xdstender/tender/cache/wire"
)

// A Chain knows the relays above and below this one. Its methods may be called from any goroutine.
type Chain interface {
	// Token is what other relays know this one by.
	Token() string

	// Above takes the ways to an origin that a server has shown on a stream ([wire.ChainHeader]), until leave is called.
	// FAILED_PRECONDITION if the stream must not be used, since this relay is on one of them, or one is too long.
	Above(ways []string) (leave func(), err error)
}

// identified returns the context of a stream to a target, which says which relay opens it.
func (c *Config) identified(ctx context.Context) context.Context {
	if c.Chain == nil {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, wire.RelayHeader, c.Chain.Token())
}

// enterChain waits for the header of a stream, and takes what it says of the relays above, if anybody looks.
func (c *Config) enterChain(rpc grpc.ClientStream) (leave func(), err error) {
	if c.Chain == nil {
		return func() {}, nil
	}
	header, err := rpc.Header()
	if err != nil { // RecvMsg returns it
		return func() {}, nil
	}
	return c.Chain.Above(header.Get(wire.ChainHeader))
}
