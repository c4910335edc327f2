package cache

import (
	"hash/maphash"
	"iter"
	"slices"
	"sort"
	"strings"

	"github.com/xdstender/tender/cache/wire"
)

// Collection returns the key of what a glob stands for: wherever a view takes a type
// URL, it also takes this, and the collection's members are those resources of the
// type that the glob matches (R132). They are a set of their own, with a phase, a
// log and watchers of its own.
func Collection(typeURL, glob string) string { return typeURL + wire.Separator + glob }

// resourceType returns the type of the resources of a type or collection.
func resourceType(key string) string {
	typeURL, _, _ := SplitCollection(key)
	return typeURL
}

// SplitCollection returns the type URL and the glob of a collection, or a type URL as
// it is.
func SplitCollection(key string) (typeURL, glob string, is bool) {
	return strings.Cut(key, wire.Separator)
}

// types holds a generation's types and collections, of which clients may make up thousands.
// It is persistent, as a table is: a change copies two nodes, however many there are.
// The log says in which order they last changed, as that of a set does.
type types struct {
	root *[fanout]*bucket // by the key's hash
	n    int
	log  []loggedType // by edition; types that changed again are dead
}

// A bucket holds few types even of thousands, by further digits of the hash.
type bucket [16][]*Type

type loggedType struct {
	key string
	at  uint64
}

// seed makes hashes of what origins and clients choose, so that they cannot choose equal ones.
var seed = maphash.MakeSeed()

func digits(key string) (high, low uint64) {
	h := maphash.String(seed, key)
	return h % fanout, h / fanout % uint64(len(bucket{}))
}

func (t *types) get(key string) *Type {
	if t.root == nil {
		return nil
	}
	high, low := digits(key)
	if t.root[high] == nil {
		return nil
	}
	for _, typ := range t.root[high][low] {
		if typ.URL == key {
			return typ
		}
	}
	return nil
}

// put records a type that changed. The log's array is shared with older generations, as that
// of a set is.
func (t *types) put(typ *Type) {
	at := t.writable(typ.URL)
	if i := slices.IndexFunc(*at, func(old *Type) bool { return old.URL == typ.URL }); i >= 0 {
		(*at)[i] = typ
	} else {
		*at = append(*at, typ)
		t.n++
	}
	t.log = append(t.log, loggedType{typ.URL, typ.revision})
	const slack = 64
	if len(t.log) <= 2*t.n+slack {
		return
	}
	alive := make([]loggedType, 0, t.n+t.n/2)
	for _, l := range t.log {
		if t.at(l) != nil {
			alive = append(alive, l)
		}
	}
	t.log = alive
}

// drop forgets a type that is there.
func (t *types) drop(key string) {
	at := t.writable(key)
	*at = slices.DeleteFunc(*at, func(old *Type) bool { return old.URL == key })
	t.n--
}

// writable returns the place of a key, in nodes of its own.
func (t *types) writable(key string) *[]*Type {
	var root [fanout]*bucket
	var leaf bucket
	high, low := digits(key)
	if t.root != nil {
		root = *t.root
	}
	if root[high] != nil {
		leaf = *root[high]
	}
	leaf[low] = slices.Clone(leaf[low])
	root[high], t.root = &leaf, &root
	return &leaf[low]
}

// at returns the type that a place in the log stands for, nil if it is dead.
func (t *types) at(l loggedType) *Type {
	if typ := t.get(l.key); typ != nil && typ.revision == l.at {
		return typ
	}
	return nil
}

// since returns the types that changed after an edition, oldest change first.
func (t *types) since(edition uint64) iter.Seq[*Type] {
	return func(yield func(*Type) bool) {
		from := sort.Search(len(t.log), func(i int) bool { return t.log[i].at > edition })
		for _, l := range t.log[from:] {
			if typ := t.at(l); typ != nil && !yield(typ) {
				return
			}
		}
	}
}
