// Package relay puts the parts of Tender together: it reads the configuration,
// sorts clients into node groups, and runs origin, cache and server.
//
// # Where to read
//
// A change goes through the relay like this:
//
//	upstream.stream.receive     a response of the origin is decoded: the envelope only
//	upstream.mirror.update      it is applied whole and acknowledged, or refused
//	cache.Writer.Apply          a new immutable head; who watches what changed is woken
//	downstream.stream.flush     each woken stream asks what its client must be told: for each
//	                            type, subscription.next is changes (Delta, partial SotW) or fullSet
//	wire.Response               shared bytes and a nonce, handed to gRPC as they are
//
// That is the hot path, and all of it: start with downstream/stream.go, func
// flush. The others are in stream.go and mirror.go of upstream, cache/writer.go,
// changes.go and sotw.go of downstream, and cache/wire/response.go.
// This package has no part in it, and knows no rule of the protocol but
// what a node group is (group.go).
//
// DESIGN.md has the decisions and their dates.
package relay
