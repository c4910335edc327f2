package wire

// ProbeHeader is the gRPC metadata of a stream by which a relay asks whether an origin would serve
// it. To any origin it is a stream like another. A relay answers it with the same header and OK if it
// is ready, else with UNAVAILABLE, and makes no node group for it.
const ProbeHeader = "tender-probe"
