package telemetry

import (
	"fmt"
	"hash/fnv"
	"time"
	"unicode/utf8"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
)

// A Reading is a snapshot of the counters of the relay.
type Reading struct {
	At     time.Time
	Status admin.Status
	Memory float64 // used share of the memory limit, from 0 to 1; 0 without a limit
	Server downstream.Stats

	// Counters of the drift audit: passes over all views, and found faults.
	AuditPasses int64
	AuditFaults map[AuditFault]int64

	Snapshots snapshot.Stats

	// Number of earlier generations, and the bytes of memory that only they use.
	Generations     int
	GenerationBytes int64

	Origins  []Origin          // in the order of Status.Origins
	Rollouts []*rollout.Status // by origin; empty if rollouts are off
	Groups   []Group           // one per value of the label group
	Clients  []admin.TypeTotals

	// Named are the keys of node groups that have metrics of their own. Others have the label Other. If nil, all groups
	// have metrics of their own.
	Named map[string]bool
}

// An AuditFault is the place of a fault that the drift audit found: the label of the node group, and the part of its
// view ([cache.Fault].Part).
type AuditFault struct{ Group, Part string }

// An Origin has the counters of a control plane or of a directory.
type Origin struct {
	Status admin.Origin
	Names  int // number of names that clients subscribe to
	upstream.Stats
}

// A Group has the counters of a node group, or of all node groups with the label Other.
type Group struct {
	Key      string
	Streams  int
	Types    map[string]downstream.TypeStats // by type URL
	Interest map[string]cache.InterestStats  // by type URL
}

// typeLabel returns the label of a type: its short name, or Other.
func typeLabel(typeURL string) string {
	if short, ok := schema.ShortName(typeURL); ok {
		return short
	}
	return Other // clients and origins can use any number of types
}

// byLabel sums the values of types with the same label, so that each series exists once.
func byLabel[T any](types map[string]T, plus func(T, T) T) map[string]T {
	sums := make(map[string]T, len(types))
	for typeURL, value := range types {
		label := typeLabel(typeURL)
		sums[label] = plus(sums[label], value)
	}
	return sums
}

// maxGroupLabel is the maximum length of the label of a group, in bytes.
const maxGroupLabel = 64

// viewLabel returns the label of a view's group. No node group has the label of a shared view. The number of shared
// views is small: one per set of content-affecting client features.
func (r *Reading) viewLabel(v *admin.View) string {
	if v.Shared {
		return groupLabel("xdstp:" + v.Group)
	}
	return r.groupLabel(v.Group)
}

// groupLabel returns the label of the node group with a key.
func (r *Reading) groupLabel(key string) string {
	if r.Named != nil && !r.Named[key] {
		return Other
	}
	return groupLabel(key)
}

// groupLabel shortens the key of a node group to maxGroupLabel bytes. It replaces the end of a long key by a hash of
// the key.
func groupLabel(key string) string {
	if len(key) <= maxGroupLabel {
		return key
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	end := maxGroupLabel - len("#00000000")
	for !utf8.RuneStart(key[end]) {
		end--
	}
	return fmt.Sprintf("%s#%08x", key[:end], h.Sum32())
}
