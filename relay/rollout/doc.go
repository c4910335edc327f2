// Package rollout distributes the changes of an origin in stages: first to some clients, and to the rest if no signal
// rejects them. DESIGN.md has an overview ("Staged rollout").
//
// # Terms
//
// Latest is the newest state of the origin. A part is what belongs together of its pending changes, over all node
// groups. An edition is a snapshot of latest of the resources of a part. A section is the state that one writer keeps.
// A cohort is the clients of one stage; the rest are all other clients. The last good is the edition that the rest is
// served. An answer of a client is its ACK or NACK. An edition is promoted if the rest is served it, and rejected if
// all cohorts return to the last good.
//
// # Where to read
//
// [Stages] is the grammar of TENDER_ROLLOUT and selects the cohort of a Node. [Machine] is the state machine of one
// part: from facts and the time, it decides what each cohort is served. [Signals] counts ACKs, NACKs and disconnects of
// an edition. [Check] queries an external system, and a [Judge] gives an edition to a local Envoy. None of these starts a
// goroutine, and only Check and Judge do I/O.
// [Controller] divides pending changes into parts and drives these for one origin: each [Section] pins editions in a
// view and serves them, and an [Observer] follows each stream. Both report to the tracker of the controller, which is
// what goroutines share. [Status] is the state for operators.
//
// The package is not a stable API: programs that embed Tender use package relay.
package rollout
