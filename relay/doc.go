// Package relay is Tender as a library, and the implementation of tender serve. It reads the configuration, assigns
// clients to node groups, and runs the upstream sessions, the cache and the server.
//
// # Embedding
//
// A program that embeds a relay needs [LoadConfig], [New] and [Relay.Run], as in the examples. [Options] takes its
// listeners, logger and connections. deploy/docs/embedding.md lists the other responsibilities of the program.
//
// # Stability
//
// From v1.0.0 on, this package follows semantic versioning: programs continue to compile and to work. Use field names
// in struct literals, because fields may be added. Identifiers whose comment says that they are not stable are
// excepted. All other packages of the module are parts of the relay and are not stable.
//
// # Where to read
//
// A change passes through the relay in these steps:
//
//	upstream.stream.receive     decodes the envelope of a response of the origin
//	upstream.answers.update     sends an ACK or NACK to the origin
//	reconcile.Set.Take          applies the response as a whole, except removals that the origin may not have intended
//	cache.Writer.Apply          publishes a new immutable generation, and wakes the streams that watch a changed name
//	downstream.stream.flush     for each woken stream and type, calls subscription.Next: what changed (Delta, partial
//	                            SotW), or a complete set
//	wire.Response               adds a nonce to shared bytes, which gRPC receives as they are
//
// This is the whole hot path. Start with func flush in downstream/flush.go. The others are in stream.go and answers.go
// of upstream, edit.go of cache, changes.go and sets.go of downstream/subscription, and cache/wire/response.go. This
// package is not on the hot path, and implements no rule of the protocol except node groups (group.go).
//
// deploy/docs/protocol.md has the rules, decisions and hazards that comments cite by codes such as R044, B.12 and C08.
// DESIGN.md has the decisions about the implementation.
package relay
