package cache

import (
	"hash/maphash"
	"maps"
	"slices"
	"time"
)

// What returning clients say they hold is the only last known set of a view that begins with nothing (B.7). The index keeps
// it until the set is confirmed. The writer's side judges it then, and says which names no client may be told are gone.

// AllNames stands, among the names of a report, for a set of which the client says only that it has one: a SotW client
// reports a version and no names.
const AllNames = "*"

const (
	// reportLinger is how long a report outlives its last client: clients that are sent away come back.
	reportLinger = 5 * time.Minute

	// maxLeftNames bounds the names in a view's reports whose clients have left.
	maxLeftNames = 100_000
)

// A Report is what returning clients say they hold of a set. Clients that say the same share one. Its methods may be called
// from any goroutine, and of a nil Report, which withholds nothing.
type Report struct {
	// Immutable.
	view  *View
	typ   *indexType
	kind  Kind
	sum   reportSum
	names []string // that may be gone
	size  int      // of all that the client holds
	at    time.Time

	// Guarded by index.mu.
	clients   int
	left      time.Time // when the last of them did
	judged    bool
	large     bool    // the set lacks so much of it that the origin may not have meant that
	delegated bool    // another view decides
	delegate  *Report // there; nil if that withholds nothing of it
}

// reportSum identifies a report by its content.
type reportSum struct {
	lo, hi uint64
	size   int
}

var reportSeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func sumOfReport(names []string, size int) (sum reportSum) {
	for _, name := range names {
		sum.lo += maphash.String(reportSeeds[0], name)
		sum.hi += maphash.String(reportSeeds[1], name)
	}
	sum.size = size
	return sum
}

// reporting is what is reported of one set of a type: nothing, nearly always. It is guarded by index.mu.
type reporting struct {
	reports map[reportSum]*Report
	held    map[string]struct{} // names that clients may not be told are gone
}

func (of *reporting) empty() bool { return len(of.reports)+len(of.held) == 0 }

// reporting returns what is reported of a set.
func (x *index) reporting(of ReportedSet) *reporting {
	if t := x.types[of.Key]; t != nil {
		return &t.reporting[of.Kind]
	}
	return new(reporting)
}

// Report takes what a returning client says it holds: names that may be gone, of so many resources in all. For members
// that is all that it did not ask for by name, or [AllNames]; for the named, those that the view has never heard of.
// It returns nil if nothing of it can be withheld: if too few names could be gone, and for members, if the set was confirmed
// or restored, unless much of what the client holds is being withheld. The client closes it.
func (w *Watch) Report(key string, kind Kind, names []string, size int) *Report {
	x := &w.view.index
	x.mu.Lock()
	t := x.typ(key)
	from := t.source
	if kind == ByName {
		from = x.name(t, names[0]).source
	}
	late := kind == Wildcard && x.knows(t)
	if !t.counts(w.view.Generation(), kind, names, size, late) {
		x.mu.Unlock()
		return nil
	}
	r := t.report(kind, names, size)
	if r.view == nil {
		r.view, r.typ, r.judged, r.large = w.view, t, late, late
	} else if r.clients == 0 {
		x.namesLeft -= len(r.names)
	}
	r.clients++
	x.reported[t] = struct{}{}
	x.mu.Unlock()
	x.poke(1 << from)
	return r
}

// knows reports whether the view itself has the last known set of a type's members.
func (x *index) knows(t *indexType) bool {
	from := x.sources[t.source]
	return t.lastKnown && !time.Now().Before(from.reportsUntil)
}

// AwaitReports has what clients report count until a time, although the source knows all members at once, or another view decides
// (DelegateReports).
func (j reportJudge) AwaitReports(until time.Time) {
	x := &j.w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sources[j.w.source].reportsUntil = until
}

