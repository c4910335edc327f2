package cache

import (
	"cmp"
	"container/heap"
	"iter"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// An edit makes the next version of one type, in the next generation. The index is locked from begin to publish. Each
// change is of one entry, through the setEdit of one of the two sets.
type edit struct {
	w      *Writer
	branch *branch
	now    time.Time
	gen    *Generation // the new generation, not published yet
	typ    *Type       // of gen
	index  *indexType
	txn    *txn
	change Change

	// cohorts has the edits of the views of cohorts, if this is an edit of the rest; nil for a view without an edit so far.
	cohorts []*edit

	changed []*Name // names with subscribers whose entries changed

	wildcardChanged bool // the wildcard set changed: wake its subscribers
	errorsCopied    bool // the sets of errors were copied for this edit
}

// A Change counts the changes that a response of an origin caused.
type Change struct {
	Seen    int      // resources that the set accepted, changed or not
	Changed int      // resources new or with other content
	New     int      // of these, those that did not exist
	Removed int      // resources that existed
	Ignored int      // resources that the relay did not subscribe to (R096)
	Same    int      // resources resent without a change, with the version that the set had
	Reused  []string // names whose content changed under an unchanged version (B.2)
	Renewed int      // resources whose time to live was renewed

	// Ambiguous names resources of which an update had several variants for the same
	// parameters (R122).
	Ambiguous []string
}

// A setEdit edits one set of the type, with its errors.
type setEdit struct {
	*edit
	kind Kind
	set  *Set
}

// editSet returns the edit of one of the type's sets.
func (ed *edit) editSet(kind Kind) setEdit { return setEdit{ed, kind, ed.typ.Set(kind)} }

// edits yields the edit of the rest, and those of the views of all cohorts. Changes that the origin did not cause are made in
// all of them.
func (ed *edit) edits() iter.Seq[*edit] {
	return func(yield func(*edit) bool) {
		if !yield(ed) {
			return
		}
		for i := range ed.w.cohorts() {
			if !yield(ed.cohortEdit(i)) {
				return
			}
		}
	}
}

// cohortEdit returns, for an edit of the rest, the edit of the view of a cohort. It begins one if there is none.
func (ed *edit) cohortEdit(i int) *edit {
	if ed.cohorts == nil {
		ed.cohorts = make([]*edit, len(ed.w.cohorts()))
	}
	if ed.cohorts[i] == nil {
		ed.cohorts[i] = ed.w.beginLocked(ed.typ.URL, ed.w.branches[i])
	}
	return ed.cohorts[i]
}

// next returns the position of the next change.
func (ed *edit) next() Seq {
	ed.gen.Seq++
	return ed.gen.Seq
}

// epoch returns the number of the open connection to the origin.
func (ed *edit) epoch() uint32 { return ed.gen.sources[ed.w.source].epoch }

// recordResponse records that the origin has sent a response, and its control_plane.identifier.
func (ed *edit) recordResponse(identifier string) {
	from := &ed.gen.sources[ed.w.source]
	if from.Responded == from.Connected && (identifier == "" || identifier == from.Identifier) {
		return
	}
	from = ed.gen.mutableSource(ed.w.source)
	from.Responded = from.Connected
	if identifier != "" {
		from.Identifier = identifier
	}
}

// isSubscribed reports whether the session of this source subscribes to a name.
func (ed *edit) isSubscribed(n *Name) bool { return n != nil && n.tracked && n.source == ed.w.source }

// recordResponseFor records that the origin has responded for a name. A snapshot is no response, nor is what a cohort is shown.
func (ed *edit) recordResponseFor(n *Name) {
	if ed.w.restoring || ed.branch != ed.w.rest() {
		return
	}
	n.answered(ed.now)
	ed.w.view.index.dropRestored(n)
}

// subscribedNames returns the names by which the session subscribes to a variant of a resource: those with parameters
// that the variant matches. The slice is valid until the next call.
func (ed *edit) subscribedNames(text string, v wire.Variant) []*Name {
	names := ed.w.scratchNames[:0]
	if n := ed.index.names[text]; ed.isSubscribed(n) && v.Matches(nil) {
		names = append(names, n)
	}
	for _, n := range ed.index.variants[text] {
		if _, parameters := wire.SplitParameters(n.text); ed.isSubscribed(n) && v.Matches(parameters) {
			names = append(names, n)
		}
	}
	ed.w.scratchNames = names
	return names
}

// errors returns the errors of the resources of one of the type's sets. The caller may change the set.
func (ed *edit) errors(of Kind) *Set {
	if !ed.errorsCopied {
		errors := *cmp.Or(ed.typ.errors, noErrors)
		ed.typ.errors, ed.errorsCopied = &errors, true
	}
	return &ed.typ.errors[of]
}

// alias records that the set of names has a resource under another name. The index is locked.
func (b *branch) alias(typeURL string, n *Name, resource string) {
	byResource := b.aliases[typeURL]
	if byResource == nil {
		byResource = make(map[string][]*Name)
		b.aliases[typeURL] = byResource
	}
	if !slices.Contains(byResource[resource], n) {
		byResource[resource] = append(byResource[resource], n)
	}
}

// unalias undoes alias for the resource, or the prior one, of an entry.
func (ed *edit) unalias(old *Entry) {
	if old == nil {
		return
	}
	r := cmp.Or(old.Resource, old.Prior)
	if r == nil || r.Name == old.Name.text {
		return
	}
	byResource := ed.branch.aliases[ed.typ.URL]
	remaining := slices.DeleteFunc(byResource[r.Name], func(n *Name) bool { return n == old.Name })
	if len(remaining) == 0 {
		delete(byResource, r.Name)
		return
	}
	byResource[r.Name] = remaining
}

// dropEntry removes the entry of a name from a set without a tombstone.
func (ed *edit) dropEntry(set *Set, n *Name) {
	if e := set.Get(n); e != nil {
		set.drop(ed.txn, e)
		ed.unalias(e)
		n.entries--
	}
}

// markChanged makes publish wake the streams that subscribe to a name.
func (ed setEdit) markChanged(n *Name) {
	if n.watchers != nil {
		ed.changed = append(ed.changed, n)
	}
	if ed.kind == Wildcard {
		ed.wildcardChanged = true
	}
}

// compact drops dead items from the logs of the set and of its errors.
func (ed setEdit) compact() {
	ed.set.compact()
	if ed.errorsCopied {
		ed.errors(ed.kind).compact()
	}
}

const (
	// unresolvedTTL is how long the response that an alias names no resource is served before the alias is requested
	// again (B.20).
	unresolvedTTL = 5 * time.Second

	// uncachedTTL is how long content with do_not_cache is kept for the streams that wait for it (B.25).
	uncachedTTL = time.Second

	// refetchInterval limits how often the origin is asked for a resource for which it sends only heartbeats.
	refetchInterval = time.Second
)

// dueAt returns when the timer of an entry that is not published yet must fire; zero is never.
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
		due = now.Add(unresolvedTTL)
	case r.DoNotCache:
		by(now.Add(uncachedTTL))
	}
	if e.shadowed {
		by(e.timer.shadowedUntil)
	}
	return due
}

