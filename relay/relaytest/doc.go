// Package relaytest has a scripted origin and scripted clients: both ends of
// the relay, driven message by message or left to behave like good peers.
//
// An [Origin] is an ADS server that speaks Delta, or SotW if it is told to. In its automatic mode it holds resources
// and answers subscriptions as the protocol asks; [Behaviour] makes it answer
// as some real control planes do instead (silent on missing names, deaf to
// initial_resource_versions, without versions). In manual mode the caller
// accepts each [OriginStream], reads its requests and sends what it likes,
// rubbish included. The origin records all that happens to it.
//
// A [Client] speaks SotW or Delta over one stream, aggregated or of one type.
// By hand, each message is the caller's; with AutoAck it accepts what it gets
// and keeps the view of the world that an Envoy or a gRPC client would have. A
// [LightClient] does only the latter, cheaply enough to run thousands. Both
// check the protocol on every response they get and report each violation to
// the TB.
//
// A [Proxy] stands between peers on sockets, and makes the network between them fail:
// it refuses, breaks, holds back, delays, throttles, leaves one end in the dark, or has
// somebody answer who is no origin at all.
//
// Nothing here polls or sleeps. A blocking call waits for a change, bounded by
// its context and by [Patience]; when that runs out it fails the test with a
// dump of what was seen. That nothing is sent is shown by [Client.Fence], never
// by a clock. With OriginOptions.Memory all of it runs inside a
// testing/synctest bubble.
//
// Calls that may fail the test (those that take a context, and Apply) belong
// to the goroutine of the test, as Fatalf does.
//
// It is no stable API: programs that embed Tender use package relay.
package relaytest
