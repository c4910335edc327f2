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

// A Reading is what the relay has counted up to a moment.
type Reading struct {
	At     time.Time // the moment
	Status admin.Status
	Memory float64 // how much of its limit is used: 1 is all, 0 if there is none
	Server downstream.Stats

	// Of the drift audit: passes over all views, and faults found, by where.
	AuditPasses int64
	AuditFaults map[AuditFault]int64

	Snapshots snapshot.Stats

	// Earlier configurations that are kept, and how many bytes only they hold.
	Generations     int
	GenerationBytes int64

	Origins  []Origin          // in the order of Status.Origins
	Rollouts []*rollout.Status // by origin; none if they are off
	Groups   []Group
	Clients  []admin.TypeTotals
}

// An AuditFault is where the drift audit found something: in the view of which group, and in
// which part of it (cache.Fault.Part).
type AuditFault struct{ Group, Part string }

// An Origin is what was counted of a control plane, or of a directory.
type Origin struct {
	Status admin.Origin
	Names  int // that clients want of it
	upstream.Stats
}

// A Group is a node group.
type Group struct {
	Key      string
	Streams  int
	Types    map[string]downstream.TypeStats // by type URL
	Interest map[string]cache.InterestStats  // by type URL
}

// other is the label of all types that the protocol does not know: clients and origins
// may make up any number.
const other = "other"

// typeLabel returns the short name of a type.
func typeLabel(typeURL string) string {
	if short, ok := schema.ShortName(typeURL); ok {
		return short
	}
	return other
}

// byLabel sums what has the same label, so that no series comes twice.
func byLabel[T any](types map[string]T, plus func(T, T) T) map[string]T {
	sums := make(map[string]T, len(types))
	for typeURL, value := range types {
		label := typeLabel(typeURL)
		sums[label] = plus(sums[label], value)
	}
	return sums
}

// maxGroupLabel is how many bytes the label of a group has at most.
const maxGroupLabel = 64

// viewLabel returns the key of a view's group, under which no group of clients goes that has
// the view for itself.
func viewLabel(v *admin.View) string {
	if v.Shared {
		return groupLabel("xdstp:" + v.Group)
	}
	return groupLabel(v.Group)
}

// groupLabel returns the key of a group, or the beginning of a long one and a hash of all
// of it.
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
