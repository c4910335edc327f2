// Package relay puts the parts of Tender together: it reads the configuration,
// sorts clients into node groups, and runs origin, cache and server.
//
// # Where to read
//
// A change goes through the relay like this:
//
//	upstream.mirror.update      a response of the origin is decoded: the envelope only
//	cache.Writer.Apply          a new immutable head; who watches what changed is woken
//	downstream.stream.run       each woken stream asks what its client must be told
//	downstream.subscription     changes (Delta, partial SotW) or fullSet (SotW clusters, listeners)
//	wire.Response               shared bytes and a nonce, handed to gRPC as they are
//
// That is the hot path, and all of it: start with downstream/stream.go, func
// flush. This package has no part in it, and knows no rule of the protocol but
// what a node group is (group.go).
//
// DESIGN.md has the decisions and their dates.
package relay
