// Package rollout decides when a change of an origin reaches which clients: some proxies first, in stages, and the
// rest once nothing speaks against it. DESIGN.md has the picture ("Progressive distribution").
//
// # Terms
//
// Latest is the newest state of the origin. The last good is what the rest is served. An edition is a cut of latest,
// over all node groups of the origin; a cohort is the clients of one stage; the rest are all others.
//
// # Where to read
//
// [Stages] is the grammar of TENDER_ROLLOUT and says which cohort a Node is in. [Machine] is the states of one origin:
// it is told facts and the time, and says what each cohort is served. [Signals] counts what clients did with an
// edition. [Check] asks an external system. None of these starts a goroutine, and only Check does I/O. [Controller] drives
// them for one origin: it has the loops that write its views, each a [Part], pin and show editions, and an [Observer] for
// each stream. [Status] is what operators are shown.
//
// It is no stable API: programs that embed Tender use package relay.
package rollout
