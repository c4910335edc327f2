package cache

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// A Snapshot is the state of one source of a view that another process may restore (B.42). It is immutable.
type Snapshot struct {
	Header

	// Target, Identifier and Reused are those of the [Source].
	Target     string
	Identifier string
	Reused     bool

	// RolledBack is that of the [Source].
	RolledBack time.Time

	Types []TypeSnapshot

	// Generations are the generation of the snapshot and those before it, oldest first. Writer.Snapshot returns none.
	Generations []GenerationSnapshot

	generation *Generation
}

// Of returns the generation from which the snapshot was taken; nil if it was decoded.
func (s *Snapshot) Of() *Generation { return s.generation }

// A Header identifies the state in a snapshot. A view may restore the snapshot only if the header matches.
type Header struct {
	Origin  string    // name of the origin
	Targets []string  // addresses of the origin
	Group   string    // key of the node group
	Node    []byte    // node that the relay sends to the origin, encoded
	Options string    // other settings that affect the state, in a form that the caller chooses
	Created time.Time // to the second
}

// A TypeSnapshot is the part of a snapshot that belongs to a type or collection.
type TypeSnapshot struct {
	Key              string // type URL or collection
	Complete         bool   // the wildcard set was confirmed
	Settled          bool   // the wildcard set was served, but not confirmed
	Wildcard, ByName SetSnapshot

	// Absent are names whose resource readers saw as absent, of types whose changes wait. They are stored with cohorts
	// and while readers are rolled back. With them, a resource that the origin adds while no relay runs counts as a
	// change, which waits, and not as a first response, which passes.
	Absent []string
}

// maxAbsent limits the absent names of a snapshot, since clients may subscribe to any name.
const maxAbsent = 10_000

// A SetSnapshot is one of a type's sets in a snapshot.
type SetSnapshot struct {
	System  string // system_version_info of the origin
	Limited bool   // some resource has, or had, a TTL
	Entries []EntrySnapshot
	history setHistory // of a wildcard set
}

// An EntrySnapshot is a resource, with the name under which the set stores it.
type EntrySnapshot struct {
	Name          string
	Resource      *wire.Resource
	Deadline      time.Time // when it expires; zero means never
	OtherVersions []string  // other versions of the same content
	Shadowed      bool      // in the set of names: readers saw the entry of the wildcard set instead (B.5)
	past          *past     // nil if the content never changed
}

// OmittedContent counts, by type URL, the resources of which a snapshot does not have the content because it may be
// sensitive.
type OmittedContent map[string]int

// SnapshotRevision returns the revision of the generation that readers see, and the Target of the source. A new
// snapshot is needed if either has changed. Any goroutine may call it.
func (w *Writer) SnapshotRevision() (revision uint64, target string) {
	g := w.view.Generation()
	return g.Revision, g.sources[w.source].Target
}

// Snapshot returns the state of the writer's source that readers of the writer's view see: with cohorts, the state of
// the rest. It does not include changes that wait. Any goroutine may call it.
//
// The snapshot has no Secrets. It omits the content of resources that may not be cached or are denied, and unless
// sensitive is true, of resources that may be sensitive. It has their names and versions, so that the set stays
// complete and no client is sent a part of it (B.36, R125). Absent resources are included only for rollouts
// (TypeSnapshot.Absent), since the origin must confirm an absence after a restart (B.7).
//
// Created is the time of the state: when the connection to the origin was lost, or now.
func (w *Writer) Snapshot(sensitive bool) (*Snapshot, OmittedContent) {
	return w.snapshot(snapshotter{sensitive: sensitive})
}

// SnapshotWithSecrets is Snapshot with sensitive content and with Secrets. It must not be stored (B.36).
func (w *Writer) SnapshotWithSecrets() (*Snapshot, OmittedContent) {
	return w.snapshot(snapshotter{sensitive: true, secrets: true})
}

