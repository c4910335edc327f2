package telemetry

import (
	"maps"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream"
)

// Other is the value of the label group for all node groups that have no metrics of their own.
const Other = "other"

// GroupLabels assigns values of the label group, so that their number is limited. A node group keeps its value for as
// long as it exists: counters are never moved from one series to another. The counters of Other include groups that
// have ended, so they never decrease. Its methods may not be called concurrently.
type GroupLabels struct {
	maxNamed int
	named    map[string]int                  // number of existing node groups, by keys that are values of the label
	ended    map[string]downstream.TypeStats // counters of ended groups with the label Other, by type URL
}

// NewGroupLabels returns labels with at most maxNamed values other than Other at a time.
func NewGroupLabels(maxNamed int) *GroupLabels {
	return &GroupLabels{maxNamed: maxNamed, named: make(map[string]int), ended: make(map[string]downstream.TypeStats)}
}

// Begin returns the label of a new node group: its key, or [Other].
func (l *GroupLabels) Begin(key string) string {
	if key == Other || l.named[key] == 0 && len(l.named) >= l.maxNamed {
		return Other
	}
	l.named[key]++
	return key
}

// End records the end of a node group and its last counters. Another group may then have its label.
func (l *GroupLabels) End(label string, counts map[string]downstream.TypeStats) {
	if label == Other {
		l.ended = plus(l.ended, counts, downstream.TypeStats.Plus)
		return
	}
	if l.named[label]--; l.named[label] == 0 {
		delete(l.named, label)
	}
}

// Labels returns the current labels of node groups other than [Other], and the counters of ended groups with that
// label.
func (l *GroupLabels) Labels() (named map[string]bool, ended Group) {
	named = make(map[string]bool, len(l.named))
	for key := range l.named {
		named[key] = true
	}
	return named, Group{Key: Other, Types: maps.Clone(l.ended)}
}

// plus returns the sum of two maps. It changes neither.
func plus[T any](a, b map[string]T, add func(T, T) T) map[string]T {
	sum := maps.Clone(a)
	if sum == nil {
		sum = make(map[string]T, len(b))
	}
	for key, value := range b {
		sum[key] = add(sum[key], value)
	}
	return sum
}

// Plus returns the sum of the metrics of two node groups with the same label.
func (g Group) Plus(o Group) Group {
	return Group{
		Key: g.Key, Streams: g.Streams + o.Streams,
		Types:    plus(g.Types, o.Types, downstream.TypeStats.Plus),
		Interest: plus(g.Interest, o.Interest, cache.InterestStats.Plus),
	}
}
