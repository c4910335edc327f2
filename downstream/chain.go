package downstream

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/xdstender/tender/cache/wire"
)

// A Chain knows the relays above and below this one. Its methods may be called from any goroutine.
type Chain interface {
	// Below counts a stream in that comes through relays with these tokens ([wire.RelayHeader]), until leave is called, and
	// returns the ways to the origins ([wire.ChainHeader]). If one of the relays is found to be above, end is called once, from any
	// goroutine. FAILED_PRECONDITION if it is above already, or they are too many.
	Below(tokens []string, end func(error)) (ways []string, leave func(), err error)
}

// relaysOf returns the tokens of the relays that a stream comes through; none if its client is no relay.
func relaysOf(ctx context.Context) []string {
	return metadata.ValueFromIncomingContext(ctx, wire.RelayHeader)
}

// enterChain counts a stream in if its client is a relay, and tells that, in the header of the response, which relays are above.
// Both ends notice a circle, and only this stream ends, by end.
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
