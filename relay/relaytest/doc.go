// Package relaytest has a scripted origin and scripted clients for tests of the relay. Tests can script each message,
// or let both sides follow the protocol.
//
// An [Origin] is an ADS server of Delta or SotW. In automatic mode it serves resources as the protocol requires.
// [Behaviour] makes it deviate like some real control planes: it does not respond for missing names, ignores
// initial_resource_versions, or sends no versions. In manual mode the test accepts each [OriginStream], reads its
// requests and sends arbitrary responses, including malformed ones. The origin records all requests and responses.
//
// A [Client] uses SotW or Delta on one stream, aggregated or of one type. In manual mode the test sends each request.
// With AutoAck the client accepts all responses, and has the state that an Envoy or a gRPC client would have. A
// [LightClient] does only that, but is cheap enough for thousands of clients. Both check each response against the
// protocol, and report violations to the TB.
//
// A [proxy.Proxy] between two peers injects faults: it rejects, breaks, stalls, delays and throttles connections,
// closes one side, or answers in place of the origin.
//
// Packages below this one have the parts that not every test needs: controlplane (origins that run go-control-plane),
// ledger (checks of long histories), loadserver, proxy, certs and others.
//
// The package neither polls nor sleeps. A blocking call waits for a change, bounded by its context and by [Patience].
// On a timeout, the test fails with a dump of the recent messages. [Client.Fence] checks that nothing else was sent,
// without a timeout. With OriginOptions.Memory, everything runs inside a testing/synctest bubble.
//
// Calls that can fail the test (those with a context, and Apply) must be made in the goroutine of the test, as Fatalf.
//
// The package is not a stable API: programs that embed Tender use package relay.
package relaytest

import "github.com/xdstender/tender/relay/relaytest/wait"

// TB is a test, or a program in the role of a test.
type TB = wait.TB

// Patience bounds every blocking call of this package, in addition to its context, so that a test that hangs fails.
const Patience = wait.Patience
