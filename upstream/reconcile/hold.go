package reconcile

import (
	"slices"
	"sync/atomic"
	"time"
)

// A Hold is changes of resources that wait and that no client has received: removals that the origin may not have meant
// (B.15), or changes that break clients (B.46).
type Hold struct {
	TypeURL string
	Names   []string // in order

	// Broken reports that clients could not use what is served after the changes. Reasons has why, for each name.
	Broken  bool
	Reasons []string

	// Since is when the first change was held. Until is when they are decided; zero if that has begun, or
	// has to wait for the origin.
	Since, Until time.Time

	// Unconfirmed reports that the removals are not decided yet: the set is not complete, or a held resource refers to
	// them.
	Unconfirmed bool

	// Reported reports that the view has never held the resources: returning clients report them, and
	// wait for the decision. The name [cache.AllNames] stands for what clients report without names, by
	// the version of a set.
	Reported bool

	// Discarded reports that an operator discarded the removals: the resources stay until the origin
	// mentions them.
	Discarded bool
}

// An Action is an operation of an operator on holds.
type Action int

// The actions.
// The actions.
const (
	List    Action = iota // nothing; whether they wait or were discarded
	Release               // carries out the removals
	Discard               // keeps the resources whose removal waits, until the origin mentions them
)

// A Command is an action and the holds that it is about. The zero value lists all.
type Command struct {
	Do        Action
	TypeURL   string // empty for all types
	Discarded bool   // Release those that were discarded, in place of those that wait
}

// among returns those of holds that the command is about.
func (c Command) among(holds []Hold) []Hold {
	discarded := c.Do == Release && c.Discarded
	return slices.DeleteFunc(holds, func(h Hold) bool {
		return c.TypeURL != "" && c.TypeURL != h.TypeURL || c.Do != List && h.Discarded != discarded
	})
}

// Counts are numbers of removals. Held counts those that were held, Applied all that were carried out,
// Discarded those that an operator discarded. Holding is how many are held now.
type Counts struct{ Held, Applied, Holding, Discarded atomic.Int64 }
