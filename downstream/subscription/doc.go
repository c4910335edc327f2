// Package subscription holds the subscription of one client to one resource type: what the client subscribed to, what
// it was sent, and the responses and their answers. From these it builds the next response. It does no I/O, starts no
// goroutine and has no lock: a stream calls it while it holds its own lock.
//
// # Three types
//
// A [Subscription] consists of three small types, and each has a String method:
//
//	want            the subscribed names and the wildcard; responses do not change these (C08)
//	sent            positions in the logs of the view, and resources that are due regardless of the logs;
//	                beside it, reported is what the client reported in its first request
//	Conversation    the newest response: nonce, version, ACK or NACK, and the ACK deadline;
//	                a type and its globs share it
//
// A requestUpdate applies a request: it changes want and records the answer to a response. A visible is a subscription
// at one generation of the view; it decides what the client may see. Three encoders turn that into a [Response]:
// changes (Delta, and partial SotW types), sets (complete SotW sets) and removals (Delta removals that were delayed, or
// that a returning client needs). A returning client is one that reports in its first request that it holds resources.
//
// # Where to read
//
// A file uses only identifiers that it or a file before it declares:
//
//	client.go         settings, what all subscriptions of a client share, and how the protocol treats a type
//	want.go           subscribed names and the wildcard
//	sent.go           positions up to which the client was served
//	conversation.go   responses, ACKs, NACKs, and fanouts (changes tracked to all clients)
//	pending.go        resource errors that are due
//	subscription.go   the composed subscription, and globs
//	returning.go      resources that a returning client reports
//	request.go        requests
//	visible.go        what the client may see at one generation
//	referrers.go      clusters that endpoints wait for
//	setbuilder.go     the builder of a complete set
//	sums.go           fingerprints of what the client sees, and whether a reported version can be trusted
//	response.go       the writer of a response
//	ttl.go            TTLs in responses
//	errors.go         resource errors in responses
//	changes.go        encoder: changes
//	removals.go       encoder: removals
//	sets.go           encoder: complete sets
//	order.go          progress of a subscription, for make-before-break order
//	next.go           the calls of a stream in each turn, and of REST polls
//	sync.go           whether the client has what the view serves
//	holding.go        the state of a resource at the client, and the versions that it was sent and accepted
//	status.go         status for operators, and for rollouts
//
// The package is not a stable API: programs that embed Tender use package relay.
package subscription
