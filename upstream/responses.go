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
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream/reconcile"
)

// inferRemovals adds removals to a response of a SotW origin, for types whose responses list all subscribed resources
// (R058, R059, R065).
//
// A resource that the previous response on the stream listed, and this one omits, was removed. A resource that the
// first response omits may have been removed, or the origin has just started; package reconcile decides (B.15, C15). An
// empty response does not count as the first one. If a response omits a name that was added after the first request, it
// proves nothing, until another response has listed that name.
func (v *responses) inferRemovals(s *subscription, r role, u wire.Update, now time.Time) wire.Update {
	sotw := s.stream(r).sotw
	if sotw == nil || !wire.FullState(u.TypeURL) || r != s.wildcardRole && r != s.namesRole || hasHeartbeat(u) {
		return u
	}
	t, mentioned := sotw.types[u.TypeURL], namesIn(u)
	if t == nil {
		return u // no request was sent for it
	}
	u.Complete = true
	u.Removed, u.RemovedVariants = t.omitted(u, mentioned)
	set := s.byName
	if r == s.wildcardRole {
		set = s.members
		set.SkipQuery()
	}
	var missing map[string]struct{}
	if first := !t.listedAny; first {
		t.listedAny = len(mentioned) > 0
		var removed []string
		missing, removed = set.notListed(t, mentioned)
		u.Removed = append(u.Removed, removed...)
		if set == s.byName {
			v.inferCollectionRemovals(s, t, mentioned, now)
		}
	}
	set.RecordList(mentioned, missing, now)
	slices.Sort(u.Removed)
	return u
}

// inferCollectionRemovals passes members of collections to package reconcile that the first response of a stream omits.
func (v *responses) inferCollectionRemovals(
	s *subscription, t *sotwSubscription, mentioned map[string]struct{}, now time.Time,
) {
	for glob, c := range s.collections {
		if _, known := t.firstNames[glob]; !known {
			continue
		}
		missing, _ := c.notListed(t, mentioned)
		if c.RecordList(mentioned, missing, now); len(mentioned) > 0 {
			c.SkipQuery()
		}
		c.check.wake()
	}
}

// hasHeartbeat reports whether a response contains a TTL heartbeat: such a response does not list all resources (R106).
func hasHeartbeat(u wire.Update) bool {
	return slices.ContainsFunc(u.Resources, func(r *wire.Resource) bool { return !r.HasBody() && len(r.Aliases) == 0 })
}

// namesIn returns the names and aliases in a response.
func namesIn(u wire.Update) map[string]struct{} {
	mentioned := make(map[string]struct{}, len(u.Resources))
	for _, r := range u.Resources {
		mentioned[r.Name] = struct{}{}
		for _, alias := range r.Aliases {
			mentioned[alias] = struct{}{}
		}
	}
	return mentioned
}

// notListed returns the names that the first response of a stream omits: missing are resources of the set, and removed
// are subscribed names without a cached resource.
func (s *set) notListed(
	t *sotwSubscription, mentioned map[string]struct{},
) (missing map[string]struct{}, removed []string) {
	missing = make(map[string]struct{})
	if s.kind == cache.Wildcard {
		for _, r := range s.entries {
			if _, ok := mentioned[r.Name]; !ok {
				missing[r.Name] = struct{}{}
			}
		}
		return missing, nil
	}
	for n := range s.sub.names {
		_, first := t.firstNames[n.String()]
		_, listed := mentioned[wire.PlainName(n.String())]
		switch {
		case listed || !first || wire.Glob(n.String()): // a response to a glob lists the names of its members
		case s.Get(n.String()) != nil:
			missing[n.String()] = struct{}{}
		case len(mentioned) > 0:
			removed = append(removed, n.String())
		}
	}
	return missing, removed
}

// endSilence logs a response after the silence of the origin was logged.
func (v *responses) endSilence() {
	if v.silenceLogged {
		v.log.Info("origin sends responses again")
		v.silenceLogged = false
	}
}

