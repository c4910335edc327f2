// Package relay is Tender as a library, and what tender serve runs: it reads the configuration, sorts
// clients into node groups, and runs origin, cache and server.
//
// # Embedding
//
// A program that runs a relay in itself needs [LoadConfig], [New] and [Relay.Run], as in the examples, with
// listeners, a logger and connections of its own in [Options]. deploy/docs/embedding.md says what else is the
// program's.
//
// # What is stable
//
// From v1.0.0 on, this package follows semantic versioning: a program that compiles and works goes on to do
// both, if it names the fields in literals of structs, to which fields are added. Excepted is what says that
// it is not stable. All other packages of the module say so: they are the relay's parts, and follow it.
//
// # Where to read
//
// A change goes through the relay like this:
//
//	upstream.stream.receive     a response of the origin is decoded: the envelope only
//	upstream.answers.update     it is acknowledged, or refused
//	reconcile.Set.Take          it is applied whole, but for removals that the origin may not have meant
//	cache.Writer.Apply          a new immutable generation; who watches what changed is woken
//	downstream.stream.flush     each woken stream asks what its client must be told: for each
//	                            type, subscription.Next: what changed (Delta, partial SotW) or a set
//	wire.Response               shared bytes and a nonce, handed to gRPC as they are
//
// That is the hot path, and all of it: start with downstream/flush.go, func flush. The others are in stream.go and
// answers.go of upstream, edit.go of cache, changes.go and sets.go of downstream/subscription, and
// cache/wire/response.go. This package has no part in it, and knows no rule of the protocol but what a node group is
// (group.go).
//
// deploy/docs/protocol.md has the rules, decisions and hazards that comments cite by codes such
// as R044, B.12 and C08; DESIGN.md has the decisions about the implementation.
package relay
