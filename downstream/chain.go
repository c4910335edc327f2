package downstream

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/xdstender/tender/cache/wire"
)

// A Chain knows the relays above and below this one. Its methods may be called from any goroutine.
type Chain interface {
	// Below counts a stream that comes through relays with these tokens ([wire.RelayHeader]), until leave is called, and
	// returns the paths to the origins ([wire.ChainHeader]). If one of the relays turns out to be above this one, end is
	// called once, from any goroutine. The error is FAILED_PRECONDITION if one already is, or the chain is too long.
	Below(tokens []string, end func(error)) (ways []string, leave func(), err error)
}

// relaysOf returns the tokens of the relays that a stream comes through; none if its client is no relay.
func relaysOf(ctx context.Context) []string {
	return metadata.ValueFromIncomingContext(ctx, wire.RelayHeader)
}

// enterChain counts a stream whose client is a relay, and sends it, in the response header, the relays above. Both
// relays detect a cycle, and only this stream ends, by end.
func (s *Server) enterChain(rpc grpc.ServerStream, end func(error)) (leave func(), err error) {
	tokens := relaysOf(rpc.Context())
	if s.cfg.Chain == nil || len(tokens) == 0 {
		return func() {}, nil
	}
	ways, leave, err := s.cfg.Chain.Below(tokens, end)
	if err != nil {
		return nil, err
	}
	send := rpc.SendHeader
	if isProbe(rpc) { // the header of which says more
		send = rpc.SetHeader
	}
	if err := send(metadata.MD{wire.ChainHeader: ways}); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}
