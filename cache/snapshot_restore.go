package cache

import (
	"iter"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// Restore adds the state in a snapshot to the views of all cohorts and of the rest, and returns the number of
// resources. The caller must call it before any stream subscribes.
//
// The resources are served at once. The phase of a wildcard set is Settled until the origin confirms it, and the set is
// Restored if it was complete. TakeDemand returns the restored names and wildcard sets as if their last subscriber had
// just unsubscribed. Restore leaves out expired resources, and resources that Config.Route now assigns to another
// source.
func (w *Writer) Restore(s *Snapshot, now time.Time) (restored int) {
	w.restoring = true
	for _, t := range s.Types {
		restored += t.restore(w, t.absences(w.view.cfg.Cohorts > 0 || !s.RolledBack.IsZero()), s.Created, now)
	}
	w.restoring = false
	from := w.Source()
	from.Target, from.Identifier, from.Reused, from.Restored = s.Target, s.Identifier, s.Reused, rebaseTime(s.Created, now)
	w.SetSource(from)
	w.Expire(now)
	return restored
}

// absences returns the absent names to restore: all, or those with a change that waited.
func (t *TypeSnapshot) absences(all bool) []string {
	if all {
		return t.Absent
	}
	waits := make(map[string]bool)
	for i := range t.Waiting {
		if of := &t.Waiting[i]; of.Kind == ByName {
			waits[of.Name] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(t.Absent), func(name string) bool { return !waits[name] })
}

// restore restores a type of a snapshot that was created at a time, with absent names.
func (t *TypeSnapshot) restore(w *Writer, absent []string, created, now time.Time) (restored int) {
	ed := w.begin(t.Key)
	ed.now = now
	if t.hasWildcard(ed) {
		members := ed.editSet(Wildcard)
		for _, e := range t.Wildcard.Entries {
			members.restoreEntry(w.view.index.name(ed.index, e.Name), e, created)
		}
		restored += len(t.Wildcard.Entries)
		members.restoreSet(t.Wildcard)
		ed.typ.Phase, ed.typ.Restored = Settled, t.Complete
		ed.index.tracked, ed.index.restored, ed.index.lastKnown = true, true, t.Complete
		w.view.index.queueDemand(ed.index, nil)
	}
	named := ed.editSet(ByName)
	for _, e := range t.ByName.Entries {
		if n := ed.restoreName(e.Name); n != nil {
			if !e.Shadowed { // readers saw this entry, so that it is not older than that of the wildcard set
				n.askedAt = ed.gen.Seq
			}
			named.restoreEntry(n, e, created)
			restored++
		}
	}
	for _, name := range absent {
		if n := ed.restoreName(name); n != nil && named.set.Get(n) == nil {
			named.putAbsent(n, nil) // clients are not sent the removal until the origin confirms it on a connection
		}
	}
	named.restoreSet(t.ByName)
	w.publish(ed)
	t.restoreHistory(w, now)
	return restored
}

// restoreName makes the session track a name as if its last subscriber had just unsubscribed. It returns nil if the
// name belongs to another source.
func (ed *edit) restoreName(text string) *Name {
	x, source := &ed.w.view.index, ed.w.source
	n := x.name(ed.index, text)
	if n.source != source {
		ed.index.release(n)
		return nil
	}
	n.tracked = true
	if ed.w.view.cfg.Cohorts > 0 && !n.restored {
		n.restored = true
		x.sources[source].restored++
	}
	x.queueDemand(ed.index, n)
	return n
}

// restoreSet restores the fields of a set that belong to no entry.
func (ed setEdit) restoreSet(s SetSnapshot) {
	ed.set.system, ed.set.limited, ed.set.contentDroppedAt = s.System, ed.set.limited || s.Limited, ed.now
}

// restoreHistory restores former contents in all generations, so that content that was reverted before the restart, or is
// reverted after it, is sent to clients that report its version (B.3).
func (t *TypeSnapshot) restoreHistory(w *Writer, now time.Time) {
	ed := w.begin(t.Key)
	for to := range ed.edits() {
		to.editSet(ByName).restorePast(t.ByName.Entries, now)
		if !t.hasWildcard(ed) {
			continue
		}
		to.editSet(Wildcard).restorePast(t.Wildcard.Entries, now)
		to.typ.Wildcard.setHistory = t.Wildcard.history.rebased(now)
		to.typ.Wildcard.revertedAt = max(to.gen.Seq, 1) // at the earliest; zero would mean never
	}
	w.publish(ed)
}

// hasWildcard reports whether the snapshot has the wildcard set of a type, which the source still provides.
func (t *TypeSnapshot) hasWildcard(ed *edit) bool {
	return (t.Complete || t.Settled) && ed.index.source == ed.w.source
}

// restorePast restores the former contents of the resources that were restored.
func (ed setEdit) restorePast(entries []EntrySnapshot, now time.Time) {
	for _, of := range entries {
		n := ed.index.names[of.Name]
		if of.past == nil || n == nil || !ed.set.Get(n).Present() {
			continue
		}
		e := *ed.set.Get(n)
		e.past = of.past.rebased(now)
		ed.set.put(ed.txn, &e)
	}
}

// intern returns a stored resource, shared with equal ones.
func (v *View) intern(r *wire.Resource) *wire.Resource {
	if v.cfg.Interner == nil || r.ContentDropped() {
		return r
	}
	return v.cfg.Interner.Intern(r)
}

// deadlineOf returns the deadline of a stored resource relative to now. The resource lasts for its TTL at the latest, even if
// the clock was set in the meantime. Without one, a state that is not sent yet has the TTL, and the deadline is as far away as
// when the snapshot was created.
func deadlineOf(r *wire.Resource, stored, created, now time.Time) time.Time {
	deadline, longest := rebaseTime(stored, now), now.Add(r.TTL)
	if r.TTL == 0 {
		longest = now.Add(stored.Sub(created))
	}
	if !deadline.IsZero() && longest.Before(deadline) {
		return longest
	}
	return deadline
}

// restoreEntry puts one entry of a snapshot, which was created at a time, into a set.
func (ed setEdit) restoreEntry(n *Name, e EntrySnapshot, created time.Time) {
	r, deadline := ed.w.view.intern(e.Resource), deadlineOf(e.Resource, e.Deadline, created, ed.now)
	ed.put(n, received{Resource: r, leaf: fingerprint.Leaf(resourceType(ed.typ.URL), r), deadline: deadline})
	restored := *ed.set.Get(n)
	if r.ContentDropped() {
		restored.mutableLifetime().contentDropped = ed.now
	}
	for _, v := range e.OtherVersions {
		if !restored.HasVersion(v) {
			restored.addVersion(v)
		}
	}
	ed.set.put(ed.txn, &restored)
}

// Waited yields what waited when a snapshot was taken, from which the view was restored, by type URL or collection. It
// leaves out names of which the view has no state. Times are relative to now, and no TTL is longer than that of the
// resource.
func (w *Writer) Waited(s *Snapshot, now time.Time) iter.Seq2[string, WaitingSnapshot] {
	return func(yield func(string, WaitingSnapshot) bool) {
		for i := range s.Types {
			t := &s.Types[i]
			for _, of := range t.Waiting {
				if !w.hasRestored(t.Key, of.Kind, of.Name) {
					continue
				}
				if of.Since = rebaseTime(of.Since, now); of.Since.IsZero() || of.Since.After(now) {
					of.Since = now
				}
				if r := of.Resource; r != nil {
					of.Resource, of.Deadline = w.view.intern(r), deadlineOf(r, of.Deadline, s.Created, now)
				}
				if !yield(t.Key, of) {
					return
				}
			}
		}
	}
}

// hasRestored reports whether the restored view has state of a name of a set of the writer.
func (w *Writer) hasRestored(key string, kind Kind, name string) bool {
	t, n := w.Generation().types.get(key), w.view.FindName(key, name)
	switch {
	case t == nil:
		return false
	case kind == Wildcard:
		return w.writes(kind, t, nil) && t.HasLastGood(kind)
	default:
		return n != nil && w.writes(kind, t, n) && t.ByName.Get(n) != nil
	}
}
