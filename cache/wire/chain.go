package wire

// The gRPC metadata by which relays that stand in a row notice that they go round in a circle (B.41). A relay is known by a
// token, which is made for the process and says nothing else of it.
const (
	// RelayHeader is in requests of relays: the tokens of the relays that the stream comes through, the last one opened it. A
	// stream that a relay has for many clients comes through nobody else.
	RelayHeader = "tender-relay"

	// ChainHeader is in responses to relays: for each way to an origin, the tokens of the relays on it, separated by commas. The
	// first is that of the relay that responds.
	ChainHeader = "tender-chain"
)
