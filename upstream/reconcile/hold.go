package reconcile

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
)

// A Reason is why a change waits.
type Reason string

// The reasons, as operators see them.
const (
	// Suspect is the reason of removals that the origin may not have meant. They wait until the set is complete, and no
	// held resource refers to theirs (B.15).
	Suspect Reason = "suspect"

	// SecondLook is the reason of a few removals that the relay requests again before it applies them.
	SecondLook Reason = "second-look"

	// LargeRemoval is the reason of removals that are held because they are many.
	LargeRemoval Reason = "large-removal"

	// Replacement is the reason of changes of resources that exclude one another, such as listeners on one address: an
	// addition, and the removal of the resource that it replaces, wait for the rest of their unit (B.11).
	Replacement Reason = "replacement"

	// Breaking is the reason of changes that would break clients (B.46).
	Breaking Reason = "breaking"

	// Required is the reason of removals of resources that only an operator removes (TENDER_REQUIRED).
	Required Reason = "required"

	// Growth is the reason of changes by which a resource, or the number of resources, grows abnormally (B.51).
	Growth Reason = "growth"

	// Dropped is the reason of changes that an operator dropped: clients keep the resources until the origin mentions
	// them.
	Dropped Reason = "dropped"

	// Interval is the reason of changes that wait for a minimum push interval (B.45).
	Interval Reason = "interval"
)

// Reasons has all reasons.
var Reasons = [reasons]Reason{Suspect, SecondLook, LargeRemoval, Replacement, Breaking, Required, Growth, Dropped, Interval}

// A Kind is what a change does with a resource that clients have, or do not have.
type Kind string

// The kinds of changes.
const (
	Addition Kind = "add"
	Update   Kind = "change"
	Removal  Kind = "remove"
)

// Kinds has all kinds.
var Kinds = []Kind{Addition, Update, Removal}

// A Hold lists changes of one type that clients have not received yet, for one reason.
type Hold struct {
	TypeURL string
	Reason  Reason
	Kind    Kind
	Names   []string // sorted

	// Changes has, for each name, the resource that clients have, and the one that waits.
	Changes []Change

	// Details has, for each name, why the change would break clients, how it grows, or why only an operator ends its wait although
	// its resource is not required. It is nil for other changes.
	Details []string

	// Since is when the first change began to wait; zero if that was in an earlier process. Until is when the second look
	// decides, the set is complete, or growth is applied. It is zero if the second look has started, or if the time depends on
	// the origin.
	Since, Until time.Time

	// ByOperator reports that only an operator ends the wait, unless the origin takes the change back.
	ByOperator bool

	// By is the operator who dropped the changes; empty for the relay, and if that was in an earlier process.
	By string

	// Reported reports that the view never received the resources: reconnecting clients report them, and keep them until
	// the decision. If a client reports the version of a set, [cache.AllNames] stands for all its resources.
	Reported bool
}

// A Change is a resource before and after a change; nil if there is none.
type Change struct{ Was, Is *wire.Resource }

// Undecided reports whether the changes may still be applied without a hold.
func (h *Hold) Undecided() bool { return h.Reason == Suspect || h.Reason == Replacement }

// An Action is what an operator does with holds.
type Action int

// The actions.
const (
	List Action = iota // changes nothing
	Pass               // applies the changes
	Drop               // keeps the resources until the origin mentions them
)

// A Command is an action on some changes. An empty field selects all. The zero value lists all changes.
type Command struct {
	Do      Action
	TypeURL string
	Name    string

	// Reason selects changes by their reason. Pass applies to dropped changes only if it is Dropped.
	Reason Reason

	By     string // the operator; not for List
	DryRun bool   // returns the changes to which the action would apply, and changes nothing
}

// changesNothing reports whether the command only lists changes.
func (c *Command) changesNothing() bool { return c.Do == List || c.DryRun }

// Applies reports whether the action applies to changes, apart from what the command selects. A dropped change cannot be
// dropped again, and passes only if the command says so. One that waits for an interval is not dropped. An addition that waits for the removal of another resource passes
// alone only by its name or reason, because clients may reject it: it passes with the removal. It cannot be dropped.
func (c *Command) Applies(h *Hold) bool {
	addition := h.Reason == Replacement && h.Kind != Removal
	switch c.Do {
	case Pass:
		return (h.Reason == Dropped) == (c.Reason == Dropped) && (!addition || c.Name != "" || c.Reason == Replacement)
	case Drop:
		return h.Reason != Dropped && h.Reason != Interval && !addition
	default:
		return true
	}
}

// OperateList executes the command on the changes that wait in a list, and returns those to which it applies. All changes of a type
// pass together.
func (c *Command) OperateList(list *pending.List) []Hold {
	var holds []Hold
	for _, w := range list.Waiting() {
		kind := [...]Kind{pending.Adds: Addition, pending.Changes: Update, pending.Removes: Removal}[w.Kind]
		holds = append(holds, Hold{
			TypeURL: w.TypeURL, Reason: Interval, Kind: kind, Names: w.Names, Since: w.Since, Until: w.Until,
		})
	}
	chosen := c.choose(holds)
	if c.Do == Pass && !c.DryRun {
		for i := range chosen {
			list.Pass(chosen[i].TypeURL)
		}
	}
	return chosen
}

// CountList counts the changes that wait in a list, of which counted were counted before. It returns their number.
func (c *Counts) CountList(list *pending.List, counted int) int {
	now := list.Len()
	if now != counted {
		c.pending[slices.Index(Reasons[:], Interval)].Add(int64(now - counted))
	}
	return now
}

// choose returns the changes among the holds to which the command applies.
func (c *Command) choose(holds []Hold) (chosen []Hold) {
	for _, h := range holds {
		if !c.Applies(&h) || cmp.Or(c.TypeURL, h.TypeURL) != h.TypeURL || cmp.Or(c.Reason, h.Reason) != h.Reason {
			continue
		}
		if c.Name != "" {
			at, found := slices.BinarySearch(h.Names, c.Name)
			if !found {
				continue
			}
			if h.Changes != nil {
				h.Changes = h.Changes[at : at+1]
			}
			if h.Names = h.Names[at : at+1]; h.Details != nil {
				h.Details = h.Details[at : at+1]
			}
		}
		chosen = append(chosen, h)
	}
	return chosen
}

// Counts are the counters of removals. Any goroutine may read them.
type Counts struct {
	HeldTotal    atomic.Int64 // removals that were ever held
	AppliedTotal atomic.Int64 // removals applied after a decision
	DroppedTotal atomic.Int64 // removals that an operator dropped

	pending [reasons]atomic.Int64 // changes that wait now, over all groups, in the order of Reasons
}

// reasons is the number of Reasons.
const reasons = 9

// Pending returns the numbers of changes that wait now, over all groups. Reasons without a change are omitted.
func (c *Counts) Pending() map[Reason]int {
	all := make(map[Reason]int)
	for i, reason := range Reasons {
		if n := int(c.pending[i].Load()); n > 0 {
			all[reason] = n
		}
	}
	return all
}
