// Package immutable has data structures of which every version stays readable while newer versions are made.
//
// A view publishes a new generation for each response of an origin, and readers of older generations continue without
// a lock. So a change must not modify what an older version shows, and must cost the size of the change, not that of
// the whole:
//
//   - [Table] maps small numbers to values. It is a radix-64 trie.
//   - [Map] maps strings to values. It is a hash tree of two levels.
//   - [Log] has the keys of a table or map in the order in which they last changed.
//
// One goroutine makes new versions; any number of goroutines may read those that it has published. A version is a
// value: copying it is cheap, and a change returns or stores the next one.
//
// The package is not a stable API: programs that embed Tender use package relay.
package immutable
