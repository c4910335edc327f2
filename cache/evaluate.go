package cache

import (
	"maps"
	"slices"
	"time"
)

// reporting returns the reports about a set.
func (x *index) reporting(of ReportedSet) *reporting {
	if t := x.types[of.Key]; t != nil {
		return &t.reporting[of.Kind]
	}
	return new(reporting)
}

// AwaitReports makes the view accept reports until a time even if the wildcard set is confirmed before. It is for
// sources that confirm sets at once, and for those whose reports another view evaluates (DelegateReports).
func (j reportEvaluator) AwaitReports(until time.Time) {
	x := &j.w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sources[j.w.source].reportsUntil = until
}

// A reportEvaluator decides, for the source of a writer, which removals clients that reported resources are sent.
type reportEvaluator struct{ w *Writer }

// Reported returns the sets of the source that have reports, with the time of the first report that is not evaluated
// yet; zero if all are evaluated.
func (j reportEvaluator) Reported() (sets map[ReportedSet]time.Time) {
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
				if !r.evaluated && (first.IsZero() || r.at.Before(first)) {
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

// answersFor reports whether the source of the writer answers for a set. The index must be locked.
func (j reportEvaluator) answersFor(t *indexType, kind Kind) bool {
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

// EvaluateReports evaluates the reports about a set that were made up to a time and are not evaluated yet. A report is
// large if so many of its names are missing from the set that the origin may have lost its state. EvaluateReports
// returns the missing names of the large reports. Until Withhold, their removal is withheld from the clients of these
// reports. Each report is evaluated separately, so a client that reports wrong resources delays no removal for others.
// The view accepts no further reports about a wildcard set.
func (j reportEvaluator) EvaluateReports(of ReportedSet, upTo time.Time) (lacking map[string]struct{}) {
	generation := j.w.Generation()
	var judged []string
	defer func() { j.recheckCohorts(of, judged) }()
	ed := j.w.beginOn(&j.w.ledger, of.Key)
	defer j.w.publish(ed)
	t := ed.index
	t.lastKnown = t.lastKnown || of.Kind == Wildcard
	reporting := &t.reporting[of.Kind]
	lacking = make(map[string]struct{})
	for sum, r := range reporting.reports {
		if r.evaluated || r.at.After(upTo) {
			continue
		}
		missing := t.evaluate(generation, r)
		ed.recheckReported(of.Kind, r.names)
		judged = append(judged, r.names...)
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

// has reports whether a set has the resource of a name. The index must be locked.
func (t *indexType) has(set *Set, name string) bool {
	n := t.names[name]
	return n != nil && set.Get(n).Present()
}

// evaluate evaluates a report, and returns its missing names if it is large. The index must be locked.
func (t *indexType) evaluate(generation *Generation, r *Report) (lacking []string) {
	missing, added := t.compareReported(generation, r.kind, r.names)
	r.evaluated = true
	if r.large = t.large(r.kind, len(missing), r.size, added); !r.large {
		return nil
	}
	return missing
}

// dropReport removes a report.
func (x *index) dropReport(of *reporting, sum reportSum) {
	if r := of.reports[sum]; r.clients == 0 {
		x.namesLeft -= len(r.names)
	}
	delete(of.reports, sum)
}

// dropReports removes all reports about a set. The index must be locked.
func (x *index) dropReports(t *indexType, kind Kind) {
	for sum := range t.reporting[kind].reports {
		x.dropReport(&t.reporting[kind], sum)
	}
	t.reporting[kind] = reporting{}
}

// Withhold sets the names of a set whose removal is withheld from the clients with a large report.
func (j reportEvaluator) Withhold(of ReportedSet, names map[string]struct{}) {
	x := &j.w.view.index
	x.mu.Lock()
	now := x.reporting(of)
	same := now.empty() || maps.Equal(now.held, names)
	x.mu.Unlock()
	if same {
		return
	}
	ed := j.w.beginOn(&j.w.ledger, of.Key)
	were := slices.Collect(maps.Keys(now.held))
	ed.recheckReported(of.Kind, were)
	now.held = names
	j.w.publish(ed)
	j.recheckCohorts(of, were)
}

// recheckCohorts is recheckReported for the clients of all cohorts. It does not include the rest.
func (j reportEvaluator) recheckCohorts(of ReportedSet, names []string) {
	for _, s := range j.w.served[:len(j.w.served)-1] {
		if len(names) == 0 {
			return
		}
		ed := j.w.beginOn(s.ledger, of.Key)
		ed.recheckReported(of.Kind, names)
		j.w.publish(ed)
	}
}

// recheckReported wakes the clients that must check again which removals they may be sent.
func (ed *edit) recheckReported(kind Kind, names []string) {
	ed.wildcardChanged = ed.wildcardChanged || kind == Wildcard
	for _, name := range names {
		if n := ed.index.names[name]; n != nil && kind == ByName && n.watchers != nil {
			ed.changed = append(ed.changed, n)
		}
	}
}

// StillReported returns the names of all large reports about a set, including those whose clients have left recently.
func (j reportEvaluator) StillReported(of ReportedSet) map[string]struct{} {
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

// trimReports removes reports that have been without a client for reportLinger.
func (j reportEvaluator) trimReports(now time.Time) {
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

// forgetReports removes a type from index.reported if there are no reports about it and nothing is withheld.
func (x *index) forgetReports(t *indexType) {
	if t.reporting[Wildcard].empty() && t.reporting[ByName].empty() {
		delete(x.reported, t)
	}
}

// DelegateReports makes the view of another watch evaluate the reports about a set, and wakes the clients to check
// again which removals they may be sent.
func (j reportEvaluator) DelegateReports(of ReportedSet, to *Watch) {
	fresh := j.undelegated(of)
	vias := make([]*Report, len(fresh))
	for i, r := range fresh {
		vias[i] = to.Report(of.Key, of.Kind, r.names, r.size)
	}
	var names []string
	defer func() { j.recheckCohorts(of, names) }()
	ed := j.w.beginOn(&j.w.ledger, of.Key)
	defer j.w.publish(ed)
	reporting := &ed.index.reporting[of.Kind]
	for i, r := range fresh {
		if r.evaluated, r.delegated, r.delegate = true, true, vias[i]; r.clients > 0 {
			continue
		}
		defer r.delegate.Close()
		if reporting.reports[r.sum] == r {
			j.w.view.index.dropReport(reporting, r.sum)
		}
	}
	for _, r := range reporting.reports {
		ed.recheckReported(of.Kind, r.names)
		names = append(names, r.names...)
	}
}

// undelegated returns the reports about a set that are not delegated yet.
func (j reportEvaluator) undelegated(of ReportedSet) (fresh []*Report) {
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

// withholds reports whether removals from a wildcard set are withheld because of reports. A snapshot of the set is
// not complete then.
func (v *View) withholds(key string) bool {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.reporting(ReportedSet{key, Wildcard}).held) > 0
}
