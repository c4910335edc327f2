package reconcile

import (
	"slices"
	"sync/atomic"
	"time"
)

// A Hold has changes of resources that no client has received yet: removals that the origin may not have intended (B.15), or
// changes that break clients (B.46).
type Hold struct {
	TypeURL string
	Names   []string // in order

	// Broken reports that the changes would break clients. Reasons has the reason for each name.
	Broken  bool
	Reasons []string

	// Since is when the first change was held. Until is when the second look decides; zero if it has begun, or has to wait
	// for the origin.
	Since, Until time.Time

	// Unconfirmed reports that it is not decided yet whether to hold the removals: the set is not complete, or a held
	// resource refers to their resources.
	Unconfirmed bool

	// Reported reports that the view never had the resources: returning clients report them, and wait for the decision.
	// The name [cache.AllNames] stands for resources that clients report without names, by the version of a set.
	Reported bool

	// Discarded reports that an operator discarded the removals: the resources stay until the origin
	// mentions them.
	Discarded bool
}

// An Action is an operation of an operator on holds.
type Action int

// The actions.
const (
	List    Action = iota // changes nothing
	Release               // carries out the changes
	Discard               // keeps the resources until the origin mentions them
)

// A Command is an action and the holds that it is about. The zero value lists all.
type Command struct {
	Do        Action
	TypeURL   string // empty for all types
	Discarded bool   // Release applies to discarded changes, instead of held ones
}

// among returns those of holds that the command is about.
func (c Command) among(holds []Hold) []Hold {
	discarded := c.Do == Release && c.Discarded
	return slices.DeleteFunc(holds, func(h Hold) bool {
		return c.TypeURL != "" && c.TypeURL != h.TypeURL || c.Do != List && h.Discarded != discarded
	})
}

// Counts are numbers of changes: Holding of those that are held now, the others of all since the start. Held were held,
// Applied were carried out, and Discarded were discarded by an operator.
type Counts struct{ Held, Applied, Holding, Discarded atomic.Int64 }
