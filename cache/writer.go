package cache

import (
	"cmp"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// A Writer changes what comes from one source of a view. All its methods belong to
// one goroutine. Each publishes a new head if it changed anything, and then wakes the
// streams that the change concerns.
type Writer struct {
	view        *View
	source      int
	wakes       []*Watch             // reused
	changed     []*Name              // likewise; of which something is being said
	asked       []*Name              // likewise
	refetchedAt map[string]time.Time // when members were last found missing, by type URL or collection
	ledger                           // of the head that readers see
	gate        gate                 // between that and what the source says
	cause       Cause                // of what it changes

	fanouts []*Fanout // that may not be over
}

// A ledger is what a writer must remember of the heads that it makes.
type ledger struct {
	gen        *Generation // the newest; nil if that is the view's
	tombstones map[string][]tombstone
	due        deadlines
	kept       int // of due, when it was last rid of what is out of date

	// aliases says under which further names the set of the named holds a
	// resource: type URL, resource name, names. It is guarded by index.mu.
	aliases map[string]map[string][]*Name
}

func newLedger() ledger {
	return ledger{tombstones: make(map[string][]tombstone), aliases: make(map[string]map[string][]*Name)}
}

func newWriter(v *View, source int) *Writer {
	w := &Writer{view: v, source: source, refetchedAt: make(map[string]time.Time), ledger: newLedger()}
	w.gate = gate{latest: &w.ledger, ledgers: []*ledger{&w.ledger}}
	return w
}

// tomb is a removal among the members that wildcard streams may not have seen.
type tombstone struct {
	name *Name
	seq  Seq
	at   time.Time
}

// Kind names one of a type's two sets.
type Kind int

// The sets of a type.
const (
	Wildcard Kind = iota
	ByName
)

var kinds = [...]Kind{Wildcard, ByName}

// A Change says what an Apply did.
type Change struct {
	Seen    int      // resources that the set accepts, changed or not
	Changed int      // resources new or with other content
	New     int      // of these, new ones
	Removed int      // resources that were there
	Ignored int      // resources that nobody asked for (R096)
	Same    int      // resources resent with the version that the set had, to no end
	Reused  []string // names whose content changed under an unchanged version (B.2)
	Renewed int      // resources whose time to live was said anew

	// Ambiguous names resources of which an update had several variants for the same
	// parameters (R122).
	Ambiguous []string
}

// View returns the view that the writer writes to.
func (w *Writer) View() *View { return w.view }

// Owns reports whether the writer's source has the members of a type.
func (w *Writer) Owns(typeURL string) bool { return w.view.cfg.Route(typeURL, "") == w.source }

// Source returns how the writer's source stands.
func (w *Writer) Source() Source { return w.Generation().sources[w.source] }

// SetTarget records at which address of the origin all that is held has the versions
// that it has here; an empty one if there is none.
func (w *Writer) SetTarget(target string) {
	from := w.Source()
	from.Target = target
	w.SetSource(from)
}

// Apply records what an origin said of a type. Among the named, what nobody
// asked for is ignored (R096); unknown removals among the members are ignored
// (R069). Content that is already there changes nothing that a client would be
// told, whatever its version (R040), but for how long it lives.
func (w *Writer) Apply(kind Kind, u wire.Update) Change {
	resources := w.prepare(u)
	ed := w.begin(u.TypeURL)
	set := ed.set(kind)
	set.system = u.SystemVersion
	ed.recordResponse(u.ControlPlane)
	if slices.ContainsFunc(resources, func(r received) bool { return r.Constraints != nil }) {
		ed.firsts = make(map[*Name]string)
	}
	for _, r := range resources {
		if r.Refusal != nil {
			ed.refuse(kind, r.Resource)
		} else {
			ed.add(kind, set, r)
		}
	}
	if kind == Wildcard && ed.change.Seen > 0 {
		ed.clearWholeError()
	}
	for _, name := range u.Removed {
		ed.remove(kind, set, name, u.Fails(name))
	}
	for _, v := range u.RemovedVariants {
		ed.removeVariant(kind, set, v)
	}
	for _, e := range u.Errors {
		ed.fail(kind, e)
	}
	ed.compact(kind)
	w.publish(ed)
	return ed.change
}

// An apply is one change of a head in the making. The index is locked from begin
// to publish.
type edit struct {
	w      *Writer
	ledger *ledger
	served *edit // if this is of latest, and the gate is closed: the one of what readers see; nil if there is none yet
	now    time.Time
	gen    *Generation // the new one
	typ    *Type       // of head, owned
	index  *indexType
	txn    *txn
	change Change
	pokes  pokes

	dirty    bool // the members changed: wake the wildcards
	failures bool // the type's errors are this apply's own, and it may write to them

	// firsts says, if there are variants among what is received, which came first for
	// each name.
	firsts map[*Name]string
}

func (ed *edit) set(kind Kind) *Set { return ed.typ.set(kind) }

// heard records that the origin said something, and who it is.
func (ed *edit) recordResponse(identifier string) {
	from := &ed.gen.sources[ed.w.source]
	if from.Responded == from.Connected && (identifier == "" || identifier == from.Identifier) {
		return
	}
	from = ed.w.from(ed.gen)
	from.Responded = from.Connected
	if identifier != "" {
		from.Identifier = identifier
	}
}

// from returns the writer's source in a head that is being made, for writing.
func (w *Writer) from(g *Generation) *Source {
	g.sources = slices.Clone(g.sources)
	return &g.sources[w.source]
}

// begin locks the index and copies what is about to change of latest.
func (w *Writer) begin(typeURL string) *edit { return w.beginOn(w.gate.latest, typeURL) }

// beginOn is begin for the newest head of a ledger.
func (w *Writer) beginOn(of *ledger, typeURL string) *edit {
	w.view.index.mu.Lock()
	return w.beginLocked(typeURL, of)
}

// edit copies what is about to change of the newest head of a ledger. The index must be locked.
func (w *Writer) beginLocked(typeURL string, of *ledger) *edit {
	x := &w.view.index
	w.wakes, w.changed = w.wakes[:0], w.changed[:0]
	old := w.generationOf(of)
	generation := *old
	generation.Revision++
	typ := *old.Type(typeURL)
	index := x.typ(typeURL)
	typ.URL, typ.source, typ.revision, typ.shared = typeURL, index.source, generation.Revision, new(memo)
	generation.types.put(&typ)
	return &edit{w: w, ledger: of, now: time.Now(), gen: &generation, typ: &typ, index: index, txn: &txn{noting: of != &w.ledger}}
}

// publish makes the new head visible as far as it passes the gate, and only then wakes its readers.
func (w *Writer) publish(edited *edit) {
	x := &w.view.index
	ed := w.passEdit(edited)
	if ed == nil {
		x.mu.Unlock()
		x.poke(edited.pokes)
		return
	}
	if ed.change.Changed+ed.change.Removed > 0 {
		ed.typ.changed = ed.now
	}
	ed.typ.Wildcard.recordSum(w.view.head.Load().Type(ed.typ.URL).Wildcard.sum, ed.gen.Seq)
	if ed.gen.Seq > w.view.head.Load().Seq {
		w.view.timeline.record(ed.gen.Seq, w.causeOf(ed))
	}
	w.hint(ed)
	if ed.dirty {
		for _, wc := range ed.index.wildcards {
			w.wakes = append(w.wakes, wc.watch)
		}
	}
	f := w.followEdit(ed)
	began := w.view.cfg.Began != nil && ed.typ.serves() && !w.view.head.Load().Type(ed.typ.URL).serves()
	w.wakes = append(w.wakes, x.observers...)
	w.view.head.Store(ed.gen)
	x.mu.Unlock()
	x.poke(ed.pokes)
	for i, watch := range w.wakes {
		watch.wake()
		w.wakes[i] = nil
	}
	if f != nil {
		f.release()
	}
	if began {
		w.view.cfg.Began()
	}
}

// causeOf returns what made a change, with the time of it.
func (w *Writer) causeOf(ed *edit) Cause {
	cause := w.cause
	if cause.Received.IsZero() {
		cause.Received = ed.now
	}
	return cause
}

func (ed *edit) next() Seq {
	ed.gen.Seq++
	return ed.gen.Seq
}

// A received resource, with what can be found out of it without the lock.
type received struct {
	*wire.Resource
	leaf     Sum
	deadline time.Time // zero if it does not expire
	failing  bool      // the origin says so beside what it said is wrong with it
}

// receive prepares an update's resources. One without content that is no answer for
// an alias and no heartbeat says nothing.
func (w *Writer) prepare(u wire.Update) []received {
	out, now, typeURL := make([]received, 0, len(u.Resources)), time.Now(), resourceType(u.TypeURL)
	for _, r := range u.Resources {
		if r.Refusal != nil {
			out = append(out, received{Resource: r})
			continue
		}
		if !r.HasBody() && !r.Unresolved() && !r.Heartbeat() {
			continue
		}
		if in := w.view.cfg.Interner; in != nil && r.HasBody() && !r.DoNotCache {
			r = in.Intern(r)
		}
		in := received{Resource: r, leaf: w.view.cfg.VersionSource.leaf(typeURL, r)}
		if r.TTL > 0 {
			in.deadline = now.Add(r.TTL)
		}
		out = append(out, in)
	}
	return out
}

func (ed *edit) add(kind Kind, set *Set, r received) {
	if r.Heartbeat() {
		ed.heartbeat(kind, set, r)
		return
	}
	if kind == Wildcard {
		if !r.Variant().Matches(nil) { // a wildcard has no parameters
			ed.change.Ignored++
			return
		}
		ed.change.Seen++
		ed.putVariant(kind, set, ed.w.view.index.name(ed.index, r.Name), r)
		return
	}
	known := false
	for text := range subscribableNames(r.Resource) {
		for _, n := range ed.subscribedAs(text, r.Variant()) {
			known = true
			ed.putVariant(kind, set, n, r)
		}
	}
	if ed.addUnlisted(set, r) || known {
		ed.change.Seen++
	} else {
		ed.change.Ignored++
	}
}

// askedAs returns the names under which this source was asked for a variant of what
// text names: with the parameters that it is for. They are valid until the next call.
func (ed *edit) subscribedAs(text string, v wire.Variant) []*Name {
	asked := ed.w.asked[:0]
	if n := ed.index.names[text]; ed.accepts(n) && v.Matches(nil) {
		asked = append(asked, n)
	}
	for _, n := range ed.index.variants[text] {
		if _, parameters := wire.SplitParameters(n.text); ed.accepts(n) && v.Matches(parameters) {
			asked = append(asked, n)
		}
	}
	ed.w.asked = asked
	return asked
}

// putVariant puts a resource under a name, unless the same update has another variant
// for the same parameters: of these the first counts.
func (ed *edit) putVariant(kind Kind, set *Set, n *Name, r received) {
	if kind == ByName {
		n.answered(ed.now)
	}
	if ed.firsts != nil {
		first, taken := ed.firsts[n]
		if taken && first != r.Key() {
			ed.change.Ambiguous = append(ed.change.Ambiguous, r.Name)
			return
		}
		ed.firsts[n] = r.Key()
	}
	ed.put(kind, set, n, r)
}

// addUnlisted gives new content to those who asked for the resource by an alias that
// it does not list now: some origins list only the one that they were asked for last.
// Whoever comes next by such an alias has the origin asked for an answer that has it.
func (ed *edit) addUnlisted(set *Set, r received) (known bool) {
	for _, n := range slices.Clone(ed.ledger.aliases[ed.typ.URL][r.Name]) {
		old := set.Get(n)
		if slices.Contains(r.Aliases, n.text) || wire.PlainName(n.text) == r.Name || !old.Present() || old.Resource.Name != r.Name {
			continue
		}
		known = true
		if old.Resource.Digest != r.Digest {
			ed.put(ByName, set, n, r)
			n.stale = true
		}
	}
	return known
}

// takes reports whether the session asked this source for a name.
func (ed *edit) accepts(n *Name) bool { return n != nil && n.tracked && n.source == ed.w.source }

// names yields what a resource may be subscribed by (R092).
func subscribableNames(r *wire.Resource) func(func(string) bool) {
	return func(yield func(string) bool) {
		if !yield(r.Name) {
			return
		}
		for _, alias := range r.Aliases {
			if alias != r.Name && !yield(alias) {
				return
			}
		}
	}
}

func (ed *edit) put(kind Kind, set *Set, n *Name, r received) {
	old := set.Get(n)
	// An alias may come to stand for another resource with the same bytes.
	same := old.Present() && old.Resource.Key() == r.Key()
	failed := !r.failing && ed.clearError(kind, n) // then clients have to see it again
	if same && !failed && ed.w.view.cfg.VersionSource.same(old.Resource, r.Resource) {
		ed.keep(kind, set, old, r)
		return
	}
	e := &Entry{Name: n, Seq: ed.next(), Resource: r.Resource, Leaf: r.leaf}
	e.setDeadline(r.deadline)
	e.since, e.born = e.Seq, e.Seq
	if seen, since := ed.typ.Lookup(n); !failed && seen.shows(r.Resource) {
		e.since = since
		ed.inherit(e, seen)
	}
	ed.replace(n, old, e)
	ed.setYield(kind, e, old)
	if same {
		ed.checkReuse(n, old.Resource, r.Resource)
	}
	if kind == ByName {
		n.stale = false
	}
	ed.setAlarm(kind, e)
	if old == nil {
		set.recallPast(e)
	}
	set.put(ed.txn, e)
	ed.endYieldIfSame(kind, e)
	ed.unalias(old)
	if n.text != r.Name {
		set.aliased = true
		ed.ledger.alias(ed.typ.URL, n, r.Name)
	}
	ed.markChanged(kind, n)
}

// replace counts an entry in the place of an older one, and takes over what outlives
// that.
func (ed *edit) replace(n *Name, old, e *Entry) {
	ed.change.Changed++
	if old == nil {
		n.entries++
	}
	if old.Present() {
		e.born, e.alarm = old.born, old.alarm
	} else {
		ed.change.New++
	}
}

// keep takes a resource with content that clients have: at most its version is new,
// or how long it lives, or the content had been given up.
func (ed *edit) keep(kind Kind, set *Set, old *Entry, r received) {
	again, changed := *old, false
	switch {
	case old.Resource.OriginVersion == r.OriginVersion && r.deadline.IsZero() && !old.Resource.ContentDropped():
		ed.change.Same++
	case old.Resource.OriginVersion == r.OriginVersion: // there was a reason to say it again
	default:
		again, changed = *old.withVersion(r.Resource), true
		again.Leaf = r.leaf
	}
	if old.Resource.ContentDropped() {
		again.Resource, changed = r.Resource, true
		ed.markChanged(kind, old.Name)
	}
	if !r.deadline.Equal(old.Deadline()) {
		again.Resource, changed = r.Resource, true
		ed.renew(kind, &again, r.deadline)
	}
	if changed || r.Unresolved() || r.DoNotCache {
		ed.setAlarm(kind, &again)
		set.put(ed.txn, &again)
	}
}

// checkReuse notes that other content came under the same version (B.2).
func (ed *edit) checkReuse(n *Name, old, r *wire.Resource) {
	if v := r.OriginVersion; v != "" && v == old.OriginVersion && r.Digest != old.Digest {
		ed.change.Reused = append(ed.change.Reused, n.text)
		ed.w.from(ed.gen).Reused = true
	}
}

// alias records that a resource is held under another name. The index is locked.
func (l *ledger) alias(typeURL string, n *Name, resource string) {
	of := l.aliases[typeURL]
	if of == nil {
		of = make(map[string][]*Name)
		l.aliases[typeURL] = of
	}
	if !slices.Contains(of[resource], n) {
		of[resource] = append(of[resource], n)
	}
}

// unalias undoes alias for what an entry holds, or held last.
func (ed *edit) unalias(old *Entry) {
	if old == nil {
		return
	}
	r := cmp.Or(old.Resource, old.Prior)
	if r == nil || r.Name == old.Name.text {
		return
	}
	of := ed.ledger.aliases[ed.typ.URL]
	left := slices.DeleteFunc(of[r.Name], func(n *Name) bool { return n == old.Name })
	if len(left) == 0 {
		delete(of, r.Name)
		return
	}
	of[r.Name] = left
}

// remove records that the origin has no such resource, and, unless that has an error
// as well, nothing else to say of it.
func (ed *edit) remove(kind Kind, set *Set, text string, failing bool) {
	if ed.typ.Errors(kind).live == 0 || failing {
		ed.removeResource(kind, set, text)
		return
	}
	names := ed.affectedNames(kind, wire.Variant{Name: text})
	was := make(map[*Name]Seq)
	for _, n := range names {
		if old := set.Get(n); ed.clearError(kind, n) && !old.Present() {
			was[n] = old.seq()
		}
	}
	ed.removeResource(kind, set, text)
	for _, n := range names {
		if seq, failed := was[n]; failed && set.Get(n).seq() == seq {
			ed.announceAbsence(kind, set, n)
		}
		ed.index.release(n)
	}
}

// gone records that the origin has no such resource. That says nothing of variants,
// which go by their constraints (R121), but if text has the parameters of one name.
func (ed *edit) removeResource(kind Kind, set *Set, text string) {
	if kind == Wildcard {
		ed.removeMember(set, ed.index.names[text])
		return
	}
	// Those who subscribed by an alias held the same resource.
	for _, alias := range slices.Clone(ed.ledger.aliases[ed.typ.URL][text]) {
		if e := set.Get(alias); e.Present() && e.Resource.Name == text && e.Resource.Constraints == nil {
			ed.putAbsent(set, alias, e)
			ed.unalias(e)
		}
	}
	for _, n := range ed.subscribedAs(text, wire.Variant{}) {
		if e := set.Get(n); !e.Present() || n.text == text && !variesAs(e, text) {
			ed.putAbsent(set, n, e)
		}
	}
}

// goneMember is gone for a member; a nil name is none.
func (ed *edit) removeMember(set *Set, n *Name) {
	if n == nil {
		return
	}
	if old := set.Get(n); old.Present() {
		ed.putTombstone(set, old)
	}
}

// variesAs reports whether an entry is a variant of what a plain name stands for: its
// removal is said by its constraints.
func variesAs(e *Entry, text string) bool {
	return wire.PlainName(text) == text && e.Present() && e.Resource.Constraints != nil
}

// removeVariant records that the origin no longer has one variant of a resource:
// those who were shown it are told, and those who were shown another are not (R121).
func (ed *edit) removeVariant(kind Kind, set *Set, v wire.Variant) {
	gone := func(e *Entry) bool {
		return e.Present() && e.Resource.Name == v.Name && string(e.Resource.Constraints) == string(v.Constraints)
	}
	own := ed.index.names[v.Name]
	if kind == Wildcard {
		if own != nil && gone(set.Get(own)) {
			ed.putTombstone(set, set.Get(own))
		}
		return
	}
	for _, n := range slices.Clone(ed.ledger.aliases[ed.typ.URL][v.Name]) {
		if e := set.Get(n); gone(e) {
			ed.putAbsent(set, n, e)
			ed.unalias(e)
		}
	}
	if own != nil && gone(set.Get(own)) {
		ed.putAbsent(set, own, set.Get(own))
	}
}

// bury replaces a member by its tombstone.
func (ed *edit) putTombstone(set *Set, old *Entry) {
	e := ed.newTombstone(old)
	set.put(ed.txn, e)
	if remembersRemovals(ed.typ.URL) {
		set.rememberRemoval(e)
	}
	ed.ledger.tombstones[ed.typ.URL] = append(ed.ledger.tombstones[ed.typ.URL], tombstone{e.Name, e.Seq, time.Now()})
	ed.change.Removed++
	ed.markChanged(Wildcard, e.Name)
	if named := ed.yieldingEntry(old.Name); named != nil && !named.Present() { // what may be older than what is gone goes on yielding
		ed.endYield(named)
	}
}

// absent records that a name does not exist. To say so again on another
// connection is no change, but streams that could not be told before now can.
func (ed *edit) putAbsent(set *Set, n *Name, old *Entry) {
	n.answered(ed.now)
	n.stale = false
	switch {
	case old == nil:
		n.entries++
		set.put(ed.txn, &Entry{Name: n, Seq: ed.next(), epoch: ed.epoch(), yields: true})
	case old.Present():
		ed.change.Removed++
		e := ed.newTombstone(old)
		e.Prior, e.yields = priorOf(old.Resource), old.yields
		if seen, since := ed.typ.Lookup(n); e.yields && seen.Present() && ed.typ.member(n).shows(seen.Resource) {
			e.since = since
			ed.showMember(n, seen)
		}
		set.put(ed.txn, e)
	default:
		again := *old
		again.epoch, again.Expired = ed.epoch(), false
		set.put(ed.txn, &again)
	}
	ed.markChanged(ByName, n)
}

// epoch returns the connection on which the origin is speaking.
func (ed *edit) epoch() uint32 { return ed.gen.sources[ed.w.source].epoch }

func (ed *edit) newTombstone(old *Entry) *Entry {
	e := &Entry{Name: old.Name, Seq: ed.next(), born: old.born, replaced: old.Seq, epoch: ed.epoch(), Leaf: old.Leaf}
	e.since = e.Seq
	if t := resourceType(ed.typ.URL); t == wire.ClusterType || t == wire.EndpointType || old.Resource.Constraints != nil {
		e.Prior = priorOf(old.Resource)
	}
	return e
}

// remains returns what is kept of a resource that is gone.
func priorOf(r *wire.Resource) *wire.Resource {
	if r.DoNotCache && !r.ContentDropped() {
		return r.DropContent()
	}
	return r
}

// touched wakes who watches the name.
func (ed *edit) markChanged(kind Kind, n *Name) {
	if len(n.watchers) > 0 {
		ed.w.changed = append(ed.w.changed, n)
	}
	if kind == Wildcard {
		ed.dirty = true
	}
}

// SetPhase records how much is known of the members of a type.
func (w *Writer) SetPhase(typeURL string, p Phase) {
	if w.Generation().Type(typeURL).Phase == p {
		return
	}
	ed := w.begin(typeURL)
	ed.typ.Phase, ed.dirty = p, true
	ed.typ.Restored = ed.typ.Restored && p == Settled
	ed.typ.Covered = ed.typ.Covered && ed.typ.Restored
	ed.index.lastKnown = ed.index.lastKnown || p == Confirmed
	w.publish(ed)
}

// SetCovered records that the origin has said all that was restored of the members of a type.
func (w *Writer) SetCovered(typeURL string) {
	ed := w.begin(typeURL)
	ed.typ.Covered, ed.dirty = true, true
	w.publish(ed)
}

// SetConnected records whether the origin's stream is up. What was absent on an
// earlier connection counts as unknown until it is said again (B.7). Names
// that streams wait for are asked anew.
func (w *Writer) SetConnected(up bool) {
	from := w.Source()
	if from.Connected == up {
		return
	}
	from.Connected, from.Since = up, time.Now()
	if up {
		from.epoch++
	} else {
		if from.Responded || !from.lastStreamSilent {
			from.Lost = from.Since
		}
		from.Responded, from.lastStreamSilent = false, !from.Responded
	}
	w.SetSource(from)
}

// OriginChanges records how the writer's source stands: as that of another view does, from
// which the writer takes what it writes. It has the effects of SetConnected.
func (w *Writer) SetSource(as Source) {
	x := &w.view.index
	x.mu.Lock()
	var wakes []*Watch
	old := w.Source()
	turned := as.epoch != old.epoch || as.Connected != old.Connected
	if turned {
		x.clearAsked(w.source)
		wakes = x.all(nil)
	}
	w.setSource(as, turned)
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
}

// unasked records that a source has not been asked for anything yet.
func (x *index) clearAsked(source int) {
	for _, t := range x.types {
		for _, n := range t.names {
			if n.source == source {
				n.asked.Store(nil)
			}
		}
	}
}

// Asked records that the origin has been asked for names, all in one request; at the zero time,
// that it no longer is.
func (w *Writer) Asked(names []*Name, at time.Time) {
	var q *originRequest
	if !at.IsZero() {
		q = &originRequest{at: at}
	}
	seq := w.Generation().Seq
	for _, n := range names {
		n.asked.Store(q)
		n.askedAt = seq
	}
}

// Demand returns a channel that receives when TakeDemand has something to
// return.
func (w *Writer) Demand() <-chan struct{} { return w.view.index.sources[w.source].poke }

// TakeDemand returns what streams began or ceased to want of this source since the
// last call. A name that is returned as wanted stays known, and its resource is
// accepted, until Forget.
func (w *Writer) TakeDemand() []Demand {
	taken, unused := w.takeDemand()
	for _, key := range unused {
		ed := w.begin(key)
		w.forgetType(ed)
		w.publish(ed)
	}
	return taken
}

// takeDemand is TakeDemand but for that, and returns types and collections that came and went, so that nobody will give them up, and
// that a head has.
func (w *Writer) takeDemand() (taken []Demand, unused []string) {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	taken = x.sources[w.source].demand
	x.sources[w.source].demand = nil
	for i := range taken {
		x.take(&taken[i])
	}
	taken = slices.DeleteFunc(taken, func(d Demand) bool {
		t := x.types[d.TypeURL]
		switch {
		case d.Wanted || d.Restored || d.Name != nil && d.Name.tracked:
			return false
		case d.Name != nil:
			t.release(d.Name) // came and went between two calls
		}
		unused = append(unused, w.forgetUnused(t)...)
		return d.Name != nil || x.types[d.TypeURL] == nil // nobody has to give up what was given up
	})
	return taken, unused
}

// take fills in what is demanded now.
func (x *index) take(d *Demand) {
	if d.Name == nil {
		d.Wanted, d.Refetch, d.Restored = x.takeMembers(d.TypeURL)
		return
	}
	d.Wanted, d.Refetch = len(d.Name.watchers) > 0, d.Name.refetch && d.Name.tracked
	d.Name.queued, d.Name.refetch = false, false
	if d.Wanted {
		d.Name.tracked, d.Name.stale = true, false
	}
}

// forgetUnused forgets a type or collection, which may be nil, if it is idle, unless a head has it: then it returns it.
func (w *Writer) forgetUnused(t *indexType) (unused []string) {
	x := &w.view.index
	for t != nil && x.idle(t, w.view.Generation()) {
		if w.view.Generation().types.get(t.url) != nil || w.Generation().types.get(t.url) != nil {
			return []string{t.url}
		}
		t = x.forget(t)
	}
	return nil
}

// Forget drops names that linger no longer, with what the set of the named holds
// of them. It returns those that it kept because a stream wants them again.
func (w *Writer) Forget(typeURL string, names []*Name) (kept []*Name) {
	ed := w.begin(typeURL)
	for _, n := range names {
		if len(n.watchers) > 0 {
			kept = append(kept, n)
			continue
		}
		n.tracked, n.stale = false, false
		n.asked.Store(nil) // it may live on as a member
		for s := range ed.edits() {
			s.forgetName(n)
		}
	}
	ed.typ.ByName.compact()
	w.forgetType(ed)
	w.publish(ed)
	return kept
}

// forget drops what is held of a name.
func (ed *edit) forgetName(n *Name) {
	ed.txn.note(n)
	ed.dropEntry(&ed.typ.ByName, n)
	ed.clearError(ByName, n)
	ed.index.release(n)
}

// drop forgets what a set holds of a name.
func (ed *edit) dropEntry(set *Set, n *Name) {
	if e := set.Get(n); e != nil {
		set.drop(ed.txn, e)
		ed.unalias(e)
		n.entries--
	}
}

// ForgetMembers drops the members of a type and reports whether it did: not if a
// stream wants them again.
func (w *Writer) ForgetMembers(typeURL string) bool {
	ed := w.begin(typeURL)
	forget := len(ed.index.wildcards) == 0
	if forget {
		for s := range ed.edits() {
			s.forgetMembers()
		}
		ed.index.tracked = false
		w.forgetType(ed)
	}
	w.publish(ed)
	return forget
}

func (ed *edit) forgetMembers() {
	for e := range ed.typ.Wildcard.Since(0) {
		if named := ed.yieldingEntry(e.Name); named != nil && e.Present() {
			ed.endYield(named)
		}
		ed.txn.note(e.Name)
		e.Name.entries--
		ed.index.release(e.Name)
	}
	ed.clearErrors()
	ed.typ.Wildcard = Set{last: ed.gen.Seq, floor: ed.gen.Seq}
	ed.typ.Phase, ed.typ.Restored, ed.typ.Covered = Unknown, false, false
	ed.index.lastKnown = false
	ed.w.view.index.dropReports(ed.index, Wildcard)
	delete(ed.ledger.tombstones, ed.typ.URL)
}

// forgetType drops a type or collection that is idle, and the type of a collection with it: there may be as many as clients make up.
func (w *Writer) forgetType(ed *edit) {
	x := &w.view.index
	for t := ed.index; t != nil && x.idle(t, ed.gen); {
		key := t.url
		t = x.forget(t)
		for s := range ed.edits() {
			if s.gen.types.get(key) != nil {
				s.gen.types.drop(key)
			}
			delete(s.ledger.aliases, key)
		}
		delete(w.refetchedAt, key)
	}
}

// Trim forgets removals that every wildcard stream was told of, or that are too
// old. Call it now and then.
func (w *Writer) Trim(now time.Time) {
	w.endOldFanouts(now)
	w.trimReports(now)
	for key, tombs := range w.tombstones {
		if passed := w.view.index.passed(key); tombs[0].passed(passed, now.Add(-w.view.cfg.TombstoneAge)) {
			w.trim(key, passed, now)
		}
	}
}

// passed returns up to where no wildcard stream of a type needs removals any more.
func (x *index) passed(key string) Seq {
	x.mu.Lock()
	defer x.mu.Unlock()
	passed := ^Seq(0)
	if t := x.types[key]; t != nil {
		for _, wc := range t.wildcards {
			passed = min(passed, Seq(wc.passed.Load()))
		}
	}
	return passed
}

// passed reports whether a removal may be forgotten: all were told of it, or it is old.
func (tomb *tombstone) passed(passed Seq, old time.Time) bool {
	return tomb.seq <= passed || tomb.at.Before(old)
}

func (w *Writer) trim(key string, passed Seq, now time.Time) {
	ed := w.beginOn(&w.ledger, key)
	set, tombs := &ed.typ.Wildcard, w.tombstones[key]
	for old := now.Add(-w.view.cfg.TombstoneAge); len(tombs) > 0 && tombs[0].passed(passed, old); tombs = tombs[1:] {
		tomb := tombs[0]
		if e := set.Get(tomb.name); e != nil && e.Seq == tomb.seq {
			set.drop(ed.txn, e)
			set.floor = tomb.seq
			tomb.name.entries--
			ed.index.release(tomb.name)
		}
	}
	if w.tombstones[key] = tombs; len(tombs) == 0 {
		delete(w.tombstones, key)
	}
	set.compact()
	w.publish(ed)
}
