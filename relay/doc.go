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
// in struct literals, because fields may be added. Identifiers whose comment declares them unstable are excepted. All
// other packages of the module are internals of the relay and are not stable.
//
// # Where to read
//
// A change passes through the relay in these steps:
//
//	upstream.stream.receive             decodes the envelope of a response of the origin
//	upstream.responses.handleResponse   sends an ACK or NACK to the origin
//	reconcile.Set.Take                  applies the response, except removals that the origin may not have intended
//	cache.Writer.Apply                  publishes a new immutable generation, and wakes the streams that watch a
//	                                    changed name
//	downstream.sender.flush             sends the pending changes of a woken stream, type by type
//	subscription.Subscription.Next      returns the changes (Delta, partial SotW) or the complete set
//	wire.Response                       adds a nonce to shared bytes, which gRPC receives as they are
//
// This is the whole hot path. Start with func flush in downstream/flush.go. The others are in stream.go and
// responses.go of upstream, edit.go, put.go and publish.go of cache, changes.go and sets.go of downstream/subscription,
// and cache/wire/response.go.
//
// This package is not on the hot path. [Relay] (relay.go) owns these types:
//
//	listeners, servers      serve clients, and drain (server.go)
//	originProbes            probes the origins until the relay is ready (ready.go)
//	groups                  assigns clients to views (group.go, package nodegroup)
//	inspector               lists the views for commands, audits and metrics (inspect.go)
//	snapshots               stores views on disk (snapshots.go)
//	decisions               keeps decisions of operators, such as freezes, until they are revoked (decisions.go)
//	overview                returns the state of the relay for operators (admin.go, telemetry.go)
//	operations              has the methods that operator commands share (operate.go)
//	freezes, holds, rollbacks, audits, rolloutOperations
//	                        have the operator commands
//
// # Locks
//
// While a mutex is held, nothing blocks and no channel is used, unless this list notes otherwise. A test compares the
// list with the structs that have a mutex. The demo and the commands have further mutexes.
//
// Locks on the path of a change:
//
//   - cache.index guards the watches of names, reference counts and the numbers of names. It is the only lock of the
//     cache that a stream takes. If thousands of returning clients contend for it, use one lock per type.
//   - intern.Pool guards equal resources; the upstream sessions take it once per received resource.
//   - downstream.queue guards the streams with something to send.
//   - downstream.lock guards the state of a stream, between its receiver and a worker. Its holder may lend it while a
//     send blocks; others then wait for it on a channel.
//   - quota.Pool counts the usage of each peer. cache.timeline has the causes of the last 256 changes of a view.
//   - rollout.Controller guards the parts, clients and signals of a rollout. Streams call it while they hold their own
//     lock, so it calls no method of a stream while it holds this one.
//
// Locks for connections, clients and groups:
//
//   - guard.connections, nodes and nodeCache guard the connections of peers, and the large Nodes of a peer and of a
//     connection.
//   - guard.handshakes guards turns of TLS handshakes. The holder passes a turn on by closing a channel.
//   - downstream.arrivals detects a herd of new streams. pollHistory has the sets that REST pollers were sent.
//   - downstream.loadGroups and loadreport.Group guard the groups that report load, and the sum of a group. A goroutine
//     instead would need a queue, and a rule for a full queue.
//   - relay.groups guards the map of groups, when a stream joins or leaves. A snapshot of an evicted group is read
//     under it. That blocks, but is rare, and a rejected client cannot cause it.
//   - upstream.failureTracker counts the failures of an address over all views. upstream.streamLimiter decides which
//     view may open a stream. upstream.counters has the counters of an origin.
//
// Locks that no stream waits for:
//
//   - relay.decisions.writing is held while decisions are written. Only commands and the snapshot loop wait for it.
//   - relay.snapshots, snapshot.Dir, relay.chain, relay.auditor and relay.logLevel guard state that two loops, or a
//     loop and commands, share.
//   - generations.Store, history.Journal, lint.Linter, admin.actions, page.History, page.pageCache and page.tierWatch
//     guard data for operators. page.pageCache renders a page under its lock, so that pages are rendered one at a time.
//   - telemetry.Tracer and OriginTracer guard open spans. telemetry.autoexportMu guards a variable of the process that
//     OpenTelemetry's autoexport sets.
//
// # Rules and decisions
//
// deploy/docs/protocol.md has the rules, decisions and hazards that comments cite by codes such as R044, B.12 and C08.
// DESIGN.md has the decisions about the implementation.
package relay