// setTimer sets and queues the timer of an entry that is not published yet.
func (ed setEdit) setTimer(e *Entry) {
	due := e.dueAt(ed.now)
	if ed.kind == ByName {
		// If the content may not be cached, the next subscriber causes a new request.
		e.Name.stale = e.Resource.DoNotCache || e.Resource.ContentDropped()
	}
	if e.timer == nil && due.IsZero() {
		return
	}
	if e.timer == nil {
		e.timer = new(timer)
	}
	e.timer.due = due
	ed.queueTimer(e)
}

// dropContent drops the content of an entry.
func (ed setEdit) dropContent(e *Entry) {
	dropped := *e
	dropped.Resource, dropped.mutableLifetime().contentDropped = e.Resource.DropContent(), ed.now
	ed.set.contentDroppedAt = ed.now
	ed.setTimer(&dropped)
	ed.set.put(ed.txn, &dropped)
}

// queueTimer queues the timer of an entry, unless it is queued for an earlier time.
func (ed setEdit) queueTimer(e *Entry) {
	at := e.timer
	if at.due.IsZero() || !at.queued.IsZero() && !at.due.Before(at.queued) {
		return
	}
	at.queued = at.due
	ed.schedule(deadline{at.due, ed.typ.URL, ed.kind, e.Name})
}

// schedule adds a deadline to the heap. It drops outdated deadlines when they may be more than half: otherwise
// resources with long TTLs that are added and removed would fill the heap.
func (ed *edit) schedule(d deadline) {
	const slack = 64
	b := ed.branch
	if len(b.due) > 2*b.dueAfterCompaction+slack {
		b.due = slices.DeleteFunc(b.due, func(d deadline) bool {
			t := ed.gen.Type(d.key)
			e := t.Set(d.kind).Get(d.name)
			return !e.hasQueuedTimer(d.at)
		})
		heap.Init(&b.due)
		b.dueAfterCompaction = len(b.due)
	}
	heap.Push(&b.due, d)
}

// A received resource, with values that are derived from it before the index is locked.
type received struct {
	*wire.Resource
	leaf     fingerprint.Sum
	deadline time.Time // zero if it does not expire
	failing  bool      // the origin also sent an error for it
	copied   *Entry    // the entry of another generation that is copied; nil if the origin sent the resource
}

// newReceived returns a received resource of a type or collection.
func newReceived(key string, r *wire.Resource, deadline time.Time) received {
	return received{Resource: r, leaf: fingerprint.Leaf(resourceType(key), r), deadline: deadline}
}

// begin locks the index and begins an edit of the rest. publish ends it.
func (w *Writer) begin(typeURL string) *edit { return w.beginOn(w.rest(), typeURL) }

// beginOn is begin for the generation of a branch.
func (w *Writer) beginOn(b *branch, typeURL string) *edit {
	w.view.index.mu.Lock()
	w.wakes = w.wakes[:0]
	return w.beginLocked(typeURL, b)
}

// beginLocked is beginOn while the index is locked.
func (w *Writer) beginLocked(typeURL string, b *branch) *edit {
	x := &w.view.index
	old := b.generation()
	generation := *old
	generation.Revision++
	typ := *old.Type(typeURL)
	index := x.ensureType(typeURL)
	typ.URL, typ.source, typ.era = typeURL, index.source, index.era
	typ.revision, typ.shared = generation.Revision, new(memo)
	generation.types.put(&typ)
	ed := &edit{
		w: w, branch: b, now: time.Now(), gen: &generation, typ: &typ, index: index,
		txn: &txn{recording: len(w.branches) > 1},
	}
	ed.changed, w.changed = w.changed[:0], nil
	return ed
}