// counts reports whether anything of a report can be withheld.
func (t *indexType) counts(g *Generation, kind Kind, names []string, size int, late bool) bool {
	switch {
	case RemovalsAreData(resourceType(t.url)):
		return false
	case kind == ByName:
		return t.large(kind, len(names), size, 0)
	default:
		return !late || t.joins(g, names, size)
	}
}

// report returns the report of clients that say the same, a new one of no view if there is none.
func (t *indexType) report(kind Kind, names []string, size int) *Report {
	of, sum := &t.reporting[kind], sumOfReport(names, size)
	r := of.reports[sum]
	if r == nil {
		r = &Report{kind: kind, sum: sum, names: names, size: size, at: time.Now()}
		if of.reports == nil {
			of.reports = make(map[reportSum]*Report)
		}
		of.reports[sum] = r
	}
	return r
}

// large reports whether it looks like an origin that lost its state that a set lacks so much of a report, and has so much beside.
// That one name is gone, of one that a client asked for, does not.
func (t *indexType) large(kind Kind, missing, size, added int) bool {
	return (kind == Wildcard || missing > 1) && LargeRemoval(resourceType(t.url), missing, size, added)
}

// joins reports whether much of what a client holds is being withheld already.
func (t *indexType) joins(g *Generation, names []string, size int) bool {
	of := &t.reporting[Wildcard]
	if len(of.held) == 0 {
		return false
	}
	if slices.Contains(names, AllNames) {
		return true
	}
	missing, added := t.lacks(g, Wildcard, names)
	held := 0
	for _, name := range missing {
		if _, is := of.held[name]; is {
			held++
		}
	}
	return t.large(Wildcard, held, size, added)
}

// Close ends the report of one client.
func (r *Report) Close() {
	if r == nil {
		return
	}
	x := &r.view.index
	var via *Report
	defer func() { via.Close() }() // when the index is unlocked
	x.mu.Lock()
	defer x.mu.Unlock()
	of := &r.typ.reporting[r.kind]
	if r.clients--; r.clients > 0 || of.reports[r.sum] != r {
		return
	}
	if r.delegated {
		delete(of.reports, r.sum)
		via = r.delegate
		return
	}
	if r.left = time.Now(); x.namesLeft+len(r.names) > maxLeftNames {
		delete(of.reports, r.sum)
		return
	}
	x.namesLeft += len(r.names)
}

// Removable returns those of names, which seem to be gone, of which the client may be told so.
func (r *Report) Removable(names []string) []string {
	if r == nil || len(names) == 0 {
		return names
	}
	x := &r.view.index
	x.mu.Lock()
	if r.delegated {
		via := r.delegate
		x.mu.Unlock()
		return via.Removable(names)
	}
	defer x.mu.Unlock()
	of := &r.typ.reporting[r.kind]
	switch {
	case !r.judged && (r.kind == ByName || !x.knows(r.typ)):
		return nil
	case !r.large:
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, held := of.held[name]; return held })
}

// WithholdsAll reports whether the client, which reported [AllNames], may not be told that there is nothing.
func (r *Report) WithholdsAll() bool {
	if r == nil {
		return false
	}
	x := &r.view.index
	x.mu.Lock()
	if r.delegated {
		via := r.delegate
		x.mu.Unlock()
		return via.WithholdsAll()
	}
	defer x.mu.Unlock()
	return r.large && len(r.typ.reporting[r.kind].held) > 0
}

// A reportJudge decides, for the source of a writer, what clients that reported resources may be told.
type reportJudge struct{ w *Writer }

// A ReportedSet is a set of which something was reported.
type ReportedSet struct {
	Key  string
	Kind Kind
}

// Reported returns the sets of the writer's source of which something was reported, and when the first report was made that
// was not judged yet; zero if there is none.
func (j reportJudge) Reported() (sets map[ReportedSet]time.Time) {
	x := &j.w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for t := range x.reported {
		for kind, of := range t.reporting {
			if of.empty() || !j.answersFor(t, Kind(kind)) {
				continue
			}
			var first time.Time
			for _, r := range of.reports {
				if !r.judged && (first.IsZero() || r.at.Before(first)) {
					first = r.at
				}
			}
			if sets == nil {
				sets = make(map[ReportedSet]time.Time)
			}
			sets[ReportedSet{t.url, Kind(kind)}] = first
		}
	}
	return sets
}

