package upstream

import (
	"container/heap"
	"time"
)

// An agenda says when to look at which collection, the next one first: of thousands,
// few have anything to wait for.
type agenda []*collection

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].at.Before(a[j].at) }

func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].place, a[j].place = i, j
}

func (a *agenda) Push(x any) {
	c := x.(*collection)
	c.place = len(*a)
	*a = append(*a, c)
}

func (a *agenda) Pop() any {
	last := len(*a) - 1
	c := (*a)[last]
	(*a)[last] = nil
	*a, c.at = (*a)[:last], time.Time{}
	return c
}

// put has a collection looked at by some time; a zero time is never.
func (a *agenda) put(c *collection, by time.Time) {
	switch {
	case by.IsZero() || !c.at.IsZero() && !by.Before(c.at):
	case c.at.IsZero():
		c.at = by
		heap.Push(a, c)
	default:
		c.at = by
		heap.Fix(a, c.place)
	}
}

// drop takes out a collection that was given up.
func (a *agenda) drop(c *collection) {
	if !c.at.IsZero() {
		heap.Remove(a, c.place)
	}
}

// due takes out the collections that are to be looked at now, and hands them to their
// subscriptions.
func (a *agenda) due(now time.Time) {
	for len(*a) > 0 && !now.Before((*a)[0].at) {
		c := heap.Pop(a).(*collection)
		c.sub.due = append(c.sub.due, c)
	}
}

// next returns when a collection is to be looked at; a zero time if none is.
func (a agenda) next() time.Time {
	if len(a) == 0 {
		return time.Time{}
	}
	return a[0].at
}