// handleResponse applies a response and sends an ACK, or sends a NACK and changes nothing (B.9). If resources exceed
// the size limit, it applies the others and sends a NACK.
func (v *responses) handleResponse(l *adsStream, e event, now time.Time) {
	u, err := e.update, e.err
	trace := v.startTrace(e)
	if trace != nil {
		defer func(log *slog.Logger) { v.log = log }(v.log)
		v.log = withTraceIDs(v.log, trace)
		defer func() { trace.Answered(err) }()
	}
	l.warnSilentAt = time.Time{}
	v.endSilence()
	if l.sotw != nil && v.batchSize > 0 {
		v.agenda.batch.wake() // names may have waited for this response
	}
	defer func() { v.session.counters.countResponse(u.TypeURL, err != nil) }()
	if err != nil {
		v.log.Warn("origin response refused",
			slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce), slog.Any("err", err))
		if u.TypeURL == "" || u.Nonce == "" {
			l.cancel(err) // a NACK needs both
			return
		}
		v.answer(l, u, err)
		return
	}
	if err = oversizeError(u); err != nil {
		v.log.Warn("origin resources refused",
			slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce), slog.Any("err", err))
	}
	if !l.responded {
		v.failures().responseReceived()
		v.noteAnswering(server{e.address, u.ControlPlane})
	}
	v.noteResponse(l)
	if v.sourceTarget != v.target {
		v.noteTargetChange()
	}
	if s := l.branch.subs[u.TypeURL]; s != nil {
		v.pending.SetCause(CauseOf(trace, e.at))
		v.applyResponse(s, l.role, u, now)
		v.pending.SetCause(cache.Cause{})
		s.check.wake()
	}
	v.noteServer(u.ControlPlane)
	v.comparison.lastResponse = now
	wake(&v.agenda.list, &v.agenda.decisions)
	if u.Nonce != "" { // without a nonce, an ACK would be a new subscription
		v.answer(l, u, err)
	}
}

// noteResponse records that a stream has received a response. On an isolated stream, that does not end the backoff.
func (v *responses) noteResponse(l *adsStream) {
	l.responded, l.needFull = true, false
	if l.branch == v.trunk {
		l.retry.Reset()
	}
}

// oversizeError returns an error if resources of a response exceed the size limit. It names the first of them and their
// number.
func oversizeError(u wire.Update) error {
	var first *wire.Resource
	n := 0
	for r := range u.Refusals() {
		first, n = cmp.Or(first, r), n+1
	}
	if n == 0 {
		return nil
	}
	refused := fmt.Sprintf("resource %.256q", first.Name)
	if n > 1 {
		refused += fmt.Sprintf(" and %d more", n-1)
	}
	return fmt.Errorf("%s refused, all others applied: %s (TENDER_MAX_RESOURCE_BYTES)", refused, first.Refusal.Message)
}

// applyResponse applies an accepted response of the stream with the given role to the set that the stream carries. It
// ignores a response to a subscription that has ended or moved to the other stream.
func (v *responses) applyResponse(s *subscription, r role, u wire.Update, now time.Time) {
	u = v.inferRemovals(s, r, u, now)
	if s.sweepsOn(r) {
		s.members.RecordAnswers(u, now)
	}
	var c cache.Change
	switch r {
	case s.wildcardRole:
		c = v.applyToSet(s.members, u, now)
	case s.namesRole:
		c = v.applyToSet(s.byName, v.applyCollections(s, u, now), now)
	default:
		return // the subscription has ended (R096)
	}
	if v.ignoresVersions && c.Same > 0 && r == s.wildcardRole {
		// The origin resends the whole wildcard set, so the comparison is unnecessary. Resent names prove nothing: an
		// origin may resend only the names that were requested.
		v.comparison.dueAt, v.comparison.unfinished = time.Time{}, false
	}
	v.warnMisbehavior(u, c)
	v.log.LogAttrs(context.Background(), slog.LevelDebug, "response applied", // allocates nothing unless it is logged
		slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce),
		slog.Int("changed", c.Changed), slog.Int("removed", c.Removed), slog.Int("ignored", c.Ignored))
}

// warnMisbehavior logs violations of the protocol by the origin.
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

// applyToSet applies an update to a set. Removals that need confirmation become pending instead.
func (v *responses) applyToSet(s *set, u wire.Update, now time.Time) cache.Change {
	c, ignores := s.Take(u, now)
	if len(u.Removed)+len(u.Errors) > 0 && s.Confirmed(now) {
		v.reports.RecordRemoved(cache.ReportedSet{Key: s.key, Kind: s.kind}, u.RemovedNames())
	}
	if ignores {
		v.noteVersionsIgnored(now)
	}
	return c
}

// applyCollections applies the parts of an update that belong to collections. It returns the update without the globs
// in its removed names.
func (v *responses) applyCollections(s *subscription, u wire.Update, now time.Time) wire.Update {
	if len(s.collections) == 0 {
		return u
	}
	named := u
	named.Removed = slices.DeleteFunc(slices.Clone(u.Removed), func(name string) bool { return s.collections[name] != nil })
	// Members go first, so that no client gets them beside the error that says that there are none (R123).
	for name := range u.RemovedNames() {
		if c := s.collections[name]; c != nil {
			v.removeMembers(c, u, now)
		}
	}
	for key, p := range SplitByCollection(named, s.collectionOf) {
		_, glob, _ := cache.SplitCollection(key)
		of := s.collections[glob]
		v.applyToSet(of.set, *p, now)
		of.check.wake()
	}
	return named
}

// removeMembers removes all members of a collection and confirms it, since the origin reports that its glob matches
// nothing.
func (v *responses) removeMembers(c *collection, u wire.Update, now time.Time) {
	u = wire.Update{
		TypeURL: c.key, SystemVersion: u.SystemVersion, ControlPlane: u.ControlPlane,
		Removed: slices.Collect(c.Names()),
	}
	v.applyToSet(c.set, u, now)
	c.check.wake()
	v.setPhase(c.key, cache.Confirmed, now)
}

