package cache

import (
	"maps"
	"slices"
	"time"
)

// reportsAbout returns the reports about a set.
func (x *index) reportsAbout(set ReportedSet) *setReports {
	if t := x.types[set.Key]; t != nil {
		return &t.reports[set.Kind]
	}
	return new(setReports)
}

// AwaitReports makes the view accept reports until a time, even if the wildcard set is confirmed earlier. It is called
// for sources that confirm sets at once, and for sources whose reports another view evaluates (DelegateReports).
func (w *Writer) AwaitReports(until time.Time) {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sources[w.source].reportsUntil = until
}

// Reported returns the sets of the source about which there are reports, with the time of the first report that is not
// evaluated yet; zero if all are evaluated.
func (w *Writer) Reported() (sets map[ReportedSet]time.Time) {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for t := range x.reported {
		for kind, reports := range t.reports {
			if reports.empty() || !w.ownsReported(t, Kind(kind)) {
				continue
			}
			var first time.Time
			for _, r := range reports.bySum {
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

// ownsReported reports whether the reported set belongs to the source of the writer. The index must be locked.
func (w *Writer) ownsReported(t *indexType, kind Kind) bool {
	if kind == Wildcard {
		return t.source == w.source
	}
	for _, r := range t.reports[kind].bySum {
		if n := t.names[r.names[0]]; n != nil {
			return n.source == w.source
		}
	}
	return t.source == w.source
}

// EvaluateReports evaluates the reports about a set that were made up to a time and are not evaluated yet. A report is
// large if so many of its names are missing from the set that the origin may have lost its state. EvaluateReports
// returns the missing names of the large reports. Until Withhold, their removal is withheld from the clients of these
// reports. Each report is evaluated separately, so that a client that reports wrong resources delays no removal for
// others. The view accepts no further reports about a wildcard set.
func (w *Writer) EvaluateReports(set ReportedSet, upTo time.Time) (missing map[string]struct{}) {
	generation := w.Generation()
	var evaluated []string
	defer func() { w.recheckCohorts(set, evaluated) }()
	ed := w.begin(set.Key)
	defer w.publish(ed)
	t := ed.index
	t.lastKnown = t.lastKnown || set.Kind == Wildcard
	reports := &t.reports[set.Kind]
	missing = make(map[string]struct{})
	for sum, r := range reports.bySum {
		if r.evaluated || r.at.After(upTo) {
			continue
		}
		names := t.evaluate(generation, r)
		ed.recheckReported(set.Kind, r.names)
		evaluated = append(evaluated, r.names...)
		for _, name := range names {
			missing[name] = struct{}{}
		}
		if !r.large {
			w.view.index.dropReport(reports, sum)
		}
	}
	if len(missing) > 0 {
		withheld := maps.Clone(missing)
		maps.Copy(withheld, reports.withheld)
		reports.withheld = withheld
	}
	w.view.index.trimReported(t)
	return missing
}

// evaluate evaluates a report, and returns its missing names if it is large. The index must be locked.
func (t *indexType) evaluate(generation *Generation, r *Report) (missing []string) {
	missing, added := t.compareReported(generation, r.kind, r.names)
	r.evaluated = true
	if r.large = t.large(r.kind, len(missing), r.size, added); !r.large {
		return nil
	}
	return missing
}

// dropReport removes a report.
func (x *index) dropReport(reports *setReports, sum reportSum) {
	if r := reports.bySum[sum]; r.clients == 0 {
		x.unclaimedNames -= len(r.names)
	}
	delete(reports.bySum, sum)
}

// dropReports removes all reports about a set. The index must be locked.
func (x *index) dropReports(t *indexType, kind Kind) {
	for sum := range t.reports[kind].bySum {
		x.dropReport(&t.reports[kind], sum)
	}
	t.reports[kind] = setReports{}
}

// Withhold sets the names of a set whose removal is withheld from the clients with a large report.
func (w *Writer) Withhold(set ReportedSet, names map[string]struct{}) {
	x := &w.view.index
	x.mu.Lock()
	reports := x.reportsAbout(set)
	same := reports.empty() || maps.Equal(reports.withheld, names)
	x.mu.Unlock()
	if same {
		return
	}
	ed := w.begin(set.Key)
	released := slices.Collect(maps.Keys(reports.withheld))
	ed.recheckReported(set.Kind, released)
	reports.withheld = names
	w.publish(ed)
	w.recheckCohorts(set, released)
}

// recheckCohorts is recheckReported for the clients of all cohorts. It does not include the rest.
func (w *Writer) recheckCohorts(set ReportedSet, names []string) {
	for _, b := range w.cohorts() {
		if len(names) == 0 {
			return
		}
		ed := w.beginOn(b, set.Key)
		ed.recheckReported(set.Kind, names)
		w.publish(ed)
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

// StillReported returns the names of all large reports about a set, including those whose clients have disconnected
// recently.
func (w *Writer) StillReported(set ReportedSet) map[string]struct{} {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	names := make(map[string]struct{})
	for _, r := range x.reportsAbout(set).bySum {
		for _, name := range r.names {
			if r.large {
				names[name] = struct{}{}
			}
		}
	}
	return names
}

// trimReports removes reports that have been without a client for reportLinger.
func (w *Writer) trimReports(now time.Time) {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for t := range x.reported {
		for kind := range t.reports {
			reports := &t.reports[kind]
			for sum, r := range reports.bySum {
				if r.clients == 0 && now.Sub(r.closedAt) >= reportLinger {
					x.dropReport(reports, sum)
				}
			}
		}
		x.trimReported(t)
	}
}

// trimReported removes a type from index.reported if there are no reports about it and nothing is withheld.
func (x *index) trimReported(t *indexType) {
	if t.reports[Wildcard].empty() && t.reports[ByName].empty() {
		delete(x.reported, t)
	}
}

// DelegateReports makes the view of another watch evaluate the reports about a set, and wakes the clients to check
// again which removals they may be sent.
func (w *Writer) DelegateReports(set ReportedSet, to *Watch) {
	fresh := w.undelegated(set)
	delegates := make([]*Report, len(fresh))
	for i, r := range fresh {
		delegates[i] = to.Report(set.Key, set.Kind, r.names, r.size)
	}
	var names []string
	defer func() { w.recheckCohorts(set, names) }()
	ed := w.begin(set.Key)
	defer w.publish(ed)
	reports := &ed.index.reports[set.Kind]
	for i, r := range fresh {
		if r.evaluated, r.delegated, r.delegate = true, true, delegates[i]; r.clients > 0 {
			continue
		}
		defer r.delegate.Close()
		if reports.bySum[r.sum] == r {
			w.view.index.dropReport(reports, r.sum)
		}
	}
	for _, r := range reports.bySum {
		ed.recheckReported(set.Kind, r.names)
		names = append(names, r.names...)
	}
}

// undelegated returns the reports about a set that are not delegated yet.
func (w *Writer) undelegated(set ReportedSet) (fresh []*Report) {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.reportsAbout(set).bySum {
		if !r.delegated {
			fresh = append(fresh, r)
		}
	}
	return fresh
}

// withholds reports whether removals from a wildcard set are withheld because of reports, so that a snapshot of the set
// is not complete.
func (v *View) withholds(key string) bool {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.reportsAbout(ReportedSet{key, Wildcard}).withheld) > 0
}
