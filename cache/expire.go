package cache

import (
	"container/heap"
	"slices"
	"time"
)

const (
	// unresolvedLife is how long the origin's answer that it knows no resource by an
	// alias is served without asking again (B.20).
	unresolvedLife = 5 * time.Second

	// uncachedLife is how long content that may not be kept is kept, for the streams
	// that wait for it (B.25).
	uncachedLife = time.Second

	// refetchEvery bounds how often the origin is asked for a resource of which it sends only heartbeats.
	refetchEvery = time.Second
)

// A deadline is when the writer has to act on an entry.
type deadline struct {
	at   time.Time
	key  string // type URL or collection
	kind Kind
	name *Name
}

// deadlines is a heap, the next one first. It may be out of date: the entry
// decides.
type deadlines []deadline

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d deadlines) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)        { *d = append(*d, x.(deadline)) }

func (d *deadlines) Pop() any {
	old := *d
	last := old[len(old)-1]
	*d = old[:len(old)-1]
	return last
}

// An alarm says when the writer has to act on an entry. All versions of the entry share
// it, and it belongs to the writer.
type alarm struct {
	due    time.Time // zero is never
	queued time.Time // when the writer will look, at the latest when it is due
	yields time.Time // until when the entry yields to the wildcard set, if it does
}

// awaited reports whether a deadline of an entry still stands.
func (e *Entry) awaited(at time.Time) bool {
	return e.Present() && e.alarm != nil && e.alarm.queued.Equal(at)
}

// dueAt returns when an entry that is not published yet next needs the writer's attention; zero if
// never.
func (e *Entry) dueAt(now time.Time) (due time.Time) {
	due = e.Deadline()
	by := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	switch r := e.Resource; {
	case r.ContentDropped():
	case r.Unresolved():
		due = now.Add(unresolvedLife)
	case r.DoNotCache:
		by(now.Add(uncachedLife))
	}
	if e.yields {
		by(e.alarm.yields)
	}
	return due
}

// setAlarm schedules the next deadline of an entry that is not published yet.
func (ed setEdit) setAlarm(e *Entry) {
	due := e.dueAt(ed.now)
	if ed.kind == ByName {
		// The next subscriber has the origin asked again if the content may not be kept.
		e.Name.stale = e.Resource.DoNotCache || e.Resource.ContentDropped()
	}
	if e.alarm == nil && due.IsZero() {
		return
	}
	if e.alarm == nil {
		e.alarm = new(alarm)
	}
	e.alarm.due = due
	ed.queueAlarm(e)
}

// queueAlarm schedules an entry for when it is due, if ever.
func (ed setEdit) queueAlarm(e *Entry) {
	at := e.alarm
	if at.due.IsZero() || !at.queued.IsZero() && !at.due.Before(at.queued) {
		return // nothing to do, or it is scheduled earlier
	}
	at.queued = at.due
	ed.schedule(deadline{at.due, ed.typ.URL, ed.kind, e.Name})
}

// schedule adds a deadline to the heap. Deadlines of entries
// that were removed since are dropped now and then, or resources that come and go would fill the
// heap for as long as they were to live.
func (ed *edit) schedule(d deadline) {
	const slack = 64
	of := ed.ledger
	if len(of.due) > 2*of.kept+slack {
		of.due = slices.DeleteFunc(of.due, func(d deadline) bool {
			t := ed.gen.Type(d.key)
			e := t.set(d.kind).Get(d.name)
			return !e.awaited(d.at)
		})
		heap.Init(&of.due)
		of.kept = len(of.due)
	}
	heap.Push(&of.due, d)
}

// Expire removes resources whose time to live is over, for every client and whether or not
// the origin is connected (R107), and drops content that may not be kept, and answers
// that an alias stands for nothing. It returns when to call it again; a zero time if
// there is nothing to expire.
func (w *Writer) Expire(now time.Time) (next time.Time) {
	for _, l := range w.ledgers {
		w.expire(l, now)
	}
	for _, l := range w.ledgers {
		if len(l.due) > 0 && (next.IsZero() || l.due[0].at.Before(next)) {
			next = l.due[0].at
		}
	}
	return next
}

// expire is Expire for the newest generation of a ledger.
func (w *Writer) expire(of *ledger, now time.Time) {
	generation := of.generation()
	for len(of.due) > 0 && !now.Before(of.due[0].at) {
		key := of.due[0].key
		if generation.Type(key) == noType {
			heap.Pop(&of.due) // of a forgotten collection
			continue
		}
		ed := w.beginOn(of, key)
		ed.now = now
		for len(of.due) > 0 && of.due[0].key == key && !now.Before(of.due[0].at) {
			d := heap.Pop(&of.due).(deadline)
			ed.of(d.kind).handleDeadline(d)
		}
		ed.typ.ByName.compact()
		ed.typ.Wildcard.compact()
		w.publish(ed)
	}
}

// handleDeadline does what an entry's deadline requires, if it still stands.
func (ed setEdit) handleDeadline(d deadline) {
	e := ed.set.Get(d.name)
	if !e.awaited(d.at) {
		return
	}
	e.alarm.queued = time.Time{}
	switch r := e.Resource; {
	case e.alarm.due.IsZero() || ed.now.Before(e.alarm.due):
		ed.queueAlarm(e)
	case e.Expires() && !ed.now.Before(e.Deadline()):
		ed.expireEntry(e)
	case e.yields && !ed.now.Before(e.alarm.yields):
		ed.yieldTimedOut(e)
	case (r.DoNotCache || r.Unresolved()) && !r.ContentDropped():
		dropped := *e
		dropped.Resource, dropped.ownLife().contentDropped = r.DropContent(), ed.now
		ed.set.contentDroppedAt = ed.now
		ed.setAlarm(&dropped)
		ed.set.put(ed.txn, &dropped)
	}
}

// expireEntry removes an entry whose time to live is over. That says nothing of the same name in the wildcard set.
// The next subscriber has the origin asked, which may still have the resource.
func (ed setEdit) expireEntry(e *Entry) {
	if ed.kind == Wildcard {
		ed.putTombstone(e)
		return
	}
	yielding := *e
	yielding.yields = true
	ed.putAbsent(e.Name, &yielding)
	gone := *ed.set.Get(e.Name)
	gone.Expired = true
	ed.set.put(ed.txn, &gone)
	e.Name.stale = true
}
