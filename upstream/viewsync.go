package upstream

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/upstream/reconcile"
)

// TrimEvery is how often a loop trims what its writer keeps.
const TrimEvery = 10 * time.Second

// A viewSync keeps one view like its origin. All of it belongs to its loop.
//
// What it consists of is built in layers, each of which knows those before it alone: the streams to the
// origin, what clients want of it, and what it has answered.
type viewSync struct {
	responses
	control *Control
	trimAt  time.Time
}

// Sync keeps a view like its origin, which takes the relay for a node that must not be altered, until ctx ends
// and everything that it started has ended. No failure of the origin ends it: it
// is logged and tried again, at intervals from 1s to 30s while the origin gives
// no response, and at once after a stream that had one, or that the origin held for
// 5s: it may be a relay that waits for an origin of its own.
//
// The control has it do what an operator wants.
//
// Source: gRFC A57.
func (s *Session) Sync(ctx context.Context, node *corepb.Node, w *cache.Writer, log *slog.Logger, control *Control) {
	s.newViewSync(node, w, log, control).run(ctx)
}

func (s *Session) newViewSync(node *corepb.Node, w *cache.Writer, log *slog.Logger, control *Control) *viewSync {
	v := &viewSync{control: control}
	v.streams = streams{session: s, cfg: &s.cfg, w: w, log: log, node: node, events: make(chan event)}
	v.subs, v.keptNames = make(map[string]*subscription), make(map[string][]string)
	v.linger = newLingering(s.cfg.MaxLingering, s.cfg.MaxLingeringBytes)
	cfg := reconcile.Config{
		Hold: s.cfg.MassDeleteHold, HoldExplicit: s.cfg.HoldExplicit, ColdWait: s.cfg.ColdWait, Counts: &s.counters.Counts, Logger: log,
		Check: s.cfg.Check,
	}
	v.group, v.reports = reconcile.NewGroup(cfg), v.newReports(cfg)
	from := w.Source() // of a view that was restored, what the snapshot says (B.42)
	v.sourceTarget, v.identifier = slices.Index(s.cfg.Targets, from.Target), from.Identifier
	for r := range v.byRole {
		v.byRole[r].retry = &backoff.ExponentialBackOff{
			InitialInterval: time.Second, Multiplier: 1.6, RandomizationFactor: 0.2, MaxInterval: 30 * time.Second,
		}
		v.byRole[r].retry.Reset()
	}
	for _, typeURL := range s.cfg.Prewarm {
		if !w.Owns(typeURL) {
			continue
		}
		sub := v.sub(typeURL)
		sub.prewarm = true
		sub.assignStreams(true)
	}
	return v
}

