package wire

// gRPC metadata between relays. A relay is identified by a token, which is random for each process.
const (
	// RelayHeader is sent by relays in requests: the tokens of the relays that the stream passes through, the relay that
	// opened it last. With it and ChainHeader, relays detect that they are connected in a loop (B.41). A stream that a
	// relay shares among clients lists only that relay.
	RelayHeader = "tender-relay"

	// ChainHeader is sent to relays in responses: for each path to an origin, the tokens of the relays on it, separated
	// by commas, the responding relay first.
	ChainHeader = "tender-chain"

	// ProbeHeader marks a stream with which a relay checks that an origin would serve it. A control plane handles it as
	// any other stream. A relay responds with the same header, and with OK if it is ready or UNAVAILABLE if not, and
	// creates no node group for the stream.
	ProbeHeader = "tender-probe"

	// ReportHeader is sent to relays in responses by a relay that accepts reports of their clients on the stream
	// ([ReportRequest]). A relay sends reports only on such streams.
	ReportHeader = "tender-reports"

	// HaltsHeader is sent by a relay in requests if it reads what rollouts above it have halted ([NewHaltsBody]), and in
	// responses to such requests by a relay that tells it on the stream. No other client is told.
	HaltsHeader = "tender-halts"
)
