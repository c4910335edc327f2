package pending

import (
	"iter"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A stored is the part of a list that a snapshot has, by type URL or collection.
type stored map[string]*storedType

// A storedType is what waits of a type or collection.
type storedType struct {
	all    []cache.WaitingSnapshot // in any order
	newest [2]string               // versions of the newest responses, by Kind
}

// Revision is another one after each change of the rows. Any goroutine may call it.
func (l *List) Revision() uint64 { return l.published.revision.Load() }

// HasRows reports whether there are rows, or there were when the list was closed. Any goroutine may call it.
func (l *List) HasRows() bool { return l.published.any.Load() }

// Closed returns a channel that is closed by Close. Then any goroutine may call Capture.
func (l *List) Closed() <-chan struct{} { return l.published.closed }

// Capture returns what the rest is served, with what waits for an operator or for stages, for a snapshot.
//
// What waits for an interval is left out. It passes when the connection ends, and after a crash the origin states it again,
// since the relay reports the versions of what it has restored. So are errors, which are not stored, and copies of another view.
func (l *List) Capture() *cache.Capture {
	c := l.w.Capture()
	select {
	case <-l.published.closed:
		l.published.last.addTo(c)
	default:
		l.stored().addTo(c)
	}
	return c
}

// addTo adds what waits to what is captured.
func (s stored) addTo(c *cache.Capture) {
	for key, of := range s {
		c.Add(key, of.newest, of.all)
	}
}

// stored returns the part of the list that a snapshot has.
func (l *List) stored() stored {
	all := make(stored)
	for set, rows := range l.sets {
		for name, r := range rows {
			if l.stopsRow(set, r) {
				all.add(set, name, r, false)
			}
		}
		if of := all[set.key]; of != nil {
			of.newest[set.kind] = l.systems[set]
		}
	}
	if l.beforeFreeze != nil {
		for set, rows := range l.beforeFreeze.rows {
			for name, r := range rows {
				all.add(set, name, r, true)
			}
		}
	}
	return all
}

// add adds a row. earlier reports that it waited for stages when a freeze began.
func (s stored) add(set setKey, name string, r row, earlier bool) {
	if !r.HasContent || r.copied != nil {
		return
	}
	of := s[set.key]
	if of == nil {
		of = new(storedType)
		s[set.key] = of
	}
	if r.Resource != nil && r.Err != nil && r.Err.Denied() {
		r.Resource = r.Resource.DropContent()
	}
	of.all = append(of.all, cache.WaitingSnapshot{
		Kind: set.kind, Name: name, Resource: r.Resource, Deadline: r.Deadline, Since: r.since, Earlier: earlier,
	})
}

// Restore lists what waited in front of another writer when a snapshot was taken, from which the view was restored. It must be
// called after Freeze or RollBack, and before the origin states anything.
//
// What nothing stops any longer is left out, and so is what the view has already: the origin has yet to say whether it is still
// the newest state.
func (l *List) Restore(s *cache.Snapshot) {
	for key, of := range l.w.Waited(s, time.Now()) {
		set := setKey{key, of.Kind}
		newest := cache.Statement{HasContent: true, HasError: true, Resource: of.Resource, Deadline: of.Deadline}
		r := row{Statement: newest, cause: cache.Cause{Received: of.Since}, since: of.Since, restored: true}
		served := l.w.Shown(l.rest(), of.Kind, key, of.Name)
		overlaid := overlay(served, newest)
		switch same := overlaid.Same(&served); {
		case of.Earlier && same, !of.Earlier && !l.stopsRow(set, r):
		case of.Earlier:
			l.restoreEarlier(set, of.Name, r)
		case same:
			l.remove(set, of.Name) // a rollback that is newer than the snapshot has listed an older state
		default:
			l.put(set, of.Name, r)
			listed := l.sets[set][of.Name]
			listed.cause, listed.since = r.cause, r.since
			l.sets[set][of.Name] = listed
			l.recordChange(resourceID{key, of.Name}, r.removes())
		}
	}
	for _, t := range s.Types {
		for kind, system := range t.Newest {
			if set := (setKey{t.Key, cache.Kind(kind)}); len(l.sets[set]) > 0 {
				l.systems[set] = system
			}
		}
	}
	l.compareAll()
	l.recordStopped()
}

// Restored yields the names of a set whose newest state was restored and not stated since, with their resources; nil if they were
// removed. The origin has to state each of them again, or may have withdrawn it.
func (l *List) Restored(kind cache.Kind, key string) iter.Seq2[string, *wire.Resource] {
	return func(yield func(string, *wire.Resource) bool) {
		for name, r := range l.sets[setKey{key, kind}] {
			if r.restored && !yield(name, r.Resource) {
				return
			}
		}
	}
}

// restoreEarlier restores what waited for stages when a freeze began that has not ended.
func (l *List) restoreEarlier(set setKey, name string, r row) {
	if l.beforeFreeze == nil || !l.stages(set.typeURL(), r.removes()) {
		return
	}
	kept := l.beforeFreeze
	if kept.rows[set] == nil {
		kept.rows[set] = make(map[string]row)
	}
	kept.rows[set][name], kept.expires = r, earlier(kept.expires, r.Deadline)
	l.recordRows()
}

// close keeps what the list has for a last snapshot, and drops all rows.
func (l *List) close() {
	l.published.last = l.stored()
	clear(l.sets)
	clear(l.parts)
	l.published.any.Store(len(l.published.last) > 0)
	close(l.published.closed)
}
