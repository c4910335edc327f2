package upstream

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// withOmissions adds to a response of a SotW origin what it says by leaving out,
// for types of which it holds all that was asked for (R058, R059, R065).
//
// What the origin had listed on the stream and lists no more, it has removed. What
// its first list leaves out may be gone, or the origin has just started: that is inferred
// (B.15, C15). An empty list is no first one, and proves nothing: of names that are not there it says
// nothing. Nor does any list of names that were asked for later than the type, until they were listed.
func (v *responses) inferRemovals(s *subscription, r role, u wire.Update, now time.Time) wire.Update {
	sotw := v.byRole[r].sotw
	if sotw == nil || !wire.FullState(u.TypeURL) || r != s.wildcardRole && r != s.namesRole || hasHeartbeat(u) {
		return u
	}
	t, said := sotw.types[u.TypeURL], namesIn(u)
	if t == nil {
		return u // not asked for yet
	}
	u.Complete = true
	u.Removed, u.RemovedVariants = t.omitted(u, said)
	set := s.byName
	if r == s.wildcardRole {
		set = s.members
		set.Known()
	}
	var missing map[string]struct{}
	if first := !t.listedAny; first {
		t.listedAny = len(said) > 0
		var removed []string
		missing, removed = set.notListed(t, said)
		u.Removed = append(u.Removed, removed...)
		if set == s.byName {
			v.inferCollectionRemovals(s, t, said, now)
		}
	}
	set.Listed(missing, len(said) == 0)
	slices.Sort(u.Removed)
	return u
}

// vanished infers which members of collections are gone that the first list of a stream leaves out.
func (v *responses) inferCollectionRemovals(s *subscription, t *sotwSubscription, said map[string]struct{}, now time.Time) {
	for glob, c := range s.collections {
		if _, known := t.firstNames[glob]; !known {
			continue
		}
		missing, _ := c.notListed(t, said)
		if c.Listed(missing, len(said) == 0); len(said) > 0 {
			c.Known()
		}
		v.agenda.schedule(c, now)
	}
}

// hasHeartbeat reports whether a response is about lifetimes: such a one does not
// list what there is (R106).
func hasHeartbeat(u wire.Update) bool {
	return slices.ContainsFunc(u.Resources, func(r *wire.Resource) bool { return !r.HasBody() && len(r.Aliases) == 0 })
}

// saidBy returns all names and aliases in a response.
func namesIn(u wire.Update) map[string]struct{} {
	said := make(map[string]struct{}, len(u.Resources))
	for _, r := range u.Resources {
		said[r.Name] = struct{}{}
		for _, alias := range r.Aliases {
			said[alias] = struct{}{}
		}
	}
	return said
}

// neverListed returns what the first list of a stream leaves out of what a set holds, and of what was asked for and is not
// there, to remove which deletes nothing.
func (s *set) notListed(t *sotwSubscription, said map[string]struct{}) (missing map[string]struct{}, removed []string) {
	missing = make(map[string]struct{})
	if s.kind == cache.Wildcard {
		for e := range s.entries {
			if _, there := said[e.Resource.Name]; !there {
				missing[e.Resource.Name] = struct{}{}
			}
		}
		return missing, nil
	}
	for n := range s.sub.names {
		_, known := t.firstNames[n.String()]
		_, there := said[wire.PlainName(n.String())]
		switch {
		case there || !known || wire.Glob(n.String()): // a glob is answered under the names of its members
		case s.cached(s.view.w.Generation()).Get(n).Present():
			missing[n.String()] = struct{}{}
		case len(said) > 0:
			removed = append(removed, n.String())
		}
	}
	return missing, removed
}

