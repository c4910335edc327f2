// Package subscription holds what a client wants of one resource type, what it was sent of it, and the conversation
// about that; from these, it makes the next response. It does no I/O, starts no goroutine and has no lock: a stream
// calls it while it holds its own lock.
//
// # Three types
//
// A [Subscription] is composed of three small types, and each prints itself:
//
//	want            names, the wildcard, and since when; only requests change it (C08)
//	sent            positions in the logs of the view, and what is due whatever the logs say;
//	                beside it, held is what the client reported in its first request
//	Conversation    the newest response: nonce, version, ACK or NACK, and how long to wait;
//	                a type and its globs share it
//
// A request changes what is wanted and is the answer to a response (change). At one generation of the view, shown says
// what the client is to see. Three encoders turn that into a [Response]: changes (Delta, and partial SotW types), sets
// (complete SotW sets) and removals (Delta removals that had to wait, or that a returning client needs).
//
// # Where to read
//
// Each file uses only what the files before it define:
//
//	client.go         what is configured, and what all subscriptions of a client share
//	traits.go         how the protocol treats a type
//	want.go           names and the wildcard
//	sent.go           how far the client was served
//	conversation.go   responses, their answers, NACKs, and changes that are followed to all clients
//	pending.go        errors that are due
//	subscription.go   all of that, composed, and globs
//	returning.go      what a returning client reports
//	request.go        requests
//	visible.go        what the client may see at one generation
//	setbuilder.go     a complete set being collected
//	sums.go           fingerprints of what the client sees
//	trust.go          whether a version that the client reported proves anything
//	response.go       a response being built
//	ttl.go            TTLs in it
//	errors.go         errors in it
//	changes.go        encoder: what changed
//	removals.go       encoder: removals
//	sets.go           encoder: complete sets
//	order.go          how far a subscription is, for make-before-break order
//	next.go           what a stream calls in its turn
//	poll.go           REST
//	status.go         what operators see
//	observed.go       what rollouts ask
//
// It is no stable API: programs that embed Tender use package relay.
package subscription
