package wire

// gRPC metadata between relays. A relay is identified by a token, which is random for each process.
const (
	// RelayHeader is in requests of relays: the tokens of the relays that the stream passes through, the last of which opened
	// it. With it and ChainHeader, relays detect that they are connected in a circle (B.41). A stream that a relay shares among
	// clients passes through no other relay.
	RelayHeader = "tender-relay"

	// ChainHeader is in responses to relays: for each path to an origin, the tokens of the relays on it, separated by commas. The
	// first is that of the relay that responds.
	ChainHeader = "tender-chain"

	// ProbeHeader is in a stream by which a relay asks whether an origin would serve it. Other origins treat it as any
	// stream. A relay responds with the same header and OK if it is ready, else with UNAVAILABLE, and creates no node
	// group for it.
	ProbeHeader = "tender-probe"
)
