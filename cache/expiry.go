package cache

import (
	"container/heap"
	"slices"
	"time"
)

const (
	// unresolvedLife is how long the origin's word that it knows no resource by an
	// alias is passed on without asking it again (B.20).
	unresolvedLife = 5 * time.Second

	// uncachedLife is how long content that may not be kept stays, for the streams
	// that wait for it now (B.25).
	uncachedLife = time.Second

	// missEvery bounds how often the origin is asked for what it believes to be here.
	missEvery = time.Second
)

// A deadline is when something has to be done about an entry.
type deadline struct {
	at   time.Time
	key  string // type URL or collection
	kind Kind
	name *Name
}

// deadlines is a heap, the next one first. What it says may be out of date: the entry
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

// An alarm says when something has to be done about an entry. It goes on from one
// version of the entry to the next, and belongs to the writer.
type alarm struct {
	due    time.Time // zero is never
	queued time.Time // when the writer will look, at the latest when it is due
	yields time.Time // until when the entry yields to a member, if it does
}

// awaited reports whether the writer has to look at an entry at a time that it once
// noted.
func (e *Entry) awaited(at time.Time) bool {
	return e.Present() && e.alarm != nil && e.alarm.queued.Equal(at)
}

// renew records that the origin said anew how long an entry lives.
func (a *apply) renew(kind Kind, e *Entry, deadline time.Time) {
	l := e.relive()
	l.deadline, l.renewed = deadline, a.next()
	a.change.Renewed++
	a.touched(kind, e.Name)
}

// inherit is for an entry that readers of another one see from now on, without being
// told, since its content is the same: they may have it under another version, and
// have to learn how long it lives now. Whether they have read of the other's renewals
// is not known.
func (a *apply) inherit(e, seen *Entry) {
	e.alsoAs(seen)
	if !e.Deadline().Equal(seen.Deadline()) || seen.Renewed() > 0 {
		e.relive().renewed = a.next()
		a.change.Renewed++
	}
}

// beat takes a heartbeat: it says for how long a resource lives on, to those who have
// this very version (R106).
func (a *apply) beat(kind Kind, set *Set, r received) {
	held := a.heldAs(kind, r.Name)
	if len(held) == 0 && kind == Wildcard {
		a.miss(nil)
	}
	for _, n := range held {
		old := set.Get(n)
		switch {
		case old.Present() && old.Resource.Key() == r.Key() && old.Resource.OriginVersion == r.OriginVersion:
			a.change.Seen++
			again := *old
			a.renew(kind, &again, r.deadline)
			a.limit(kind, &again)
			set.put(a.edit, &again)
		case old.Present():
		case kind == Wildcard:
			a.miss(nil)
		default:
			a.miss(n)
		}
	}
}

// heldAs returns the names under which a set may hold a resource.
func (a *apply) heldAs(kind Kind, resource string) []*Name {
	var names []*Name
	if n := a.index.names[resource]; n != nil && (kind == Wildcard || a.takes(n)) {
		names = append(names, n)
	}
	if kind == ByName {
		names = append(names, a.ledger.aliases[a.typ.URL][resource]...)
	}
	return names
}

// miss has the origin asked once more for a name, or for the members if n is nil. It
// believes that a resource is here and only says that it lives on, so otherwise
// nobody would ever have it.
func (a *apply) miss(n *Name) {
	last := a.w.missed[a.typ.URL]
	if n != nil {
		last = n.Asked()
	}
	switch {
	case a.now.Sub(last) < missEvery:
		return
	case n == nil && len(a.index.wildcards) > 0:
		a.index.again, a.w.missed[a.typ.URL] = true, a.now
	case n != nil && len(n.watchers) > 0:
		n.again = true
	default:
		return
	}
	a.pokes |= a.w.view.index.want(a.index, n)
}

// due returns when an entry, which is not published yet, will have to be looked at; zero if
// never.
func (a *apply) due(e *Entry) (due time.Time) {
	due = e.Deadline()
	by := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	switch r := e.Resource; {
	case r.Released():
	case r.Unresolved():
		due = a.now.Add(unresolvedLife)
	case r.DoNotCache:
		by(a.now.Add(uncachedLife))
	}
	if e.yields {
		by(e.alarm.yields)
	}
	return due
}

