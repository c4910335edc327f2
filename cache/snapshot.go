package cache

import (
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// A Snapshot is what one source of a view held at some time, as far as another process
// may go on with it (B.42). It is immutable.
type Snapshot struct {
	Header

	// Target, Identifier and Reused are those of the [Source].
	Target     string
	Identifier string
	Reused     bool

	// RolledBack is that of the [Source].
	RolledBack time.Time

	Types []TypeSnapshot

	// Generations are that of the snapshot and those before it, the oldest first. Writer.Snapshot returns none.
	Generations []GenerationSnapshot

	of *Generation
}

// Of returns the generation that the snapshot is of; nil if it was decoded.
func (s *Snapshot) Of() *Generation { return s.of }

// A Header identifies what a snapshot is of: a view may use it only if all of it matches.
type Header struct {
	Origin  string    // its name
	Targets []string  // its addresses
	Group   string    // the key of the node group
	Node    []byte    // whom the origin takes the relay for, encoded
	Options string    // what else shapes what is held, in a form of the caller's
	Created time.Time // to the second
}

// A TypeSnapshot is what a snapshot holds of a type, or of a collection.
type TypeSnapshot struct {
	Key              string
	Complete         bool // the wildcard set was confirmed
	Settled          bool // otherwise: the wildcard set seemed to be complete, and was served
	Wildcard, ByName SetSnapshot

	// Absent are names of which readers knew that there is no such resource: with cohorts, or while readers are shown an
	// earlier generation, of types whose changes wait. If the origin adds the resource while no relay runs, that is a change
	// and not a first answer.
	Absent []string
}

// maxAbsent bounds the absent names of a snapshot, since clients may subscribe to any.
const maxAbsent = 10_000

// A SetSnapshot is what a snapshot holds of one of a type's sets.
type SetSnapshot struct {
	System  string // the origin's own version
	Limited bool   // some resource was to expire, once
	Entries []EntrySnapshot
}

// An EntrySnapshot is a resource that was there, and what it was asked for as.
type EntrySnapshot struct {
	Name     string
	Resource *wire.Resource
	Deadline time.Time // when it expires; zero is never
	Further  []string  // versions of the same content beside the resource's own
}

// OmittedContent counts the resources that a snapshot holds without their content, since they may
// be sensitive, by type URL.
type OmittedContent map[string]int

// SnapshotRevision returns what a snapshot would be of now: the edition of what readers see, and the Target of
// the source. Any goroutine may call it.
func (w *Writer) SnapshotRevision() (edition uint64, target string) {
	g := w.view.Generation()
	return g.Revision, g.sources[w.source].Target
}

// Snapshot returns what the writer's source holds, as readers of the writer's view see it: with cohorts, that is the rest; of what
// a closed gate withholds, it has the last good. Any goroutine may call it. Secrets are
// not in it. Of what may not be kept, what is denied, and, unless sensitive is set, what
// may be sensitive, it has all but the content: so a set is known for what it is, but
// nobody is sent a part of it (B.36, R125). What the origin reports as absent is in it only for the gate
// (TypeSnapshot.Absent), since an absence must be confirmed after a restart (B.7).
func (w *Writer) Snapshot(sensitive bool) (*Snapshot, OmittedContent) {
	g := w.view.Generation()
	from := g.sources[w.source]
	s := &Snapshot{Target: from.Target, Identifier: from.Identifier, Reused: from.Reused, RolledBack: from.RolledBack, of: g}
	p := snapshotter{source: w.source, sensitive: sensitive, now: time.Now(), omitted: make(OmittedContent)}
	if w.view.cfg.Cohorts > 0 || !from.RolledBack.IsZero() { // as gate.stages, which only the writer may call
		p.waits = w.view.cfg.Waits
	}
	for t := range g.ChangedSince(0) {
		if wire.IsSecret(resourceType(t.URL)) {
			continue
		}
		of := TypeSnapshot{Key: t.URL, ByName: p.set(t, ByName), Absent: p.absent(t)}
		if t.source == w.source && t.Phase >= Settled {
			complete := (t.Phase == Confirmed || t.Restored) && !w.view.withholds(t.URL)
			of.Complete, of.Wildcard = complete, p.set(t, Wildcard)
			of.Settled = !of.Complete
		}
		if of.Complete || of.Settled || len(of.ByName.Entries)+len(of.Absent) > 0 {
			s.Types = append(s.Types, of)
		}
	}
	return s, p.omitted
}

// A snapshotter takes a snapshot of one source.
type snapshotter struct {
	source    int
	sensitive bool
	now       time.Time
	omitted   OmittedContent
	waits     func(typeURL string) bool // for Show; nil if nothing does
	absents   int                       // names that absent has returned
}

func (p *snapshotter) set(t *Type, kind Kind) SetSnapshot {
	set := t.set(kind)
	out := SetSnapshot{System: set.system, Limited: set.limited}
	for e := range set.Since(0) {
		if !e.Present() || !e.Resource.HasBody() || kind == ByName && e.Name.source != p.source {
			continue
		}
		out.Entries = append(out.Entries, EntrySnapshot{
			Name: e.Name.text, Resource: p.storable(t, kind, e), Deadline: restated(e.Deadline(), p.now), Further: e.otherVersions(),
		})
	}
	return out
}

// absent returns the names of a type that waits of which readers know that there is no such resource, up to maxAbsent in all. An
// expired resource is not one of them: if it comes back, that does not wait. Nor is one that fails otherwise: errors are not stored.
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
		if p.absents == maxAbsent {
			break
		}
		p.absents++
		names = append(names, e.Name.text)
	}
	return names
}

