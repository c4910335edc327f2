// Package quota limits how much of a shared total one peer may take (B.35).
//
// A [Pool] has a total, such as the streams or the node groups of a relay, and a [Share] for each peer that uses some
// of it. While less than half of the total is in use, one peer may take all of that half. Beyond it, no peer may have
// more than its share. So many clients behind one address are served while there is room, and one peer cannot lock
// out the others.
//
// [Names] is the quota of one origin: it counts the resource names that clients subscribe to, over all views.
//
// All methods may be called from any goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package quota
