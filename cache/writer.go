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
	view   *View
	source int
	wakes  []*Watch             // reused
	spoken []*Name              // likewise; of which something is being said
	asked  []*Name              // likewise
	missed map[string]time.Time // when members were last found missing, by type URL or collection
	ledger                      // of the head that readers see
	gate   gate                 // between that and what the source says
	cause  Cause                // of what it changes

	fanouts []*Fanout // that may not be over
}

// A ledger is what a writer must remember of the heads that it makes.
type ledger struct {
	head  *Generation // the newest; nil if that is the view's
	tombs map[string][]tomb
	due   deadlines
	kept  int // of due, when it was last rid of what is out of date

	// aliases says under which further names the set of the named holds a
	// resource: type URL, resource name, names. It is guarded by index.mu.
	aliases map[string]map[string][]*Name
}

func newLedger() ledger {
	return ledger{tombs: make(map[string][]tomb), aliases: make(map[string]map[string][]*Name)}
}

func newWriter(v *View, source int) *Writer {
	w := &Writer{view: v, source: source, missed: make(map[string]time.Time), ledger: newLedger()}
	w.gate = gate{latest: &w.ledger, ledgers: []*ledger{&w.ledger}}
	return w
}

// tomb is a removal among the members that wildcard streams may not have seen.
type tomb struct {
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
	w.Stand(from)
}

// Apply records what an origin said of a type. Among the named, what nobody
// asked for is ignored (R096); unknown removals among the members are ignored
// (R069). Content that is already there changes nothing that a client would be
// told, whatever its version (R040), but for how long it lives.
func (w *Writer) Apply(kind Kind, u wire.Update) Change {
	resources := w.receive(u)
	a := w.begin(u.TypeURL)
	set := a.set(kind)
	set.system = u.SystemVersion
	a.heard(u.ControlPlane)
	if slices.ContainsFunc(resources, func(r received) bool { return r.Constraints != nil }) {
		a.firsts = make(map[*Name]string)
	}
	for _, r := range resources {
		if r.Refusal != nil {
			a.refuse(kind, r.Resource)
		} else {
			a.add(kind, set, r)
		}
	}
	if kind == Wildcard && a.change.Seen > 0 {
		a.succeedWhole()
	}
	for _, name := range u.Removed {
		a.remove(kind, set, name, u.Fails(name))
	}
	for _, v := range u.RemovedVariants {
		a.removeVariant(kind, set, v)
	}
	for _, e := range u.Errors {
		a.fail(kind, e)
	}
	a.compact(kind)
	w.publish(a)
	return a.change
}

// An apply is one change of a head in the making. The index is locked from begin
// to publish.
type apply struct {
	w      *Writer
	ledger *ledger
	served *apply // if this is of latest, and the gate is closed: the one of what readers see; nil if there is none yet
	now    time.Time
	head   *Generation // the new one
	typ    *Type       // of head, owned
	index  *indexType
	edit   *edit
	change Change
	pokes  pokes

	dirty    bool // the members changed: wake the wildcards
	failures bool // the type's errors are this apply's own, and it may write to them

	// firsts says, if there are variants among what is received, which came first for
	// each name.
	firsts map[*Name]string
}

func (a *apply) set(kind Kind) *Set { return a.typ.set(kind) }