func (v *viewSync) run(ctx context.Context) {
	timer := time.NewTimer(TrimEvery) // of what act says is next
	defer timer.Stop()
	defer v.stop()
	defer v.control.End()
	v.control.Begin(v)
	for {
		timer.Stop()
		now := time.Now()
		next := v.step(ctx, now)
		v.flushSotW(now)
		v.control.setHolds(v.group.Busy() || v.reports.Busy(), v.group.Broken())
		if !next.IsZero() {
			timer.Reset(timerDelay(next))
		}
		select {
		case <-v.w.Demand():
			v.demand(time.Now())
		case e := <-v.events:
			v.handleEvent(e, time.Now())
		case call := <-v.control.Calls():
			call(v)
		case <-v.targetChanged:
			if v.targetChanged = v.session.targetChanged(); v.target != v.session.target() {
				v.followTarget(time.Now())
			}
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// move goes on at another target, at once.
func (v *viewSync) followTarget(now time.Time) {
	for r := range v.byRole {
		v.byRole[r].retryAt = now.Add(rand.N(ReconnectMax))
	}
	v.reopen()
}

// until returns how long a timer is to wait for a time: a moment, for one that has come,
// since a timer that fires while it is set crashes the race detector where two do so at
// once in a bubble of testing/synctest.
func timerDelay(t time.Time) time.Duration { return max(time.Until(t), time.Nanosecond) }

// stop ends the streams and waits for their goroutines.
func (v *viewSync) stop() {
	for r := range v.byRole {
		l := &v.byRole[r]
		v.session.limiter.stopWaiting(&l.waiter)
		if l.stream != nil {
			l.cancel(context.Canceled)
		}
	}
	for v.running > 0 {
		if e := <-v.events; e.ended {
			v.running--
		}
	}
	v.endComparison()
	v.failures().forget(v)
	v.w.SetConnected(false)
	v.group.Close()
	v.reports.Close()
}

// act does what it is time for, and returns when to look again.
func (v *viewSync) step(ctx context.Context, now time.Time) (next time.Time) {
	at := func(t time.Time) { next = reconcile.Earlier(next, t) }
	at(v.w.Expire(now))
	at(v.expireLingering(now))
	if !v.batchAt.IsZero() && !now.Before(v.batchAt) {
		v.flush(now)
	}
	at(v.batchAt)
	v.agenda.due(now)
	for _, s := range v.ordered() { // clients hear of clusters first, even if all is known at once
		for _, c := range s.due {
			v.agenda.schedule(c, v.checkCollection(c, now))
		}
		s.due = s.due[:0]
		at(v.updatePhase(s.members, now))
		at(v.queryMissing(s.members, now))
	}
	v.group.Untrusted = !v.comparison.dueAt.IsZero()
	if v.group.Look(now) {
		v.resync()
	}
	at(v.group.Decide(now))
	v.confirmTarget()
	at(v.reports.Check(now))
	at(v.agenda.next())
	for r := main; r <= auxiliary; r++ {
		at(v.maintainStream(ctx, r, now))
	}
	at(v.compare(now))
	if !now.Before(v.trimAt) {
		v.w.Trim(now)
		v.trimAt = now.Add(TrimEvery)
	}
	at(v.trimAt)
	return next
}

// wanted reports whether a stream has anything to carry.
func (v *viewSync) needed(r role) bool {
	for _, s := range v.subs {
		if s.needsStream(r) {
			return true
		}
	}
	return false
}

// tend opens a stream that is wanted, closes one that is not, and says when one
// is silent.
func (v *viewSync) maintainStream(ctx context.Context, r role, now time.Time) (next time.Time) {
	l, wanted := &v.byRole[r], v.needed(r)
	switch {
	case l.stream == nil && wanted && (r == main || v.byRole[main].open):
		return v.open(ctx, l, r, now)
	case l.stream == nil:
		v.session.limiter.stopWaiting(&l.waiter)
	case l.stream != nil && !wanted && r == auxiliary && l.open:
		l.replace()
	case l.silenceDue(now):
		l.warnSilentAt, v.silenceLogged = time.Time{}, true
		v.log.Warn("origin sends no response: it may not know this node; check "+
			"TENDER_NODE_ID, TENDER_NODE_CLUSTER, TENDER_NODE_METADATA and TENDER_NODE_GROUP_BY",
			slog.String("node_id", v.node.GetId()), slog.String("node_cluster", v.node.GetCluster()))
	}
	return l.warnSilentAt
}

// open opens a stream, or returns when to look again. What waiting spares is an
// origin that takes streams and ends them; one that could not be reached is asked
// as soon as it can be.
func (v *viewSync) open(ctx context.Context, l *adsStream, r role, now time.Time) (next time.Time) {
	if now.Before(l.retryAt) {
		if !l.notConnected {
			return l.retryAt
		}
		if !v.session.up(v.session.target()) {
			return reconcile.Earlier(l.retryAt, now.Add(connectPoll))
		}
	}
	if next, ok := v.session.limiter.allow(&l.waiter, now); !ok {
		return next
	}
	if r == main {
		v.targetChanged = v.session.targetChanged() // before target, or a change could be missed
		if target := v.session.target(); v.target != target {
			v.failures().forget(v)
			v.target = target
		}
		v.failures().streamStarted(v)
	}
	l.stream = v.session.open(ctx, v.target, r, v.usesSotW(r), v.events)
	l.open, l.sentVersions, l.warnSilentAt = false, false, time.Time{}
	v.running++
	return time.Time{}
}

func (v *viewSync) handleEvent(e event, now time.Time) {
	l := &v.byRole[e.stream.role]
	if e.ended {
		v.running--
	}
	if l.stream != e.stream || e.stream.replaced && !e.ended {
		return // of a stream that was given up
	}
	switch {
	case e.ended:
		v.streamEnded(l, e.err, now)
	case e.opened:
		v.streamOpened(l, now)
	default:
		v.handleResponse(l, e, now)
	}
}

// opened states on a new stream all that is wanted: nothing survives from an
// earlier one (R088).
func (v *viewSync) streamOpened(l *adsStream, now time.Time) {
	l.open, l.openedAt = true, now
	v.session.counters.update(func(s *Stats) { s.Streams++ })
	if l.role == main {
		v.log.Info("connected to the origin", slog.String("origin", v.cfg.Targets[v.target]))
		v.w.SetConnected(true)
	}
	for _, s := range v.ordered() {
		v.subscribeAll(l, s, now)
	}
	v.scheduleComparison(l, now)
}

// restate asks for everything that a stream carries, now that it is open.
func (v *viewSync) subscribeAll(l *adsStream, s *subscription, now time.Time) {
	switch {
	case s.wildcardRole == l.role:
		v.endQueries(s.members, now)
	case s.sweepsOn(l.role):
		s.members.Ask(nil, now)
	}
	reqs, asked := s.initialRequests(l.role, v.w.Generation(), v.mayResume(l))
	var told map[string]string
	for i, r := range reqs {
		if i == 0 && !v.ignoresVersions {
			told = r.InitialResourceVersions
		}
		l.sentVersions = l.sentVersions || i == 0 && r.InitialResourceVersions != nil
		v.request(l, s, r, now)
	}
	for set := range s.sets {
		if set.role() == l.role {
			set.beginStream(told, now)
		}
	}
	for _, c := range s.collections {
		v.agenda.schedule(c, now)
	}
	v.w.Asked(asked, now)
}

// ended decides when to open the stream again.
func (v *viewSync) streamEnded(l *adsStream, err error, now time.Time) {
	served, role, other := l.served(now), l.role, v.fallBackToSotW(l, err)
	held := l.open && now.Sub(l.openedAt) >= minHeld
	l.stream, l.open, l.notConnected, l.warnSilentAt = nil, false, false, time.Time{}
	wait := time.Duration(0)
	switch {
	case other && role == main, errors.Is(err, errResync):
	case other: // the main stream finds out what is spoken
		wait = ReconnectMax
	case served:
		l.retry.Reset()
		wait = rand.N(ReconnectMax)
	default:
		wait = l.backOff(held)
		l.notConnected = !v.session.up(v.target)
		if role == main && v.session.shouldFailOver(v.target, v, err) {
			v.session.failOver(v.target)
		}
	}
	l.retryAt = now.Add(wait)
	if !other {
		if f := v.logEnd(role, err, wait); f != nil {
			v.control.failure.Store(f)
		}
	}
	if role == auxiliary {
		v.clearAsked()
	} else {
		v.w.SetConnected(false)
		v.comparison.streamEnded(err)
		v.byRole[auxiliary].replace()
	}
}

// unasked records that what was asked for on the auxiliary stream no longer is
// (R136).
func (v *viewSync) clearAsked() {
	for _, s := range v.subs {
		if s.namesRole == auxiliary {
			v.w.Asked(slices.Collect(maps.Keys(s.names)), time.Time{})
		}
	}
}
