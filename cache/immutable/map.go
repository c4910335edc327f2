package immutable

import (
	"hash/maphash"
	"slices"
)

// A Map maps strings, which origins and clients may choose by the thousands, to values. A change copies two nodes,
// however many values there are. The zero value is empty.
type Map[V any] struct {
	root *[fanout]*bucket[V] // by the hash of the key
	n    int
}

// A bucket has few keys even of thousands, by further bits of the hash.
type bucket[V any] [bucketSize][]item[V]

const bucketSize = 16

type item[V any] struct {
	key   string
	value *V
}

// seed makes the hashes unpredictable, so that nobody can choose keys with equal ones.
var seed = maphash.MakeSeed()

// slot returns where a key is: the index in the root, and in the bucket.
func slot(key string) (high, low uint64) {
	h := maphash.String(seed, key)
	return h % fanout, h / fanout % bucketSize
}

// Len returns the number of keys.
func (m *Map[V]) Len() int { return m.n }

// Get returns the value of a key, nil if there is none.
func (m *Map[V]) Get(key string) *V {
	if m.root == nil {
		return nil
	}
	high, low := slot(key)
	if m.root[high] == nil {
		return nil
	}
	for _, i := range m.root[high][low] {
		if i.key == key {
			return i.value
		}
	}
	return nil
}

// Set makes the map its next version, with another value for a key.
func (m *Map[V]) Set(key string, value *V) {
	at := m.writable(key)
	if i := index(*at, key); i >= 0 {
		(*at)[i].value = value
	} else {
		*at = append(*at, item[V]{key, value})
		m.n++
	}
}

// Delete makes the map its next version, without a key.
func (m *Map[V]) Delete(key string) {
	at := m.writable(key)
	if i := index(*at, key); i >= 0 {
		*at = slices.Delete(*at, i, i+1)
		m.n--
	}
}

func index[V any](items []item[V], key string) int {
	return slices.IndexFunc(items, func(i item[V]) bool { return i.key == key })
}

// writable returns the items in the slot of a key, in nodes that no older version has.
func (m *Map[V]) writable(key string) *[]item[V] {
	var root [fanout]*bucket[V]
	var leaf bucket[V]
	high, low := slot(key)
	if m.root != nil {
		root = *m.root
	}
	if root[high] != nil {
		leaf = *root[high]
	}
	leaf[low] = slices.Clone(leaf[low])
	root[high], m.root = &leaf, &root
	return &leaf[low]
}
