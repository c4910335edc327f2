package cache

import (
	"cmp"
	"slices"
	"time"

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
	// change, which waits, and not as a first response, which passes. Those with a change in Waiting are always stored.
	Absent []string

	Waiting []WaitingSnapshot // changes that readers were not sent yet
	Newest  [2]string         // versions of the newest responses of sets with changes in Waiting, by Kind
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

// A WaitingSnapshot is the newest state of a name of a set that readers were not sent yet, because it waited for an
// operator or for stages (package pending). It has no error, since errors are not stored.
type WaitingSnapshot struct {
	Kind     Kind
	Name     string
	Resource *wire.Resource // nil if it was removed
	Deadline time.Time      // when it expires; zero means never
	Since    time.Time      // when it began to wait
	Earlier  bool           // it is the state that waited for stages when a freeze began, and may not be the newest one
}

// compare orders what waits of a type or collection.
func (s WaitingSnapshot) compare(o WaitingSnapshot) int {
	return cmp.Or(cmp.Compare(s.Kind, o.Kind), cmp.Compare(s.Name, o.Name))
}

// A Capture is the state of a writer's source, and what waits in front of the writer, from which a snapshot may be taken
// later. Any goroutine may use it.
type Capture struct {
	w          *Writer
	generation *Generation
	waiting    map[string]captured // by type URL or collection
}

// A captured is what waits of a type or collection.
type captured struct {
	all    []WaitingSnapshot
	newest [2]string
}

// Capture returns the state that readers see now, without anything that waits. Any goroutine may call it.
func (w *Writer) Capture() *Capture { return &Capture{w: w, generation: w.view.Generation()} }

// Add adds what waits of a type or collection, in any order, with the versions of the newest responses by Kind. The goroutine
// of the writer calls it, so that what waits belongs to the generation.
func (c *Capture) Add(key string, newest [2]string, all []WaitingSnapshot) {
	if c.waiting == nil {
		c.waiting = make(map[string]captured)
	}
	c.waiting[key] = captured{all, newest}
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
func (w *Writer) Snapshot(sensitive bool) (*Snapshot, OmittedContent) {
	return w.Capture().Snapshot(sensitive)
}

// Snapshot returns the state that was captured.
//
// The snapshot has no Secrets. It omits the content of resources that may not be cached or are denied, and unless
// sensitive is true, of resources that may be sensitive. It has their names and versions, so that the set stays
// complete and no client is sent a part of it (B.36, R125). Absent resources are included only for rollouts
// (TypeSnapshot.Absent) and where a change waits, since the origin must confirm an absence after a restart (B.7).
//
// Created is the time of the state: when the connection to the origin was lost, or now.
func (c *Capture) Snapshot(sensitive bool) (*Snapshot, OmittedContent) {
	return c.snapshot(snapshotter{sensitive: sensitive})
}

// SnapshotWithSecrets is Snapshot with sensitive content and with Secrets. It must not be stored (B.36).
func (c *Capture) SnapshotWithSecrets() (*Snapshot, OmittedContent) {
	return c.snapshot(snapshotter{sensitive: true, secrets: true})
}

// snapshot takes a snapshot with the content that p includes.
func (c *Capture) snapshot(p snapshotter) (*Snapshot, OmittedContent) {
	w, g := c.w, c.generation
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
		p.addWaiting(w, t, &snapshot, c.waiting[t.URL])
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
		if !p.isAbsent(t, e) {
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

// addWaiting adds what waits of a type to its snapshot, ordered by kind and name. It leaves out names whose state is not in the
// snapshot: to a reader of a restored view, the newest state of these is the first one.
func (p *snapshotter) addWaiting(w *Writer, t *Type, s *TypeSnapshot, of captured) {
	absent := make(map[string]bool, len(s.Absent))
	for _, name := range s.Absent {
		absent[name] = true
	}
	ordered := slices.SortedStableFunc(slices.Values(of.all), WaitingSnapshot.compare) // a copy: captures may share it
	for _, waiting := range ordered {
		n := w.view.FindName(t.URL, waiting.Name)
		if !p.hasState(t, s, waiting.Kind, n) {
			continue
		}
		if waiting.Kind == ByName && !t.ByName.Get(n).Present() && !absent[waiting.Name] {
			s.Absent, absent[waiting.Name] = append(s.Absent, waiting.Name), true
		}
		if r := waiting.Resource; r != nil {
			if !r.HasBody() {
				continue
			}
			waiting.Resource = p.storableOf(t, waiting.Kind, n, r)
		}
		waiting.Deadline, waiting.Since = rebaseTime(waiting.Deadline, p.now), rebaseTime(waiting.Since, p.now)
		s.Waiting, s.Newest = append(s.Waiting, waiting), of.newest
	}
}

// hasState reports whether the snapshot of a type has what readers see of a name of a set, or can have that it is absent.
// n may be nil.
func (p *snapshotter) hasState(t *Type, s *TypeSnapshot, kind Kind, n *Name) bool {
	if kind == Wildcard {
		return s.Complete
	}
	if n == nil || n.source != p.source {
		return false
	}
	e := t.ByName.Get(n)
	return e.Present() && e.Resource.HasBody() || e != nil && p.isAbsent(t, e)
}

// isAbsent reports whether readers see the resource of an entry as absent, and the snapshot can have that.
func (p *snapshotter) isAbsent(t *Type, e *Entry) bool {
	seen, _ := t.Lookup(e.Name)
	failure := t.Errors(ByName).Get(e.Name)
	return seen == e && !e.Present() && !e.Expired && e.Name.source == p.source && (failure == nil || failure.Err.NotFound())
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
	return p.storableOf(t, kind, e.Name, e.Resource)
}

// storableOf is storable for a resource of a name, which may be nil.
func (p *snapshotter) storableOf(t *Type, kind Kind, n *Name, r *wire.Resource) *wire.Resource {
	var failure *Entry
	if n != nil {
		failure = t.Errors(kind).Get(n)
	}
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