// answersFor reports whether the writer's source answers for what is reported of a set. The index must be locked.
func (j reportJudge) answersFor(t *indexType, kind Kind) bool {
	if kind == Wildcard {
		return t.source == j.w.source
	}
	for _, r := range t.reporting[kind].reports {
		if n := t.names[r.names[0]]; n != nil {
			return n.source == j.w.source
		}
	}
	return t.source == j.w.source
}

// Judge decides of the reports of a set that were made up to a time, and not judged yet, whether the set lacks so much of
// one that the origin may not have meant that. It returns the names that are lacking of those, none of which a client that
// reported so is told is gone, until Withhold says otherwise. Each report is judged by itself: a client that makes up what it
// holds delays nothing for others. From now on the members are known: what is reported of them later counts no more.
func (j reportJudge) Judge(of ReportedSet, upTo time.Time) (lacking map[string]struct{}) {
	generation := j.w.Generation()
	ed := j.w.beginOn(&j.w.ledger, of.Key)
	defer j.w.publish(ed)
	t := ed.index
	t.lastKnown = t.lastKnown || of.Kind == Wildcard
	reporting := &t.reporting[of.Kind]
	lacking = make(map[string]struct{})
	for sum, r := range reporting.reports {
		if r.judged || r.at.After(upTo) {
			continue
		}
		missing := t.judge(generation, r)
		ed.recheckReported(of.Kind, r.names)
		for _, name := range missing {
			lacking[name] = struct{}{}
		}
		if !r.large {
			j.w.view.index.dropReport(reporting, sum)
		}
	}
	if len(lacking) > 0 {
		held := maps.Clone(lacking)
		maps.Copy(held, reporting.held)
		reporting.held = held
	}
	j.w.view.index.forgetReports(t)
	return lacking
}

// has reports whether a set has a resource of a name. The index must be locked.
func (t *indexType) has(set *Set, name string) bool {
	n := t.names[name]
	return n != nil && set.Get(n).Present()
}

// judge decides of a report, and returns what is lacking of it if that is large. The index must be locked.
func (t *indexType) judge(generation *Generation, r *Report) (lacking []string) {
	missing, added := t.lacks(generation, r.kind, r.names)
	r.judged = true
	if r.large = t.large(r.kind, len(missing), r.size, added); !r.large {
		return nil
	}
	return missing
}

// dropReport forgets a report.
func (x *index) dropReport(of *reporting, sum reportSum) {
	if r := of.reports[sum]; r.clients == 0 {
		x.namesLeft -= len(r.names)
	}
	delete(of.reports, sum)
}

// dropReports forgets all reports of a set. The index must be locked.
func (x *index) dropReports(t *indexType, kind Kind) {
	for sum := range t.reporting[kind].reports {
		x.dropReport(&t.reporting[kind], sum)
	}
	t.reporting[kind] = reporting{}
}

// lacks returns what a set lacks of names that were reported, and how many resources it has beside. The index must be locked.
func (t *indexType) lacks(g *Generation, kind Kind, names []string) (missing []string, added int) {
	typ := g.Type(t.url)
	if kind == ByName {
		for _, name := range names {
			if n := t.names[name]; n == nil {
				missing = append(missing, name)
			} else if e, _ := typ.Lookup(n); e == nil {
				missing = append(missing, name)
			}
		}
		return missing, 0
	}
	set, present := &typ.Wildcard, 0
	if slices.Contains(names, AllNames) {
		if set.Count() == 0 && set.LastRemoval() == 0 {
			missing = names
		}
		return missing, 0
	}
	removed := make(map[string]struct{})
	for _, name := range set.RecentRemovals() {
		removed[name] = struct{}{}
	}
	for _, name := range names {
		_, gone := removed[name]
		switch {
		case t.has(set, name):
			present++
		case !gone: // else the origin has said so
			missing = append(missing, name)
		}
	}
	return missing, max(set.Count()-present, 0)
}