// snapshot takes a snapshot with the content that p includes.
func (w *Writer) snapshot(p snapshotter) (*Snapshot, OmittedContent) {
	g := w.view.Generation()
	from := g.sources[w.source]
	p.source, p.now, p.omitted = w.source, time.Now(), make(OmittedContent)
	s := &Snapshot{
		Target: from.Target, Identifier: from.Identifier, Reused: from.Reused, RolledBack: from.RolledBack, generation: g,
	}
	s.Created = p.now.Add(-from.Stale(p.now))
	if w.view.cfg.Cohorts > 0 || !from.RolledBack.IsZero() {
		p.waits = w.view.cfg.Waits
	}
	for t := range g.ChangedSince(0) {
		if !p.secrets && wire.IsSecret(resourceType(t.URL)) {
			continue
		}
		snapshot := p.take(w, t)
		if snapshot.Complete || snapshot.Settled || len(snapshot.ByName.Entries)+len(snapshot.Absent) > 0 {
			s.Types = append(s.Types, snapshot)
		}
	}
	return s, p.omitted
}

// A snapshotter takes a snapshot of one source.
type snapshotter struct {
	source      int
	sensitive   bool // include content that may be sensitive
	secrets     bool // include Secrets
	now         time.Time
	omitted     OmittedContent
	waits       func(typeURL string) bool // whether changes of a type wait for Show; nil if none do
	absentCount int                       // number of names that absent has returned
}

// take takes the snapshot of a type.
func (p *snapshotter) take(w *Writer, t *Type) TypeSnapshot {
	s := TypeSnapshot{Key: t.URL, ByName: p.set(t, ByName), Absent: p.absent(t)}
	if t.source == w.source && t.Phase >= Settled {
		complete := (t.Phase == Confirmed || t.Restored) && !w.view.withholds(t.URL)
		s.Complete, s.Wildcard = complete, p.set(t, Wildcard)
		s.Settled = !s.Complete
	}
	return s
}

func (p *snapshotter) set(t *Type, kind Kind) SetSnapshot {
	set := t.Set(kind)
	out := SetSnapshot{System: set.system, Limited: set.limited}
	for e := range set.Since(0) {
		if !e.Present() || !e.Resource.HasBody() || kind == ByName && e.Name.source != p.source {
			continue
		}
		out.Entries = append(out.Entries, EntrySnapshot{
			Name: e.Name.text, Resource: p.storable(t, kind, e),
			Deadline: rebaseTime(e.Deadline(), p.now), OtherVersions: e.otherVersions(),
			Shadowed: e.shadowed, past: e.past.rebased(p.now),
		})
	}
	if kind == Wildcard {
		out.history = set.rebased(p.now)
	}
	return out
}

// absent returns the names of a type whose resource readers see as absent, if changes of the type wait. It returns at
// most maxAbsent names for all types together. It omits expired resources, whose return does not wait, and resources
// with another error than NOT_FOUND, since errors are not stored.
func (p *snapshotter) absent(t *Type) (names []string) {
	if p.waits == nil || !p.waits(resourceType(t.URL)) {
		return nil
	}
	for e := range t.ByName.Since(0) {
		seen, _ := t.Lookup(e.Name)
		failure := t.Errors(ByName).Get(e.Name)
		if seen != e || e.Present() || e.Expired || e.Name.source != p.source || failure != nil && !failure.Err.NotFound() {
			continue
		}
		if p.absentCount == maxAbsent {
			break
		}
		p.absentCount++
		names = append(names, e.Name.text)
	}
	return names
}

// rebaseTime returns t relative to now; zero stays zero. A stored time gets a monotonic clock reading. A time of this
// process gets the wall time that corresponds to its monotonic clock reading, because the clock may have been set
// since.
func rebaseTime(t, now time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return now.Add(t.Sub(now))
}

