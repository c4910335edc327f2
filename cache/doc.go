// Package cache holds what an origin has said to one node group.
//
// A [View] has one writer, the upstream session, and any number of readers, the
// downstream streams. Every response of the origin makes a new immutable [Generation];
// a reader that holds one sees a consistent cut over all types and takes no lock.
// What a stream was sent is a position in the head's logs, or a sequence for
// each name: never a queue, never a copy (B.1).
//
//	origin ── Writer.Apply ──▶ Generation{Seq, Type…} ──▶ Set{table, log} ◀── streams read what lies after their position
//	                      └──▶ index: who watches what changed ──▶ Watch: wake-up, hints
//
// # The two sets of a type
//
// Of each type a view keeps two sets: the members, which the origin chose for a
// wildcard subscription, and the named, which were asked for by name. They never
// mix, so a resource that was only ever named cannot leak into a wildcard
// client's set, or be deleted from it (B.5). [Type.Lookup] is how a stream that
// named a resource sees both.
//
// # Concurrency properties
//
// Heads, types, sets and entries are immutable. A [Writer] belongs to one
// goroutine. A [Watch] belongs to one goroutine, but for its channel, which the
// writer sends to. The index of interest is guarded by a mutex, the only one that
// a reader meets; under it nothing blocks, and no channel is touched. A watch that
// is registered before it loads the head misses nothing: writers publish a head
// and ask the index whom to wake under that mutex, and registering takes it too.
//
// A wake-up says which names it is about, by hints that a stream finds beside its watch
// without a lock ([Watch.Hinted]). They are there before the head is, so who has loaded a
// head has its hints, and perhaps those of the next one. They are few: when there are more
// than a handful, or none are kept, the logs say what changed.
//
// It is no stable API: programs that embed Tender use package relay.
package cache