// Withhold says which names of a set, of those that clients have reported, none that reported much of them is told are gone.
func (j reportJudge) Withhold(of ReportedSet, names map[string]struct{}) {
	x := &j.w.view.index
	x.mu.Lock()
	now := x.reporting(of)
	same := now.empty() || maps.Equal(now.held, names)
	x.mu.Unlock()
	if same {
		return
	}
	ed := j.w.beginOn(&j.w.ledger, of.Key)
	ed.recheckReported(of.Kind, slices.Collect(maps.Keys(now.held)))
	now.held = names
	j.w.publish(ed)
}

// recheckReported wakes the clients that are to look again at what may be gone.
func (ed *edit) recheckReported(kind Kind, names []string) {
	ed.dirty = ed.dirty || kind == Wildcard
	for _, name := range names {
		if n := ed.index.names[name]; n != nil && kind == ByName && len(n.watchers) > 0 {
			ed.w.changed = append(ed.w.changed, n)
		}
	}
}

// StillReported returns the names of a set that are in reports of which much is lacking, with those whose clients have just
// left.
func (j reportJudge) StillReported(of ReportedSet) map[string]struct{} {
	x := &j.w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	names := make(map[string]struct{})
	for _, r := range x.reporting(of).reports {
		for _, name := range r.names {
			if r.large {
				names[name] = struct{}{}
			}
		}
	}
	return names
}

// trimReports forgets the reports of clients that have left for good.
func (j reportJudge) trimReports(now time.Time) {
	x := &j.w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for t := range x.reported {
		for kind := range t.reporting {
			of := &t.reporting[kind]
			for sum, r := range of.reports {
				if r.clients == 0 && now.Sub(r.left) >= reportLinger {
					x.dropReport(of, sum)
				}
			}
		}
		x.forgetReports(t)
	}
}

// forgetReports forgets a type of which nothing is reported nor withheld.
func (x *index) forgetReports(t *indexType) {
	if t.reporting[Wildcard].empty() && t.reporting[ByName].empty() {
		delete(x.reported, t)
	}
}

// DelegateReports has the view of another watch decide about what clients report of a set, and the clients look again what they may
// be told.
func (j reportJudge) DelegateReports(of ReportedSet, to *Watch) {
	fresh := j.undelegated(of)
	vias := make([]*Report, len(fresh))
	for i, r := range fresh {
		vias[i] = to.Report(of.Key, of.Kind, r.names, r.size)
	}
	ed := j.w.beginOn(&j.w.ledger, of.Key)
	defer j.w.publish(ed)
	reporting := &ed.index.reporting[of.Kind]
	for i, r := range fresh {
		if r.judged, r.delegated, r.delegate = true, true, vias[i]; r.clients > 0 {
			continue
		}
		defer r.delegate.Close()
		if reporting.reports[r.sum] == r {
			j.w.view.index.dropReport(reporting, r.sum)
		}
	}
	for _, r := range reporting.reports {
		ed.recheckReported(of.Kind, r.names)
	}
}

// undelegated returns the reports of a set that were not passed yet.
func (j reportJudge) undelegated(of ReportedSet) (fresh []*Report) {
	x := &j.w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.reporting(of).reports {
		if !r.delegated {
			fresh = append(fresh, r)
		}
	}
	return fresh
}

// withholds reports whether removals from a set, which clients have reported, are being withheld: to another process, the set
// is not complete then.
func (v *View) withholds(key string) bool {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.reporting(ReportedSet{key, Wildcard}).held) > 0
}
