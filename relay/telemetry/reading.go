package telemetry

import (
	"fmt"
	"hash/fnv"
	"time"
	"unicode/utf8"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
)

// A Reading is what the relay has counted up to a moment.
type Reading struct {
	Version string
	Ready   bool
	Memory  float64 // how much of its limit is used: 1 is all, 0 if there is none
	Server  downstream.Stats

	// Of the drift audit: passes over all views, and faults found, by where.
	AuditPasses int64
	AuditFaults map[AuditFault]int64

	Snapshots snapshot.Stats
	Files     []Files

	Origins []Origin
	Groups  []Group
	Views   []View
}

// Files are files of credentials that are of use together alone.
type Files struct {
	Variable string    // that names the first of them
	NotAfter time.Time // when the certificate in force expires; zero if there is none
	Refused  int64     // changes that could not be used
}

// An AuditFault is where the drift audit found something: in the view of which group, and in
// which part of it (cache.Fault.Part).
type AuditFault struct{ Group, Part string }

// An Origin is what was counted of a control plane, or of a directory.
type Origin struct {
	Name      string
	Connected bool
	Frozen    bool // an operator has stopped the distribution of its changes
	Names     int  // that clients want of it
	upstream.Stats

	Files *DirectoryFiles // of a directory; nil for a control plane
}

// DirectoryFiles counts the files of a directory.
type DirectoryFiles struct{ Good, Bad int }

// A Group is a node group.
type Group struct {
	Key      string
	Streams  int
	Types    map[string]downstream.TypeStats // by type URL
	Interest map[string]cache.InterestStats  // likewise
	Clients  map[string]Clients              // likewise
}

// Clients are how those of a group stand that subscribed to a type.
type Clients struct {
	Lagging  int           // that lack a change
	Refusing int           // that refuse something
	Lag      time.Duration // the greatest, zero if none lacks anything
}

// plus returns both together.
func (c Clients) plus(o Clients) Clients {
	return Clients{c.Lagging + o.Lagging, c.Refusing + o.Refusing, max(c.Lag, o.Lag)}
}

// A View is what an origin says to a node group, or of names that several share.
type View struct {
	Group, Origin string
	Shared        bool
	Connected     bool
	Stale         time.Duration // for how long it has served what its origin cannot correct
	Withheld      int           // names of which clients see something else than it holds, since it is frozen
	Types         []Type
}

// A Type is what a view holds of a type.
type Type struct {
	TypeURL   string
	Resources int
	Bytes     int64
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

// label returns the key of a view's group, under which no group of clients goes that has
// the view for itself.
func (v *View) label() string {
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