// restated returns a time as the clock has it now; zero stays zero. Of a time that was stored, it is one that the monotonic
// clock decides from now on. Of a time of this process, it has the wall time that corresponds to it today: the clock may have
// been set since.
func restated(t, now time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return now.Add(t.Sub(now))
}

// storable returns an entry's resource as far as it may be stored.
func (p *snapshotter) storable(t *Type, kind Kind, e *Entry) *wire.Resource {
	r := e.Resource
	failure := t.Errors(kind).Get(e.Name)
	switch {
	case r.ContentDropped():
		return r
	case r.DoNotCache, failure != nil && failure.Err.Denied(), !r.Intact(): // a restart is the way out of damage
		return r.DropContent()
	case !p.sensitive && r.MayBeSensitive():
		p.omitted[resourceType(t.URL)]++
		return r.DropContent()
	default:
		return r
	}
}

// Restore puts what a snapshot holds into the view, of which nobody may have asked
// anything yet, and into those of all cohorts, and returns how many resources that are. They are served at once, but
// complete no set of a client that may have more: a set that was settled is settled, one that was
// complete is settled and Restored, until the origin has confirmed it. TakeDemand returns what was restored as demand that
// has just ceased. Expired resources are left out, as by [Writer.Expire], and those that
// this source no longer answers for is left out.
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
	from.Target, from.Identifier, from.Reused, from.Restored = s.Target, s.Identifier, s.Reused, restated(s.Created, now)
	w.SetSource(from)
	w.Expire(now)
	return restored
}

func (t *TypeSnapshot) restore(w *Writer, absent []string, now time.Time) (restored int) {
	ed := w.begin(t.Key)
	ed.now = now
	if (t.Complete || t.Settled) && ed.index.source == w.source {
		members := ed.of(Wildcard)
		for _, e := range t.Wildcard.Entries {
			members.restoreEntry(w.view.index.name(ed.index, e.Name), e)
		}
		restored += len(t.Wildcard.Entries)
		members.restoreSet(t.Wildcard)
		ed.typ.Phase, ed.typ.Restored = Settled, t.Complete
		ed.index.tracked, ed.index.restored, ed.index.lastKnown = true, true, t.Complete
		w.view.index.queueDemand(ed.index, nil)
	}
	named := ed.of(ByName)
	for _, e := range t.ByName.Entries {
		if n := ed.restoreName(e.Name); n != nil {
			named.restoreEntry(n, e)
			restored++
		}
	}
	for _, name := range absent {
		if n := ed.restoreName(name); n != nil && named.set.Get(n) == nil {
			named.putAbsent(n, nil) // before any connection, so clients are not told that until the origin confirms it
		}
	}
	named.restoreSet(t.ByName)
	w.publish(ed)
	return restored
}

// restoreName has the session follow a name as if its last client had just left; nil if another source answers for it.
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

// restoreSet restores the state of a set as a whole.
func (ed setEdit) restoreSet(s SetSnapshot) {
	ed.set.system, ed.set.limited, ed.set.contentDroppedAt = s.System, ed.set.limited || s.Limited, ed.now
}

// restoreEntry puts one entry of a snapshot into a set. A clock that was changed since does not make
// a resource live longer than its time to live.
func (ed setEdit) restoreEntry(n *Name, e EntrySnapshot) {
	r, cfg := e.Resource, ed.w.view.cfg
	if cfg.Interner != nil && !r.ContentDropped() {
		r = cfg.Interner.Intern(r)
	}
	deadline := restated(e.Deadline, ed.now)
	if longest := ed.now.Add(r.TTL); !deadline.IsZero() && longest.Before(deadline) {
		deadline = longest
	}
	ed.put(n, received{Resource: r, leaf: cfg.VersionSource.Leaf(resourceType(ed.typ.URL), r), deadline: deadline})
	held := *ed.set.Get(n)
	if r.ContentDropped() {
		held.ownLifetime().contentDropped = ed.now
	}
	for _, v := range e.Further {
		if !held.HasVersion(v) {
			held.addVersion(v)
		}
	}
	ed.set.put(ed.txn, &held)
}

// A GenerationSnapshot is a generation of what readers saw of a source. The last one is that of the snapshot, and has no
// formers.
type GenerationSnapshot struct {
	Digest                  string    // State.Digest
	Since                   time.Time // when it was first served
	Added, Changed, Removed int       // by it, of the one before
	Formers                 []Former  // what differs from the generation after it
}

// Storable reports whether a former resource may be stored with its content, without which it is of no use. What a snapshot
// stores without its content is asked of the origin again, and the origin does not have former content.
func (f *Former) Storable(sensitive bool) bool {
	r := f.Resource
	return r == nil || !r.ContentDropped() && !r.DoNotCache && r.Intact() && (sensitive || !r.MayBeSensitive())
}
