package upstream

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// A rank is the place of a task among those that are due in the same step.
type rank int

// The ranks. Subscriptions change before requests are sent. A set is complete before a decision about it, and a decision is made
// before the content is compared. Streams open after all that may need one.
const (
	rankIsolation rank = iota
	rankList
	rankLinger
	rankBatch
	rankCheck // by type: clients receive clusters first, even if all types become complete at once
	rankDecisions
	rankReports
	rankRejected
	rankStreams
	rankComparison
	rankTrim
)

// A task is something that the loop of a view does at a time, or after something has changed on which it depends.
type task struct {
	agenda  *agenda
	rank    rank
	typeURL string                               // of rankCheck
	members bool                                 // of rankCheck: after the collections of the type
	do      func(now time.Time) (next time.Time) // returns when to do it again; zero if only a change requires that

	at    time.Time // when to do it; zero if it is not in the heap
	index int       // in the heap
	due   bool      // the present step will do it
}

// An agenda has the tasks of a view and the times at which they are due. A step of the loop does the tasks that are due, in the
// order of their ranks, and no others. A view may have thousands of tasks. An agenda belongs to the loop of the view.
type agenda struct {
	tasks

	heap    taskHeap
	due     []*task // of the present step, in the order of their ranks
	next    int     // index in due
	running *task   // nil between steps
	now     time.Time
}

// tasks are the tasks of a view that do not belong to one subscription.
type tasks struct {
	isolation  task // merges isolated branches; runs in each step while there are any, see viewSync.isDivided
	list       task // passes what waits in the list, and expires TTLs
	linger     task // unsubscribes from what no client uses
	batch      task // sends unsent changes of names
	decisions  task // decides about removals, and whether all content is that of the target
	reports    task // evaluates what returning clients report
	rejected   task // tells the origin what clients reject; runs in each step while they reject anything
	streams    task // opens and closes streams
	comparison task // compares all content with another server
	trim       task
}

// all returns the tasks, in the order of their ranks.
func (t *tasks) all() []*task {
	return []*task{
		&t.isolation, &t.list, &t.linger, &t.batch, &t.decisions, &t.reports, &t.rejected, &t.streams, &t.comparison, &t.trim,
	}
}

// newTask returns a task that is not scheduled.
func (a *agenda) newTask(r rank, typeURL string, do func(now time.Time) (next time.Time)) task {
	return task{agenda: a, rank: r, typeURL: typeURL, do: do}
}

// compare orders tasks by their ranks.
func (t *task) compare(o *task) int {
	of, other := 0, 0
	if t.members {
		of = 1
	}
	if o.members {
		other = 1
	}
	return cmp.Or(cmp.Compare(t.rank, o.rank), wire.CompareTypes(t.typeURL, o.typeURL), cmp.Compare(of, other))
}

// atOnce is a time that has come.
var atOnce = time.Time{}.Add(time.Nanosecond)

// wake makes a task due: in the present step if its rank is still to come, and otherwise in the next one.
func (t *task) wake() { t.schedule(atOnce) }

// wake wakes tasks.
func wake(tasks ...*task) {
	for _, t := range tasks {
		t.wake()
	}
}

// schedule makes a task due at a time, unless it is due earlier. A zero time does nothing.
func (t *task) schedule(at time.Time) {
	a := t.agenda
	switch {
	case at.IsZero() || t.due || !t.at.IsZero() && !at.Before(t.at):
	case a.running != nil && !a.now.Before(at) && a.running.compare(t) < 0:
		t.cancel()
		rest, _ := slices.BinarySearchFunc(a.due[a.next:], t, (*task).compare)
		a.due, t.due = slices.Insert(a.due, a.next+rest, t), true
	case t.at.IsZero():
		t.at = at
		heap.Push(&a.heap, t)
	default:
		t.at = at
		heap.Fix(&a.heap, t.index)
	}
}

// cancel removes a task from the agenda.
func (t *task) cancel() {
	if t.due = false; !t.at.IsZero() {
		heap.Remove(&t.agenda.heap, t.index)
	}
}

// run does the tasks that are due, each of them once, and returns when the next one is due; zero without any.
func (a *agenda) run(now time.Time) (next time.Time) {
	a.now = now
	for len(a.heap) > 0 && !now.Before(a.heap[0].at) {
		t := heap.Pop(&a.heap).(*task)
		a.due, t.due = append(a.due, t), true
	}
	slices.SortStableFunc(a.due, (*task).compare)
	for a.next = 0; a.next < len(a.due); {
		t := a.due[a.next]
		if a.next++; !t.due {
			continue // it was cancelled
		}
		a.running, t.due = t, false
		t.schedule(t.do(now))
	}
	clear(a.due)
	if a.due, a.running = a.due[:0], nil; len(a.heap) > 0 {
		next = a.heap[0].at
	}
	return next
}

// A taskHeap is a heap of tasks by time. It implements heap.Interface.
type taskHeap []*task

// Len implements heap.Interface.
func (h taskHeap) Len() int { return len(h) }

// Less implements heap.Interface: the earliest task is first.
func (h taskHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

// Swap implements heap.Interface.
func (h taskHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *taskHeap) Push(x any) {
	t := x.(*task)
	t.index = len(*h)
	*h = append(*h, t)
}

// Pop implements heap.Interface. The task is no longer scheduled.
func (h *taskHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h, t.at = (*h)[:last], time.Time{}
	return t
}
