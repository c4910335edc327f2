package immutable

import (
	"slices"
	"sort"
)

// A Log has keys in the order in which they last changed. A key that changes again gets a new item at the end, and
// its old item is dead; the owner of the log, who has the present position of each key, can tell. Reading the changes
// since a position so costs the number of changes. The zero value is empty.
//
// Versions share an array, to which only the newest version appends: each sees its own length of it.
type Log[K comparable, P ~uint64] []Change[K, P]

// A Change is the item of a log for one change of a key, which lies at a position.
type Change[K comparable, P ~uint64] struct {
	Key K
	At  P
}

// compactSlack is how many dead items a log of few keys may have.
const compactSlack = 64

// Append records that a key changed at a position after all others.
func (l *Log[K, P]) Append(key K, at P) { *l = append(*l, Change[K, P]{key, at}) }

// After returns the index of the first change after a position.
func (l Log[K, P]) After(p P) int {
	if len(l) == 0 || l[len(l)-1].At <= p {
		return len(l)
	}
	return sort.Search(len(l), func(i int) bool { return l[i].At > p })
}

// Has reports whether a log has a change of a key at a position.
func (l Log[K, P]) Has(key K, at P) bool {
	i := sort.Search(len(l), func(i int) bool { return l[i].At >= at })
	return i < len(l) && l[i] == Change[K, P]{key, at}
}

// Clip returns the log in a form that can be appended to beside the original.
func (l Log[K, P]) Clip() Log[K, P] { return slices.Clip(l) }

// Compact drops the dead items if they are more than half of all, given the number of keys. Its cost is shared by the
// changes that made them.
func (l *Log[K, P]) Compact(keys int, alive func(Change[K, P]) bool) {
	if len(*l) <= 2*keys+compactSlack {
		return
	}
	kept := make(Log[K, P], 0, keys+keys/2)
	for _, c := range *l {
		if alive(c) {
			kept = append(kept, c)
		}
	}
	*l = kept
}
