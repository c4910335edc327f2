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
// A change passes through the relay in these steps. A step calls those that are indented below it, perhaps through
// other functions. Two steps hand over to another goroutine: receive to that of the view, and Apply to the workers that
// serve the streams.
//
//	upstream.stream.receive             decodes the envelope of a response of the origin (upstream/stream.go)
//	upstream.responses.handleResponse   applies the response and then sends an ACK, or sends a NACK and changes nothing
//	                                    (upstream/responses.go)
//	  reconcile.Set.Take                applies the response, except removals that the origin may not have intended
//	                                    (upstream/reconcile/take.go)
//	    pending.List.Apply              keeps changes that must wait, and applies the others (pending/apply.go)
//	      cache.Writer.Apply            publishes a new immutable generation, and wakes the streams that watch a
//	                                    changed name (cache/apply.go)
//	downstream.stream.flush             sends the pending changes of a woken stream, type by type (downstream/flush.go)
//	  subscription.Subscription.Next    returns the changes (Delta, partial SotW) or the complete set
//	                                    (downstream/subscription/next.go)
//	  wire.Response                     adds a nonce to shared bytes, which gRPC receives as they are
//	                                    (cache/wire/response.go)
//
// Start with flush. The package comments of upstream, pending, cache, downstream and downstream/subscription list their files in
// the order to read them.
//
// The rest of this package is not on the hot path. [Relay] (relay.go) uses these types:
//
//	listeners, servers      serve clients, and drain (server.go)
//	originProbes            probes the origins until the relay is ready (ready.go)
//	router                  selects the origin of each resource (origin.go)
//	groups                  assigns clients to views (group.go, package nodegroup), and lists the views for operators
//	                        and metrics (inspect.go)
//	rollouts                distributes changes in stages (rollouts.go, package rollout)
//	localEnvoy              serves an Envoy that judges changes (judging.go, package judge)
//	snapshots               stores views on disk (snapshots.go)
//	decisions               keeps decisions of operators, such as freezes, until they are revoked (decisions.go)
//	rollbackDistrust        makes views distrust reported versions after a rollback (rollback_distrust.go)
//	operations              executes operator commands (operate.go, rollback.go, rollouts.go)
//	auditor                 checks views for inconsistent state (audit.go)
//	rejects                 tell origins which resources clients reject (rejects.go)
//	tierReports             tell relays above what clients have (tiers.go)
//	tierHalts               tell relays below what is halted, and hear it of those above (halts.go, halts_told.go)
//	peerRollouts            tell peers what rollouts have decided, and the reverse (peerrollouts.go)
//	chain                   refuses streams that would close a cycle of relays (chain.go)
//	exporters               export metrics, spans and events (telemetry.go)
//
// Relay itself returns its state for operators and metrics (admin.go, telemetry.go).
//
// # Locks
//
// This list has each mutex of a relay; a test compares it with the code. The demo and the commands have further
// mutexes. Code must not block or use a channel while it holds a mutex. The list has the exceptions.
//
// Locks on the path of a change:
//
//   - cache.index guards the watches of names, reference counts and the numbers of names. Streams take it to subscribe,
//     and writers to publish. If thousands of returning clients contend for it, use one lock per type.
//   - pending.Clock guards which types of a view wait. The goroutines of its origins take it for each response, only if a
//     minimum push interval is configured.
//   - cache.timeline guards the causes of the last 256 changes of a view.
//   - quota.Pool guards the shares of the peers that use a limit.
//   - intern.Pool guards equal resources. Writers take it for each received resource.
//   - downstream.queue guards the streams with something to send.
//   - downstream.lock guards the state of a stream, between its receiver and a worker. Its holder may lend it while a
//     send blocks; others then wait for it on a channel. A channel with a buffer passes the status of an ended stream.
//   - rollout.tracker guards the parts, clients and signals of a rollout. Streams call it while they hold their own
//     lock, so it must not call a method of a stream while it holds this one.
//
// Locks for connections, clients and groups:
//
//   - guard.connections guards the connections of hosts, guard.nodes the large Nodes of a peer, guard.names its
//     budgets of names, and guard.nodeCache the large Nodes of a connection.
//   - guard.handshakes guards turns of TLS handshakes. The holder passes a turn on by closing a channel.
//   - transport.Conn guards a connection of package transport and its streams. It is held while frames are written to the
//     socket, which does not block. A stream takes it while it holds its own lock, to send. transport.lower guards the
//     ciphertext of a connection, and is taken under it. transport.Server guards the listeners and connections.
//   - downstream.grantWatch counts the streams whose grants its goroutine renews.
//   - downstream.pollHistory has the sets that REST pollers were sent.
//   - loadreport.groups and loadreport.Group guard the groups that report load, and the sum of a group. A goroutine
//     instead would need a queue, and a rule for a full queue.
//   - rollout.Trials guards which editions of all origins the Envoy that judges them has.
//   - relay.localEnvoy guards what the Envoy that judges editions is served, and relay.envoySession what it has rejected.
//   - relay.groups guards the map of groups, when a stream joins or leaves. Snapshots are read under it: all of them at
//     the start, and later that of an evicted group, whose loops may take a tenth of a second to end. That blocks, for ten
//     seconds if the disk hangs, but is rare, and a refused client cannot cause it.
//   - relay.snapshots guards which views have snapshots. A new group takes it.
//   - relay.chain guards the relays above and below this one.
//   - upstream.failureTracker counts the failures of an address over all views. upstream.streamLimiter decides which
//     view may open a stream. upstream.counters has the counters of an origin.
//   - upstream.addresses guards the addresses of a name. It is held while gRPC takes a new list, which blocks, so that
//     lists have one order.
//
// Locks for operators:
//
//   - relay.decisions has a mutex, writing, that is held while decisions are collected and written, which blocks.
//     Commands wait for it.
//   - relay.tierHalts guards what views have heard of halts above. It tells it to rollouts while it is held, which wakes their
//     controllers without blocking, so that the newest comes last. relay.haltsBelow, inside it, guards what relays below are told.
//   - relay.peerRollouts guards the number of decisions. rollout.peers guards what peers have decided, and which do not answer.
//   - relay.auditor guards the faults of audits. relay.logLevel serializes changes of the level.
//   - logqueue.Queue guards the records that wait for the output of the log. All goroutines that log take it.
//   - judge.output guards the last lines of an Envoy. It is held while its lines are logged.
//   - generations.Store, history.Journal, lint.Linter, admin.actions, page.History, page.pageCache and page.background
//     guard data for operators. page.pageCache renders a page under its lock, so that pages are rendered one at a time.
//   - telemetry.Tracer guards the tracers of origins, telemetry.OriginTracer the changes that wait for an edition, and
//     its span.
//
// # Rules and decisions
//
// relay/PROTOCOL.md has the rules, decisions and hazards that comments cite by codes such as R044, B.12 and C08.
// DESIGN.md has the decisions about the implementation.
package relay