// rebased returns the past with its time relative to now. A reversion that is too long ago is omitted.
func (p *past) rebased(now time.Time) *past {
	if p == nil || p.reverted.IsZero() {
		return p
	}
	return &past{former: p.former, reverted: rebaseRecent(p.reverted, now)}
}

// rebaseRecent is rebaseTime, but returns zero for a time that is longer ago than RevertMemory, and now for a later one:
// the clock was set meanwhile.
func rebaseRecent(at, now time.Time) time.Time {
	switch ago := now.Sub(at); {
	case ago > RevertMemory:
		return time.Time{}
	case ago < 0:
		return now
	default:
		return rebaseTime(at, now)
	}
}

// rebased returns the history with its times relative to now, without what is too long ago.
func (s *setHistory) rebased(now time.Time) (h setHistory) {
	for _, b := range s.recentRemovals {
		if at := rebaseRecent(b.at, now); !at.IsZero() {
			h.recentRemovals = append(h.recentRemovals, pastRemoval{b.name, b.past.rebased(now), at})
		}
	}
	h.former = slices.Clone(s.former[max(len(s.former)-maxFormerSums, 0):])
	h.reverted = rebaseRecent(s.reverted, now)
	return h
}

// storable returns the resource of an entry, without its content if that may not be stored.
func (p *snapshotter) storable(t *Type, kind Kind, e *Entry) *wire.Resource {
	r := e.Resource
	failure := t.Errors(kind).Get(e.Name)
	switch {
	case r.ContentDropped():
		return r
	case r.DoNotCache, failure != nil && failure.Err.Denied(), !r.Intact(): // damaged content must not survive a restart
		return r.DropContent()
	case !p.sensitive && r.MayBeSensitive():
		p.omitted[resourceType(t.URL)]++
		return r.DropContent()
	default:
		return r
	}
}

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
		var absent []string
		if w.view.cfg.Cohorts > 0 || !s.RolledBack.IsZero() {
			absent = t.Absent
		}
		restored += t.restore(w, absent, now)
	}
	w.restoring = false
	from := w.Source()
	from.Target, from.Identifier, from.Reused, from.Restored = s.Target, s.Identifier, s.Reused, rebaseTime(s.Created, now)
	w.SetSource(from)
	w.Expire(now)
	return restored
}

func (t *TypeSnapshot) restore(w *Writer, absent []string, now time.Time) (restored int) {
	ed := w.begin(t.Key)
	ed.now = now
	if t.hasWildcard(ed) {
		members := ed.editSet(Wildcard)
		for _, e := range t.Wildcard.Entries {
			members.restoreEntry(w.view.index.name(ed.index, e.Name), e)
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
			named.restoreEntry(n, e)
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

// restoreEntry puts one entry of a snapshot into a set. The resource expires after its TTL at the latest, even if the
// clock was set in the meantime.
func (ed setEdit) restoreEntry(n *Name, e EntrySnapshot) {
	r, cfg := e.Resource, ed.w.view.cfg
	if cfg.Interner != nil && !r.ContentDropped() {
		r = cfg.Interner.Intern(r)
	}
	deadline := rebaseTime(e.Deadline, ed.now)
	if longest := ed.now.Add(r.TTL); !deadline.IsZero() && longest.Before(deadline) {
		deadline = longest
	}
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

// A GenerationSnapshot is a generation of a source that readers saw. The last one is the generation of the snapshot,
// and has no formers.
type GenerationSnapshot struct {
	Digest                  string    // State.Digest
	Since                   time.Time // when it was first served
	Added, Changed, Removed int       // number of resources that differ from the generation before
	Formers                 []Former  // resources that differ in the generation after, in their state in this one
}

// Storable reports whether a former resource may be stored with its content. A former without content cannot be served:
// the relay requests missing content from the origin, which no longer has the former one.
func (f *Former) Storable(sensitive bool) bool {
	r := f.Resource
	return r == nil || !r.ContentDropped() && !r.DoNotCache && r.Intact() && (sensitive || !r.MayBeSensitive())
}