// heard records that the origin said something, and who it is.
func (a *apply) heard(identifier string) {
	from := &a.head.sources[a.w.source]
	if from.Heard == from.Connected && (identifier == "" || identifier == from.Identifier) {
		return
	}
	from = a.w.from(a.head)
	from.Heard = from.Connected
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
func (w *Writer) begin(typeURL string) *apply { return w.beginOn(w.gate.latest, typeURL) }

// beginOn is begin for the newest head of a ledger.
func (w *Writer) beginOn(of *ledger, typeURL string) *apply {
	w.view.index.mu.Lock()
	return w.edit(typeURL, of)
}

// edit copies what is about to change of the newest head of a ledger. The index must be locked.
func (w *Writer) edit(typeURL string, of *ledger) *apply {
	x := &w.view.index
	w.wakes, w.spoken = w.wakes[:0], w.spoken[:0]
	old := w.headOf(of)
	generation := *old
	generation.Revision++
	typ := *old.Type(typeURL)
	index := x.typ(typeURL)
	typ.URL, typ.source, typ.edition, typ.shared = typeURL, index.source, generation.Revision, new(memo)
	generation.types.put(&typ)
	return &apply{w: w, ledger: of, now: time.Now(), head: &generation, typ: &typ, index: index, edit: &edit{noting: of != &w.ledger}}
}

// publish makes the new head visible as far as it passes the gate, and only then wakes its readers.
func (w *Writer) publish(edited *apply) {
	x := &w.view.index
	a := w.pass(edited)
	if a == nil {
		x.mu.Unlock()
		x.poke(edited.pokes)
		return
	}
	if a.change.Changed+a.change.Removed > 0 {
		a.typ.changed = a.now
	}
	a.typ.Wildcard.became(w.view.head.Load().Type(a.typ.URL).Wildcard.sum, a.head.Seq)
	if a.head.Seq > w.view.head.Load().Seq {
		w.view.timeline.passed(a.head.Seq, w.causeOf(a))
	}
	w.hint(a)
	if a.dirty {
		for _, wc := range a.index.wildcards {
			w.wakes = append(w.wakes, wc.watch)
		}
	}
	f := w.follow(a)
	began := w.view.cfg.Began != nil && a.typ.serves() && !w.view.head.Load().Type(a.typ.URL).serves()
	w.wakes = append(w.wakes, x.observers...)
	w.view.head.Store(a.head)
	x.mu.Unlock()
	x.poke(a.pokes)
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
func (w *Writer) causeOf(a *apply) Cause {
	cause := w.cause
	if cause.Received.IsZero() {
		cause.Received = a.now
	}
	return cause
}

func (a *apply) next() Seq {
	a.head.Seq++
	return a.head.Seq
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
func (w *Writer) receive(u wire.Update) []received {
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

func (a *apply) add(kind Kind, set *Set, r received) {
	if r.Heartbeat() {
		a.beat(kind, set, r)
		return
	}
	if kind == Wildcard {
		if !r.Variant().Matches(nil) { // a wildcard has no parameters
			a.change.Ignored++
			return
		}
		a.change.Seen++
		a.putVariant(kind, set, a.w.view.index.name(a.index, r.Name), r)
		return
	}
	known := false
	for text := range names(r.Resource) {
		for _, n := range a.askedAs(text, r.Variant()) {
			known = true
			a.putVariant(kind, set, n, r)
		}
	}
	if a.addUnlisted(set, r) || known {
		a.change.Seen++
	} else {
		a.change.Ignored++
	}
}

// askedAs returns the names under which this source was asked for a variant of what
// text names: with the parameters that it is for. They are valid until the next call.
func (a *apply) askedAs(text string, v wire.Variant) []*Name {
	asked := a.w.asked[:0]
	if n := a.index.names[text]; a.takes(n) && v.Matches(nil) {
		asked = append(asked, n)
	}
	for _, n := range a.index.variants[text] {
		if _, parameters := wire.SplitParameters(n.text); a.takes(n) && v.Matches(parameters) {
			asked = append(asked, n)
		}
	}
	a.w.asked = asked
	return asked
}

// putVariant puts a resource under a name, unless the same update has another variant
// for the same parameters: of these the first counts.
func (a *apply) putVariant(kind Kind, set *Set, n *Name, r received) {
	if kind == ByName {
		n.answered(a.now)
	}
	if a.firsts != nil {
		first, taken := a.firsts[n]
		if taken && first != r.Key() {
			a.change.Ambiguous = append(a.change.Ambiguous, r.Name)
			return
		}
		a.firsts[n] = r.Key()
	}
	a.put(kind, set, n, r)
}

// addUnlisted gives new content to those who asked for the resource by an alias that
// it does not list now: some origins list only the one that they were asked for last.
// Whoever comes next by such an alias has the origin asked for an answer that has it.
func (a *apply) addUnlisted(set *Set, r received) (known bool) {
	for _, n := range slices.Clone(a.ledger.aliases[a.typ.URL][r.Name]) {
		old := set.Get(n)
		if slices.Contains(r.Aliases, n.text) || wire.PlainName(n.text) == r.Name || !old.Present() || old.Resource.Name != r.Name {
			continue
		}
		known = true
		if old.Resource.Digest != r.Digest {
			a.put(ByName, set, n, r)
			n.lapsed = true
		}
	}
	return known
}

// takes reports whether the session asked this source for a name.
func (a *apply) takes(n *Name) bool { return n != nil && n.tracked && n.source == a.w.source }

// names yields what a resource may be subscribed by (R092).
func names(r *wire.Resource) func(func(string) bool) {
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

func (a *apply) put(kind Kind, set *Set, n *Name, r received) {
	old := set.Get(n)
	// An alias may come to stand for another resource with the same bytes.
	same := old.Present() && old.Resource.Key() == r.Key()
	failed := !r.failing && a.succeed(kind, n) // then clients have to see it again
	if same && !failed && a.w.view.cfg.VersionSource.same(old.Resource, r.Resource) {
		a.keep(kind, set, old, r)
		return
	}
	e := &Entry{Name: n, Seq: a.next(), Resource: r.Resource, Leaf: r.leaf}
	e.until(r.deadline)
	e.since, e.born = e.Seq, e.Seq
	if seen, since := a.typ.Lookup(n); !failed && seen.shows(r.Resource) {
		e.since = since
		a.inherit(e, seen)
	}
	a.replace(n, old, e)
	a.yield(kind, e, old)
	if same {
		a.checkReuse(n, old.Resource, r.Resource)
	}
	if kind == ByName {
		n.lapsed = false
	}
	a.limit(kind, e)
	if old == nil {
		set.recall(e)
	}
	set.put(a.edit, e)
	a.caughtUp(kind, e)
	a.unalias(old)
	if n.text != r.Name {
		set.aliased = true
		a.ledger.alias(a.typ.URL, n, r.Name)
	}
	a.touched(kind, n)
}

// replace counts an entry in the place of an older one, and takes over what outlives
// that.
func (a *apply) replace(n *Name, old, e *Entry) {
	a.change.Changed++
	if old == nil {
		n.entries++
	}
	if old.Present() {
		e.born, e.alarm = old.born, old.alarm
	} else {
		a.change.New++
	}
}

// keep takes a resource with content that clients have: at most its version is new,
// or how long it lives, or the content had been given up.
func (a *apply) keep(kind Kind, set *Set, old *Entry, r received) {
	again, changed := *old, false
	switch {
	case old.Resource.OriginVersion == r.OriginVersion && r.deadline.IsZero() && !old.Resource.Released():
		a.change.Same++
	case old.Resource.OriginVersion == r.OriginVersion: // there was a reason to say it again
	default:
		again, changed = *old.withVersion(r.Resource), true
		again.Leaf = r.leaf
	}
	if old.Resource.Released() {
		again.Resource, changed = r.Resource, true
		a.touched(kind, old.Name)
	}
	if !r.deadline.Equal(old.Deadline()) {
		again.Resource, changed = r.Resource, true
		a.renew(kind, &again, r.deadline)
	}
	if changed || r.Unresolved() || r.DoNotCache {
		a.limit(kind, &again)
		set.put(a.edit, &again)
	}
}

// checkReuse notes that other content came under the same version (B.2).
func (a *apply) checkReuse(n *Name, old, r *wire.Resource) {
	if v := r.OriginVersion; v != "" && v == old.OriginVersion && r.Digest != old.Digest {
		a.change.Reused = append(a.change.Reused, n.text)
		a.w.from(a.head).Reused = true
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
func (a *apply) unalias(old *Entry) {
	if old == nil {
		return
	}
	r := cmp.Or(old.Resource, old.Prior)
	if r == nil || r.Name == old.Name.text {
		return
	}
	of := a.ledger.aliases[a.typ.URL]
	left := slices.DeleteFunc(of[r.Name], func(n *Name) bool { return n == old.Name })
	if len(left) == 0 {
		delete(of, r.Name)
		return
	}
	of[r.Name] = left
}

// remove records that the origin has no such resource, and, unless that has an error
// as well, nothing else to say of it.
func (a *apply) remove(kind Kind, set *Set, text string, failing bool) {
	if a.typ.Errors(kind).live == 0 || failing {
		a.gone(kind, set, text)
		return
	}
	names := a.asked(kind, wire.Variant{Name: text})
	was := make(map[*Name]Seq)
	for _, n := range names {
		if old := set.Get(n); a.succeed(kind, n) && !old.Present() {
			was[n] = old.seq()
		}
	}
	a.gone(kind, set, text)
	for _, n := range names {
		if seq, failed := was[n]; failed && set.Get(n).seq() == seq {
			a.settle(kind, set, n)
		}
		a.index.release(n)
	}
}

// gone records that the origin has no such resource. That says nothing of variants,
// which go by their constraints (R121), but if text has the parameters of one name.
func (a *apply) gone(kind Kind, set *Set, text string) {
	if kind == Wildcard {
		a.goneMember(set, a.index.names[text])
		return
	}
	// Those who subscribed by an alias held the same resource.
	for _, alias := range slices.Clone(a.ledger.aliases[a.typ.URL][text]) {
		if e := set.Get(alias); e.Present() && e.Resource.Name == text && e.Resource.Constraints == nil {
			a.absent(set, alias, e)
			a.unalias(e)
		}
	}
	for _, n := range a.askedAs(text, wire.Variant{}) {
		if e := set.Get(n); !e.Present() || n.text == text && !variesAs(e, text) {
			a.absent(set, n, e)
		}
	}
}

// goneMember is gone for a member; a nil name is none.
func (a *apply) goneMember(set *Set, n *Name) {
	if n == nil {
		return
	}
	if old := set.Get(n); old.Present() {
		a.bury(set, old)
	}
}

// variesAs reports whether an entry is a variant of what a plain name stands for: its
// removal is said by its constraints.
func variesAs(e *Entry, text string) bool {
	return wire.PlainName(text) == text && e.Present() && e.Resource.Constraints != nil
}

// removeVariant records that the origin no longer has one variant of a resource:
// those who were shown it are told, and those who were shown another are not (R121).
func (a *apply) removeVariant(kind Kind, set *Set, v wire.Variant) {
	gone := func(e *Entry) bool {
		return e.Present() && e.Resource.Name == v.Name && string(e.Resource.Constraints) == string(v.Constraints)
	}
	own := a.index.names[v.Name]
	if kind == Wildcard {
		if own != nil && gone(set.Get(own)) {
			a.bury(set, set.Get(own))
		}
		return
	}
	for _, n := range slices.Clone(a.ledger.aliases[a.typ.URL][v.Name]) {
		if e := set.Get(n); gone(e) {
			a.absent(set, n, e)
			a.unalias(e)
		}
	}
	if own != nil && gone(set.Get(own)) {
		a.absent(set, own, set.Get(own))
	}
}

// bury replaces a member by its tombstone.
func (a *apply) bury(set *Set, old *Entry) {
	e := a.removal(old)
	set.put(a.edit, e)
	if remembersRemovals(a.typ.URL) {
		set.remember(e)
	}
	a.ledger.tombs[a.typ.URL] = append(a.ledger.tombs[a.typ.URL], tomb{e.Name, e.Seq, time.Now()})
	a.change.Removed++
	a.touched(Wildcard, e.Name)
	if named := a.yielding(old.Name); named != nil && !named.Present() { // what may be older than what is gone goes on yielding
		a.prevail(named)
	}
}

// absent records that a name does not exist. To say so again on another
// connection is no change, but streams that could not be told before now can.
func (a *apply) absent(set *Set, n *Name, old *Entry) {
	n.answered(a.now)
	n.lapsed = false
	switch {
	case old == nil:
		n.entries++
		set.put(a.edit, &Entry{Name: n, Seq: a.next(), epoch: a.epoch(), yields: true})
	case old.Present():
		a.change.Removed++
		e := a.removal(old)
		e.Prior, e.yields = remains(old.Resource), old.yields
		if seen, since := a.typ.Lookup(n); e.yields && seen.Present() && a.typ.member(n).shows(seen.Resource) {
			e.since = since
			a.reveal(n, seen)
		}
		set.put(a.edit, e)
	default:
		again := *old
		again.epoch, again.Expired = a.epoch(), false
		set.put(a.edit, &again)
	}
	a.touched(ByName, n)
}

// epoch returns the connection on which the origin is speaking.
func (a *apply) epoch() uint32 { return a.head.sources[a.w.source].epoch }

func (a *apply) removal(old *Entry) *Entry {
	e := &Entry{Name: old.Name, Seq: a.next(), born: old.born, was: old.Seq, epoch: a.epoch(), Leaf: old.Leaf}
	e.since = e.Seq
	if t := resourceType(a.typ.URL); t == wire.ClusterType || t == wire.EndpointType || old.Resource.Constraints != nil {
		e.Prior = remains(old.Resource)
	}
	return e
}

// remains returns what is kept of a resource that is gone.
func remains(r *wire.Resource) *wire.Resource {
	if r.DoNotCache && !r.Released() {
		return r.Release()
	}
	return r
}

// touched wakes who watches the name.
func (a *apply) touched(kind Kind, n *Name) {
	if len(n.watchers) > 0 {
		a.w.spoken = append(a.w.spoken, n)
	}
	if kind == Wildcard {
		a.dirty = true
	}
}

// SetPhase records how much is known of the members of a type.
func (w *Writer) SetPhase(typeURL string, p Phase) {
	if w.Generation().Type(typeURL).Phase == p {
		return
	}
	a := w.begin(typeURL)
	a.typ.Phase, a.dirty = p, true
	a.typ.Restored = a.typ.Restored && p == Settled
	a.typ.Covered = a.typ.Covered && a.typ.Restored
	a.index.lastKnown = a.index.lastKnown || p == Confirmed
	w.publish(a)
}

// SetCovered records that the origin has said all that was restored of the members of a type.
func (w *Writer) SetCovered(typeURL string) {
	a := w.begin(typeURL)
	a.typ.Covered, a.dirty = true, true
	w.publish(a)
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
		if from.Heard || !from.mute {
			from.Lost = from.Since
		}
		from.Heard, from.mute = false, !from.Heard
	}
	w.Stand(from)
}

// OriginChanges records how the writer's source stands: as that of another view does, from
// which the writer takes what it writes. It has the effects of SetConnected.
func (w *Writer) Stand(as Source) {
	x := &w.view.index
	x.mu.Lock()
	var wakes []*Watch
	old := w.Source()
	turned := as.epoch != old.epoch || as.Connected != old.Connected
	if turned {
		x.unasked(w.source)
		wakes = x.all(nil)
	}
	w.stand(as, turned)
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
}

// unasked records that a source has not been asked for anything yet.
func (x *index) unasked(source int) {
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
	var q *question
	if !at.IsZero() {
		q = &question{at: at}
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
// accepted, until Forget. It is also the time to put right what an audit found (Mend).
func (w *Writer) TakeDemand() []Demand {
	for _, key := range w.takeFaulty() {
		w.mend(key)
	}
	taken, unused := w.takeDemand()
	for _, key := range unused {
		a := w.begin(key)
		w.forgetType(a)
		w.publish(a)
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
		d.Wanted, d.Again, d.Restored = x.takeMembers(d.TypeURL)
		return
	}
	d.Wanted, d.Again = len(d.Name.watchers) > 0, d.Name.again && d.Name.tracked
	d.Name.queued, d.Name.again = false, false
	if d.Wanted {
		d.Name.tracked, d.Name.lapsed = true, false
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
	a := w.begin(typeURL)
	for _, n := range names {
		if len(n.watchers) > 0 {
			kept = append(kept, n)
			continue
		}
		n.tracked, n.lapsed = false, false
		n.asked.Store(nil) // it may live on as a member
		for s := range a.heads() {
			s.forget(n)
		}
	}
	a.typ.ByName.compact()
	w.forgetType(a)
	w.publish(a)
	return kept
}

// forget drops what is held of a name.
func (a *apply) forget(n *Name) {
	a.edit.note(n)
	a.drop(&a.typ.ByName, n)
	a.succeed(ByName, n)
	a.index.release(n)
}

// drop forgets what a set holds of a name.
func (a *apply) drop(set *Set, n *Name) {
	if e := set.Get(n); e != nil {
		set.drop(a.edit, e)
		a.unalias(e)
		n.entries--
	}
}

// ForgetMembers drops the members of a type and reports whether it did: not if a
// stream wants them again.
func (w *Writer) ForgetMembers(typeURL string) bool {
	a := w.begin(typeURL)
	forget := len(a.index.wildcards) == 0
	if forget {
		for s := range a.heads() {
			s.forgetMembers()
		}
		a.index.tracked = false
		w.forgetType(a)
	}
	w.publish(a)
	return forget
}

func (a *apply) forgetMembers() {
	for e := range a.typ.Wildcard.Since(0) {
		if named := a.yielding(e.Name); named != nil && e.Present() {
			a.prevail(named)
		}
		a.edit.note(e.Name)
		e.Name.entries--
		a.index.release(e.Name)
	}
	a.forgive()
	a.typ.Wildcard = Set{last: a.head.Seq, floor: a.head.Seq}
	a.typ.Phase, a.typ.Restored, a.typ.Covered = Unknown, false, false
	a.index.lastKnown = false
	a.w.view.index.dropReports(a.index, Wildcard)
	delete(a.ledger.tombs, a.typ.URL)
}

// forgetType drops a type or collection that is idle, and the type of a collection with it: there may be as many as clients make up.
func (w *Writer) forgetType(a *apply) {
	x := &w.view.index
	for t := a.index; t != nil && x.idle(t, a.head); {
		key := t.url
		t = x.forget(t)
		for s := range a.heads() {
			if s.head.types.get(key) != nil {
				s.head.types.drop(key)
			}
			delete(s.ledger.aliases, key)
		}
		delete(w.missed, key)
	}
}

// Trim forgets removals that every wildcard stream was told of, or that are too
// old. Call it now and then.
func (w *Writer) Trim(now time.Time) {
	w.giveUp(now)
	w.trimReports(now)
	for key, tombs := range w.tombs {
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
func (t *tomb) passed(passed Seq, old time.Time) bool { return t.seq <= passed || t.at.Before(old) }

func (w *Writer) trim(key string, passed Seq, now time.Time) {
	a := w.beginOn(&w.ledger, key)
	set, tombs := &a.typ.Wildcard, w.tombs[key]
	for old := now.Add(-w.view.cfg.TombstoneAge); len(tombs) > 0 && tombs[0].passed(passed, old); tombs = tombs[1:] {
		t := tombs[0]
		if e := set.Get(t.name); e != nil && e.Seq == t.seq {
			set.drop(a.edit, e)
			set.floor = t.seq
			t.name.entries--
			a.index.release(t.name)
		}
	}
	if w.tombs[key] = tombs; len(tombs) == 0 {
		delete(w.tombs, key)
	}
	set.compact()
	w.publish(a)
}
