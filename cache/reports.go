package cache

import (
	"hash/maphash"
	"slices"
	"time"
)

// A view that starts empty has no last known set except the resources that returning clients report (B.7). The index
// keeps the reports until the set is confirmed. Then the session compares them with the set, and decides which removals
// are withheld from these clients.

// AllNames is the only name in the report of a SotW client, which reports a version and no names.
const AllNames = "*"

const (
	// reportLinger is how long a report is kept after its last client has disconnected, since the client may reconnect.
	reportLinger = 5 * time.Minute

	// maxUnclaimedNames limits the number of names in all reports of a view whose clients have disconnected.
	maxUnclaimedNames = 100_000
)

// A Report is the list of resources of a set that returning clients reported. Clients with equal reports share one. Its
// methods may be called from any goroutine, and for a nil Report, which withholds nothing.
type Report struct {
	// Set at creation.
	view  *View
	typ   *indexType
	kind  Kind
	sum   reportSum
	names []string // resources that the client has and that may have been removed
	size  int      // number of all resources that the client has
	at    time.Time

	// Guarded by index.mu.
	clients   int
	closedAt  time.Time // when the last client closed it
	evaluated bool
	large     bool    // so many of its names are missing from the set that the origin may have lost its state
	delegated bool    // another view evaluates it
	delegate  *Report // the report in the other view; nil if that withholds nothing
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

// setReports has the reports about one set of a type, usually none. Guarded by index.mu.
type setReports struct {
	bySum    map[reportSum]*Report
	withheld map[string]struct{} // names whose removal is withheld
}

func (r *setReports) empty() bool { return len(r.bySum)+len(r.withheld) == 0 }

// Report records the resources that a returning client has. names are those that may have been removed, and size is the
// number of all. For the wildcard set, names are those to which the client did not subscribe by name, or [AllNames].
// For the set of names, they are those that the view has never received. The caller closes the report.
//
// It returns nil if no removal can be withheld: there are too few names, or the wildcard set was confirmed or restored
// and removals of only few of the client's resources are withheld.
func (w *Watch) Report(key string, kind Kind, names []string, size int) *Report {
	x := &w.view.index
	x.mu.Lock()
	t := x.ensureType(key)
	source := t.source
	if kind == ByName {
		source = x.name(t, names[0]).source
	}
	late := kind == Wildcard && x.hasLastKnown(t)
	if !t.mayWithhold(w.view.Generation(), kind, names, size, late) {
		x.mu.Unlock()
		return nil
	}
	r := t.ensureReport(kind, names, size)
	if r.view == nil {
		r.view, r.typ, r.evaluated, r.large = w.view, t, late, late
	} else if r.clients == 0 {
		x.unclaimedNames -= len(r.names)
	}
	r.clients++
	x.reported[t] = struct{}{}
	x.mu.Unlock()
	x.notifySources(1 << source)
	return r
}

// hasLastKnown reports whether the view has the last known wildcard set of a type, so that it needs no reports.
func (x *index) hasLastKnown(t *indexType) bool {
	source := x.sources[t.source]
	return t.lastKnown && !time.Now().Before(source.reportsUntil)
}

// mayWithhold reports whether any removal can be withheld because of a report.
func (t *indexType) mayWithhold(g *Generation, kind Kind, names []string, size int, late bool) bool {
	switch {
	case RemovalsAreData(resourceType(t.url)):
		return false
	case kind == ByName:
		return t.large(kind, len(names), size, 0)
	default:
		return !late || t.joinsWithheld(g, names, size)
	}
}

// ensureReport returns the report with the same resources, or a new one without a view if there is none.
func (t *indexType) ensureReport(kind Kind, names []string, size int) *Report {
	reports, sum := &t.reports[kind], sumOfReport(names, size)
	r := reports.bySum[sum]
	if r == nil {
		r = &Report{kind: kind, sum: sum, names: names, size: size, at: time.Now()}
		if reports.bySum == nil {
			reports.bySum = make(map[reportSum]*Report)
		}
		reports.bySum[sum] = r
	}
	return r
}

// large reports whether so many resources are missing, compared with the added ones, that the origin may have lost its
// state. A single missing resource that was subscribed to by name is not large.
func (t *indexType) large(kind Kind, missing, size, added int) bool {
	return (kind == Wildcard || missing > 1) && LargeRemoval(resourceType(t.url), missing, size, added)
}

// joinsWithheld reports whether the removals that are withheld from other clients already include so many of the
// client's resources that they are large for this client, too.
func (t *indexType) joinsWithheld(g *Generation, names []string, size int) bool {
	reports := &t.reports[Wildcard]
	if len(reports.withheld) == 0 {
		return false
	}
	if slices.Contains(names, AllNames) {
		return true
	}
	missing, added := t.compareReported(g, Wildcard, names)
	withheld := 0
	for _, name := range missing {
		if _, found := reports.withheld[name]; found {
			withheld++
		}
	}
	return t.large(Wildcard, withheld, size, added)
}

// Close ends the report of one client.
func (r *Report) Close() {
	if r == nil {
		return
	}
	x := &r.view.index
	var delegate *Report
	defer func() { delegate.Close() }() // when the index is unlocked
	x.mu.Lock()
	defer x.mu.Unlock()
	reports := &r.typ.reports[r.kind]
	if r.clients--; r.clients > 0 || reports.bySum[r.sum] != r {
		return
	}
	if r.delegated {
		delete(reports.bySum, r.sum)
		delegate = r.delegate
		return
	}
	if r.closedAt = time.Now(); x.unclaimedNames+len(r.names) > maxUnclaimedNames {
		delete(reports.bySum, r.sum)
		return
	}
	x.unclaimedNames += len(r.names)
}

// Removable returns the names whose removal may be sent to the client.
func (r *Report) Removable(names []string) []string {
	if r == nil || len(names) == 0 {
		return names
	}
	x := &r.view.index
	x.mu.Lock()
	if r.delegated {
		delegate := r.delegate
		x.mu.Unlock()
		return delegate.Removable(names)
	}
	defer x.mu.Unlock()
	reports := &r.typ.reports[r.kind]
	switch {
	case !r.evaluated && (r.kind == ByName || !x.hasLastKnown(r.typ)):
		return nil
	case !r.large:
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, withheld := reports.withheld[name]
		return withheld
	})
}

// WithholdsAll reports whether a client that reported [AllNames] must not be sent an empty set.
func (r *Report) WithholdsAll() bool {
	if r == nil {
		return false
	}
	x := &r.view.index
	x.mu.Lock()
	if r.delegated {
		delegate := r.delegate
		x.mu.Unlock()
		return delegate.WithholdsAll()
	}
	defer x.mu.Unlock()
	return r.large && len(r.typ.reports[r.kind].withheld) > 0
}

// A ReportedSet identifies a set about which there are reports.
type ReportedSet struct {
	Key  string
	Kind Kind
}

// compareReported returns the reported names that are missing from a set, and the number of resources in the set that
// were not reported. The index must be locked.
func (t *indexType) compareReported(g *Generation, kind Kind, names []string) (missing []string, added int) {
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
		_, known := removed[name]
		switch {
		case t.isPresent(set, name), set.Awaits(name):
			present++
		case !known: // otherwise the origin has removed it
			missing = append(missing, name)
		}
	}
	return missing, max(set.Count()-present, 0)
}

// isPresent reports whether a set has the resource of a name. The index must be locked.
func (t *indexType) isPresent(set *Set, name string) bool {
	n := t.names[name]
	return n != nil && set.Get(n).Present()
}
