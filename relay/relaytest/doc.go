// Package relaytest has a scripted origin and scripted clients for tests of the relay. Tests can script each message, or
// let both behave like correct peers.
//
// An [Origin] is an ADS server of Delta or SotW. In automatic mode it holds resources and answers subscriptions as the
// protocol requires. [Behaviour] makes it deviate like some real control planes: no response for missing names, no use of
// initial_resource_versions, no versions. In manual mode the test accepts each [OriginStream], reads its requests and
// sends arbitrary responses, also malformed ones. The origin records all requests and responses.
//
// A [Client] speaks SotW or Delta on one stream, aggregated or of one type. In manual mode the test sends each message.
// With AutoAck the client accepts all responses, and keeps the state that an Envoy or a gRPC client would have. A
// [LightClient] only does the latter, at a cost that permits thousands of them. Both check the protocol on every response
// and report violations to the TB.
//
// A [proxy.Proxy] stands between peers on sockets and injects faults: it refuses, breaks, stalls, delays and throttles
// connections, closes only one side, or answers in place of the origin.
//
// The package neither polls nor sleeps. A blocking call waits for a change, bounded by its context and by [Patience]. On a
// timeout, the test fails with a dump of the conversation. [Client.Fence] shows that nothing is sent, without a timeout.
// With OriginOptions.Memory, everything runs inside a testing/synctest bubble.
//
// Calls that may fail the test (those with a context, and Apply) must be made in the goroutine of the test, like Fatalf.
//
// The package is not a stable API: programs that embed Tender use package relay.
package relaytest