// limit notes when an entry, which is not published yet, will have to be looked at.
func (a *apply) limit(kind Kind, e *Entry) {
	due := a.due(e)
	if kind == ByName {
		// Whoever comes next has it asked for again if it may not be kept.
		e.Name.lapsed = e.Resource.DoNotCache || e.Resource.Released()
	}
	if e.alarm == nil && due.IsZero() {
		return
	}
	if e.alarm == nil {
		e.alarm = new(alarm)
	}
	e.alarm.due = due
	a.queue(kind, e)
}

// queue sees to it that an entry is looked at when it is due, if ever.
func (a *apply) queue(kind Kind, e *Entry) {
	at := e.alarm
	if at.due.IsZero() || !at.queued.IsZero() && !at.due.Before(at.queued) {
		return // nothing to do, or it will be looked at before
	}
	at.queued = at.due
	a.schedule(deadline{at.due, a.typ.URL, kind, e.Name})
}

// schedule has the writer look at an entry at some time. What was scheduled for entries
// that have gone since is forgotten now and then, or what comes and goes would fill the
// heap for as long as it was to live.
func (a *apply) schedule(d deadline) {
	const slack = 64
	of := a.ledger
	if len(of.due) > 2*of.kept+slack {
		of.due = slices.DeleteFunc(of.due, func(d deadline) bool {
			t := a.head.Type(d.key)
			e := t.set(d.kind).Get(d.name)
			return !e.awaited(d.at)
		})
		heap.Init(&of.due)
		of.kept = len(of.due)
	}
	heap.Push(&of.due, d)
}

// Expire removes what has outlived its time, for every client and whether or not
// the origin is there (R107), and gives up content that may not be kept, and the word
// that an alias means nothing. It returns when to call it again; a zero time if
// there is nothing to expire.
func (w *Writer) Expire(now time.Time) (next time.Time) {
	for _, l := range w.gate.ledgers {
		w.expire(l, now)
	}
	for _, l := range w.gate.ledgers {
		if len(l.due) > 0 && (next.IsZero() || l.due[0].at.Before(next)) {
			next = l.due[0].at
		}
	}
	return next
}

// expire is Expire for the newest head of a ledger.
func (w *Writer) expire(of *ledger, now time.Time) {
	generation := w.headOf(of)
	for len(of.due) > 0 && !now.Before(of.due[0].at) {
		key := of.due[0].key
		if generation.Type(key) == noType {
			heap.Pop(&of.due) // of a collection that was given up
			continue
		}
		a := w.beginOn(of, key)
		a.now = now
		for len(of.due) > 0 && of.due[0].key == key && !now.Before(of.due[0].at) {
			d := heap.Pop(&of.due).(deadline)
			a.expire(d)
		}
		a.typ.ByName.compact()
		a.typ.Wildcard.compact()
		w.publish(a)
	}
}

// expire does what an entry's deadline asks for, if it still does.
func (a *apply) expire(d deadline) {
	set := a.set(d.kind)
	e := set.Get(d.name)
	if !e.awaited(d.at) {
		return
	}
	e.alarm.queued = time.Time{}
	switch r := e.Resource; {
	case e.alarm.due.IsZero() || a.now.Before(e.alarm.due):
		a.queue(d.kind, e)
	case e.Expires() && !a.now.Before(e.Deadline()):
		a.outlived(d.kind, set, e)
	case e.yields && !a.now.Before(e.alarm.yields):
		a.waited(e)
	case (r.DoNotCache || r.Unresolved()) && !r.Released():
		given := *e
		given.Resource, given.relive().givenUp = r.Release(), a.now
		set.bareAt = a.now
		a.limit(d.kind, &given)
		set.put(a.edit, &given)
	}
}

// outlived removes an entry whose time is up, which says nothing of the member of that name.
// The next to ask for it has the origin asked: it may have it still.
func (a *apply) outlived(kind Kind, set *Set, e *Entry) {
	if kind == Wildcard {
		a.bury(set, e)
		return
	}
	yielding := *e
	yielding.yields = true
	a.absent(set, e.Name, &yielding)
	gone := *set.Get(e.Name)
	gone.Expired = true
	set.put(a.edit, &gone)
	e.Name.lapsed = true
}
