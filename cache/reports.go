package cache

import (
	"hash/maphash"
	"slices"
	"time"
)

// The resources that returning clients report are the only last known set of a view that begins empty (B.7). The index keeps
// the reports until the set is confirmed. Then the writer's side judges them, and decides which names no client may be sent as removed.

// AllNames stands, among the names of a report, for a set of which the client says only that it has one: a SotW client
// reports a version and no names.
const AllNames = "*"

const (
	// reportLinger is how long a report outlives its last client: clients that are sent away come back.
	reportLinger = 5 * time.Minute

	// maxLeftNames bounds the names in a view's reports whose clients have left.
	maxLeftNames = 100_000
)

// A Report is what returning clients say they hold of a set. Clients that say the same share one. Its methods may be
// called from any goroutine, and of a nil Report, which withholds nothing.
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
	large     bool    // the set lacks so much of it that the origin may have lost its state
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

// Report records what a returning client holds: names that may have been removed, of so many resources in all. For
// the wildcard set that is all that it did not ask for by name, or [AllNames]; for the set of names, those that the
// view has never received. It returns nil if nothing of it can be withheld: if too few names could be removed, and
// for the wildcard set, if the set was confirmed or restored, unless much of what the client holds is being withheld.
// The client closes it.
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

// large reports whether a set lacks so much of a report, and has so many other resources, that it looks like an
// origin that lost its state. One missing name of one that a client asked for does not.
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

// Removable returns those of names, which seem to be removed, whose removal the client may be sent.
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

// WithholdsAll reports whether the client, which reported [AllNames], may not be sent an empty set.
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