// update takes a response: it is applied whole and acknowledged, or refused and
// changes nothing (B.9).
func (v *responses) handleResponse(l *adsStream, e event, now time.Time) {
	u, err := e.update, e.err
	trace := v.startTrace(u, e.at)
	if trace != nil {
		defer func(log *slog.Logger) { v.log = log }(v.log)
		v.log = withTraceIDs(v.log, trace)
		defer func() { trace.Answered(err) }()
	}
	l.warnSilentAt, v.silenceLogged = time.Time{}, false
	if l.sotw != nil && v.batchSize > 0 {
		v.batchAt = now // names may have waited for this
	}
	defer func() { v.session.counters.countResponse(u.TypeURL, err != nil) }()
	if err != nil {
		v.log.Warn("origin response rejected", slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce), slog.Any("err", err))
		if u.TypeURL == "" || u.Nonce == "" {
			l.cancel(err) // nothing to refuse it by
			return
		}
		l.ackOrNack(v.node, u, err)
		return
	}
	if err = oversizeError(u); err != nil {
		v.log.Warn("origin resources rejected", slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce), slog.Any("err", err))
	}
	if !l.responded {
		v.failures().responseReceived()
	}
	l.responded, l.needFull = true, false
	l.retry.Reset()
	if v.sourceTarget != v.target {
		v.noteTargetChange()
	}
	if s := v.subs[u.TypeURL]; s != nil {
		v.w.SetCause(CauseOf(trace, e.at))
		v.applyResponse(s, l.role, u, now)
		v.w.SetCause(cache.Cause{})
	}
	v.noteServer(u.ControlPlane)
	v.comparison.lastResponse = now
	if u.Nonce != "" { // without it, an ACK would be a request
		l.ackOrNack(v.node, u, err)
	}
}

// refusal returns why not all of a response was taken: it names the first of the resources that are larger
// than allowed, and tells how many there are.
func oversizeError(u wire.Update) error {
	var first *wire.Resource
	n := 0
	for r := range u.Refusals() {
		first, n = cmp.Or(first, r), n+1
	}
	switch n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("resource %.256q is not taken, all others are: %s (TENDER_MAX_RESOURCE_BYTES)", first.Name, first.Refusal.Message)
	default:
		return fmt.Errorf("resource %.256q and %d more are not taken, all others are: %s (TENDER_MAX_RESOURCE_BYTES)", first.Name, n-1, first.Refusal.Message)
	}
}

func (v *responses) applyResponse(s *subscription, r role, u wire.Update, now time.Time) {
	u = v.inferRemovals(s, r, u, now)
	if s.sweepsOn(r) {
		s.members.Answered(u, now)
	}
	var c cache.Change
	switch r {
	case s.wildcardRole:
		c = v.applyToSet(s.members, u, now)
	case s.namesRole:
		c = v.applyToSet(s.byName, v.applyCollections(s, u, now), now)
	default:
		return // subscribed to no longer (R096)
	}
	if v.ignoresVersions && c.Same > 0 && r == s.wildcardRole {
		v.comparison.dueAt, v.comparison.unfinished = time.Time{}, false // it resends all; of names, it also answers for those that it was asked for
	}
	v.warnMisbehavior(u, c)
	v.log.LogAttrs(context.Background(), slog.LevelDebug, "response applied", // allocates nothing unless it is logged
		slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce),
		slog.Int("changed", c.Changed), slog.Int("removed", c.Removed), slog.Int("ignored", c.Ignored))
}

// warn tells what an origin should not have done.
func (v *responses) warnMisbehavior(u wire.Update, c cache.Change) {
	if len(c.Reused) > 0 && !v.reuseLogged && !v.cfg.ContentVersions {
		v.reuseLogged = true
		v.log.Warn("origin reused a version for different content: its versions are ignored from now on; "+
			"set TENDER_DELTA_VERSIONS=content to derive versions from content",
			slog.String("type_url", u.TypeURL), slog.String("name", c.Reused[0]))
	}
	if len(c.Ambiguous) > 0 {
		v.log.Warn("origin sent several variants of a resource for the same parameters: the first is used",
			slog.String("type_url", u.TypeURL), slog.String("name", c.Ambiguous[0]), slog.String("nonce", u.Nonce))
	}
}

// take applies what an origin states of a set, but for the removals that must wait.
func (v *responses) applyToSet(s *set, u wire.Update, now time.Time) cache.Change {
	c, ignores := s.Take(u, now)
	if s.Confirmed(now) {
		v.reports.Stated(cache.ReportedSet{Key: s.key, Kind: s.kind}, u.RemovedNames())
	}
	if ignores {
		v.noteVersionsIgnored(now)
	}
	return c
}

// applyCollections gives each collection its part of an update, and returns the
// update without the names of the globs themselves.
func (v *responses) applyCollections(s *subscription, u wire.Update, now time.Time) wire.Update {
	if len(s.collections) == 0 {
		return u
	}
	named := u
	named.Removed = slices.DeleteFunc(slices.Clone(u.Removed), func(name string) bool { return s.collections[name] != nil })
	for key, p := range SplitByCollection(named, s.collectionOf) {
		_, glob, _ := cache.SplitCollection(key)
		of := s.collections[glob]
		v.applyToSet(of.set, *p, now)
		v.agenda.schedule(of, now)
	}
	for name := range u.RemovedNames() {
		if c := s.collections[name]; c != nil {
			v.removeMembers(c, u, now)
		}
	}
	return named
}

