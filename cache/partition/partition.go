// Package partition divides keys into disjoint sets: which of them are connected, directly or by others.
//
// The package is not a stable API: programs that embed Tender use package relay.
package partition

// A Partition divides keys into disjoint sets. The zero value has no keys. It belongs to one goroutine.
//
// It is a union-find over numbers. Each key has a number, in the order in which the keys were added.
type Partition[K comparable] struct {
	numbers map[K]int
	keys    []K
	parents []int // by number: another one of its set, or itself
}

// Add returns the number of a key. It adds the key, as a set of its own, if the partition does not have it.
func (p *Partition[K]) Add(key K) (number int) {
	number, known := p.numbers[key]
	if known {
		return number
	}
	if p.numbers == nil {
		p.numbers = make(map[K]int)
	}
	number = len(p.keys)
	p.numbers[key], p.keys, p.parents = number, append(p.keys, key), append(p.parents, number)
	return number
}

// Find returns the number of a key, and whether the partition has the key.
func (p *Partition[K]) Find(key K) (number int, known bool) {
	number, known = p.numbers[key]
	return number, known
}

// Keys returns the keys by number. The caller must not change them.
func (p *Partition[K]) Keys() []K { return p.keys }

// Root returns the number that stands for the set of a number. It changes when sets are joined.
func (p *Partition[K]) Root(number int) int {
	for p.parents[number] != number {
		p.parents[number] = p.parents[p.parents[number]]
		number = p.parents[number]
	}
	return number
}

// Join makes the sets of two numbers one.
func (p *Partition[K]) Join(a, b int) { p.parents[p.Root(a)] = p.Root(b) }