// updatePhase sets the phase of a wildcard set or a collection. The phase depends on how long the origin has sent no
// response for the set. It returns when to call it again.
func (v *responses) updatePhase(s *set, now time.Time) (next time.Time) {
	if !s.stream().open {
		return time.Time{} // without a stream, silence does not confirm the set
	}
	t := v.w.Generation().Type(s.key)
	phase, next := s.Progress.Phase(now, t.Phase, v.cfg.ColdWait)
	if phase != t.Phase {
		v.setPhase(s.key, phase, now)
		_, glob, _ := cache.SplitCollection(s.key)
		v.log.Debug("phase of a wildcard set changed", slog.String("type_url", s.TypeURL),
			slog.String("name", cmp.Or(glob, wire.Wildcard)), slog.String("phase", phase.String()))
	}
	if phase != cache.Settled || t.Presumed {
		return next
	}
	restored := t.Restored && t.Wildcard.Count() > 0 && s.Covered() && s.Progress.Settled(now)
	enough, ok := s.Progress.EnoughAt(v.cfg.ColdWait)
	if restored || ok && !now.Before(enough) {
		v.agenda.list.wake()
		v.pending.SetPresumed(s.key)
	} else if ok {
		next = reconcile.Earlier(next, enough)
	}
	return next
}

// setPhase sets the phase of a wildcard set or a collection in the view.
func (v *responses) setPhase(key string, p cache.Phase, now time.Time) {
	if p == cache.Confirmed {
		v.reports.Evaluate(cache.ReportedSet{Key: key, Kind: cache.Wildcard}, now, now)
	}
	v.agenda.reports.wake()
	v.agenda.list.wake()
	v.pending.SetPhase(key, p)
}

// checkMembers performs the checks of a wildcard set that are due, and returns when to check it again.
func (v *responses) checkMembers(s *subscription, now time.Time) (next time.Time) {
	v.agenda.decisions.wake()
	next = v.updatePhase(s.members, now)
	return reconcile.Earlier(next, v.queryMissing(s.members, now))
}

// checkCollection performs the checks of a collection that are due, and returns when to check it again.
func (v *responses) checkCollection(c *collection, now time.Time) (next time.Time) {
	v.agenda.decisions.wake()
	if v.expireCollection(c, now) {
		return time.Time{}
	}
	return reconcile.Earlier(reconcile.Earlier(v.updatePhase(c.set, now), v.queryMissing(c.set, now)), c.lingerUntil)
}

// newReports returns the tracker of resources that returning clients report.
func (v *responses) newReports(cfg reconcile.Config) *reconcile.Reports {
	return reconcile.NewReports(v.w, reconcile.ReportsConfig{
		Config: cfg, AnswerTimeout: min(v.cfg.ColdWait, reconcile.ConfirmMax), Verify: v.verify,
		CompleteAt: func(of cache.ReportedSet) (at, requestedAt time.Time) {
			s := v.find(of)
			if s == nil {
				return time.Time{}, time.Time{}
			}
			if at, ok := s.CompleteAt(); ok {
				return at, s.stream().openedAt
			}
			return time.Time{}, time.Time{}
		},
	})
}

// List implements Controlled.
func (v *responses) List() *pending.List { return v.pending }

// Operate implements Controlled.
func (v *responses) Operate(c reconcile.Command) []reconcile.Hold {
	now := time.Now()
	return slices.Concat(v.group.Operate(c, now), v.reports.Operate(c, now), c.OperateList(v.pending))
}

// Keep implements Controlled.
func (v *responses) Keep(dropped []reconcile.Hold) {
	for i := range dropped {
		hold := &dropped[i]
		for _, name := range hold.Names {
			s, kept := v.sub(v.trunk, hold.TypeURL), false
			for _, of := range []*set{s.members, s.byName} {
				kept = of.keepIfPresent(name, hold) || kept
			}
			if !kept { // clients may report it
				v.reports.RestoreDropped(name, hold)
			}
			if glob, is := wire.GlobOf(name); is {
				key := cache.Collection(hold.TypeURL, glob)
				v.keptNames[key] = append(v.keptNames[key], keptName{name, hold})
			}
		}
	}
}

// startTrace starts the trace of a response; nil if tracing is disabled.
func (v *responses) startTrace(e event) Trace {
	if v.cfg.Trace == nil {
		return nil
	}
	u := &e.update
	return v.cfg.Trace(Received{
		Origin: v.cfg.Targets[v.target], At: e.at, TypeURL: u.TypeURL, Version: u.SystemVersion, Nonce: u.Nonce,
		Resources: len(u.Resources), Removed: len(u.Removed) + len(u.RemovedVariants),
		Address: e.address, TraceParent: u.TraceParent,
	})
}