// emptied takes the origin's word that a glob matches nothing: then nothing more is to
// be waited for.
func (v *responses) removeMembers(c *collection, u wire.Update, now time.Time) {
	u = wire.Update{TypeURL: c.key, SystemVersion: u.SystemVersion, ControlPlane: u.ControlPlane, Removed: slices.Collect(c.Names())}
	v.applyToSet(c.set, u, now)
	v.agenda.schedule(c, now)
	v.setPhase(c.key, cache.Confirmed, now)
}

// learned publishes what the silence of the origin says about a wildcard set or a collection.
func (v *responses) updatePhase(s *set, now time.Time) (next time.Time) {
	if !v.byRole[s.role()].open {
		return time.Time{} // the silence of a lost origin completes nothing
	}
	t := v.w.Generation().Type(s.key)
	phase, next := s.Progress.Phase(now, t.Phase, v.cfg.ColdWait)
	if phase != t.Phase {
		v.setPhase(s.key, phase, now)
		_, glob, _ := cache.SplitCollection(s.key)
		v.log.Debug("phase of a wildcard set changed", slog.String("type_url", s.TypeURL), slog.String("name", cmp.Or(glob, wire.Wildcard)),
			slog.String("phase", phase.String()))
	}
	if s.Covered() && t.Restored && !t.Covered && phase == cache.Settled && t.Wildcard.Count() > 0 && s.Progress.Settled(now) {
		v.w.SetCovered(s.key)
	}
	return next
}

// setPhase publishes how much is known of a set.
func (v *responses) setPhase(key string, p cache.Phase, now time.Time) {
	if p == cache.Confirmed {
		v.reports.Confirm(cache.ReportedSet{Key: key, Kind: cache.Wildcard}, now, now)
	}
	v.w.SetPhase(key, p)
}

// look does what it is time for with a collection, and returns when to look again if
// nothing happens.
func (v *responses) checkCollection(c *collection, now time.Time) (next time.Time) {
	if v.expireCollection(c, now) {
		return time.Time{}
	}
	return reconcile.Earlier(reconcile.Earlier(v.updatePhase(c.set, now), v.queryMissing(c.set, now)), c.lingerUntil)
}

// newReports returns what decides about what returning clients report.
func (v *responses) newReports(cfg reconcile.Config) *reconcile.Reports {
	return reconcile.NewReports(v.w, reconcile.ReportsConfig{
		Config: cfg, Quiet: min(v.cfg.ColdWait, reconcile.ConfirmMax), Again: v.resync,
		Complete: func(of cache.ReportedSet) (at, asked time.Time) {
			s := v.find(of)
			if s == nil {
				return time.Time{}, time.Time{}
			}
			if at, ok := s.Complete(); ok {
				return at, v.byRole[s.role()].openedAt
			}
			return time.Time{}, time.Time{}
		},
	})
}

// Writer implements Controlled.
func (v *responses) Writer() *cache.Writer { return v.w }

// Operate implements Controlled.
func (v *responses) Operate(c reconcile.Command) []reconcile.Hold {
	now := time.Now()
	return append(v.group.Operate(c, now), v.reports.Operate(c, now)...)
}

// Keep implements Controlled.
func (v *responses) Keep(discarded []reconcile.Hold) {
	for _, hold := range discarded {
		for _, name := range hold.Names {
			s, kept := v.sub(hold.TypeURL), false
			for _, of := range []*set{s.members, s.byName} {
				kept = of.keepIfPresent(name) || kept
			}
			if !kept { // clients may report it
				v.reports.Keep(hold.TypeURL, name)
			}
			if glob, is := wire.GlobOf(name); is {
				key := cache.Collection(hold.TypeURL, glob)
				v.keptNames[key] = append(v.keptNames[key], name)
			}
		}
	}
}

// trace begins the trace of a response; nil if nobody looks.
func (v *responses) startTrace(u wire.Update, at time.Time) Trace {
	if v.cfg.Trace == nil {
		return nil
	}
	return v.cfg.Trace(Received{
		Origin: v.cfg.Targets[v.target], At: at, TypeURL: u.TypeURL, Version: u.SystemVersion, Nonce: u.Nonce,
		Resources: len(u.Resources), Removed: len(u.Removed) + len(u.RemovedVariants),
	})
}
