package reconcile

import (
	"slices"
	"sync/atomic"
	"time"
)

// A Hold lists resource changes of one type that clients have not received yet. They are removals that the origin may
// not have intended (B.15), or that are part of a unit that waits (B.11), or changes that would break clients (B.46).
type Hold struct {
	TypeURL string
	Names   []string // sorted

	// Breaking reports that the changes would break clients. Reasons has one reason per name.
	Breaking bool
	Reasons  []string

	// Since is when the first change was held. Until is when the second look decides. It is zero if the second look has
	// started, or if the time depends on the origin.
	Since, Until time.Time

	// Unconfirmed reports that the removals are suspected only: the set is incomplete, or a held resource refers to the
	// resources. They may still be applied without a hold.
	Unconfirmed bool

	// Reported reports that the view never received the resources: reconnecting clients report them, and keep them until
	// the decision. If a client reports the version of a set, [cache.AllNames] stands for all its resources.
	Reported bool

	// Discarded reports that an operator discarded the changes: the resources stay until the origin mentions them.
	Discarded bool
}

// An Action is what an operator does with holds.
type Action int

// The actions.
const (
	List    Action = iota // changes nothing
	Release               // applies the changes
	Discard               // keeps the resources until the origin mentions them
)

// A Command is an action on some holds. The zero value lists all holds.
type Command struct {
	Do        Action
	TypeURL   string // empty for all types
	Discarded bool   // Release applies the discarded changes, not the held ones
}

// matching returns the holds to which the command applies.
func (c Command) matching(holds []Hold) []Hold {
	discarded := c.Do == Release && c.Discarded
	return slices.DeleteFunc(holds, func(h Hold) bool {
		return c.TypeURL != "" && c.TypeURL != h.TypeURL || c.Do != List && h.Discarded != discarded
	})
}

// Counts are the counters of removals. Any goroutine may read them.
type Counts struct {
	HeldTotal      atomic.Int64 // removals that were ever held
	AppliedTotal   atomic.Int64 // removals applied after a decision
	DiscardedTotal atomic.Int64 // removals that an operator discarded
	HeldNow        atomic.Int64 // removals that are held now, over all groups
}
