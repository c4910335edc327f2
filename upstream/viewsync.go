package upstream

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/metadata"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream/reconcile"
)

const (
	// TrimEvery is the interval at which a loop calls Trim on the writer of its view.
	TrimEvery = 10 * time.Second

	// lookAgain is the longest time between two decisions while changes wait.
	lookAgain = 10 * time.Second
)

// A viewSync keeps one view in sync with its origin. Only its loop may use it.
//
// It is built in layers, each of which uses only the previous ones: the streams to the origin, the subscriptions of the
// view, and the responses.
type viewSync struct {
	responses
	control *Control
	counted int // the rows of the list that the counters of the session have
	dropped int // removals that operators dropped
}

// Sync keeps a view in sync with the origin until ctx ends and all its goroutines have ended. It sends node, which must
// not be modified, to the origin. The control passes commands of operators to the loop.
//
// No failure of the origin ends it. It logs failures and retries at intervals from 1s to 30s while the origin sends no
// response. It retries within 500ms after a stream that received a response, or that the origin held open for 5s. Such
// an origin may be a relay that waits for its own origin.
//
// Source: gRFC A57.
func (s *Session) Sync(ctx context.Context, node *corepb.Node, list *pending.List, log *slog.Logger, control *Control) {
	s.newViewSync(ctx, node, list, log, control).run(ctx)
}

// newViewSync returns a viewSync whose loop has not started. It has a subscription to each type of Config.Prewarm that
// the view owns.
func (s *Session) newViewSync(
	ctx context.Context, node *corepb.Node, list *pending.List, log *slog.Logger, control *Control,
) *viewSync {
	v, w := &viewSync{control: control}, list.Writer()
	v.streams = streams{
		session: s, cfg: &s.cfg, pending: list, w: w, log: log, node: node, events: make(chan event),
		trunk: newBranch(), aliveAfter: aliveAfter,
	}
	v.keptNames = make(map[string][]keptName)
	v.linger = newLingering(s.cfg.MaxLingering, s.cfg.MaxLingeringBytes)
	cfg := reconcile.Config{
		HoldTime: s.cfg.MassDeleteHold, HoldExplicit: s.cfg.HoldExplicit, ColdWait: s.cfg.ColdWait,
		Counts: &s.counters.Counts, Logger: log, Check: s.cfg.Check, Required: s.cfg.Required,
		Growth: s.cfg.Growth,
	}
	v.group, v.reports = reconcile.NewGroup(cfg), v.newReports(cfg)
	v.planTasks(ctx)
	from := w.Source() // after a restore, the source of the snapshot (B.42)
	v.sourceTarget, v.identifier = slices.Index(s.cfg.Targets, from.Target), from.Identifier
	for _, typeURL := range s.cfg.Prewarm {
		if !w.Owns(typeURL) {
			continue
		}
		sub := v.sub(v.trunk, typeURL)
		sub.prewarm = true
		sub.assignStreams(true)
	}
	return v
}

// run is the loop: it performs the actions that are due, then waits for an event, a demand, a command or the time. It
// returns when ctx has ended and all streams have ended.
func (v *viewSync) run(ctx context.Context) {
	timer := time.NewTimer(TrimEvery) // set to the result of step
	defer timer.Stop()
	defer v.stop()
	defer v.control.End()
	v.control.Begin(v)
	for {
		timer.Stop()
		now := time.Now()
		next := v.step(now)
		v.flushSotW(now)
		v.counted = v.session.counters.CountList(v.pending, v.counted)
		before := v.dropped
		v.dropped = v.group.Dropped() + v.reports.Dropped()
		v.control.recordRemovals(v.group.HasRemovals() || v.reports.HasRemovals(), v.dropped, before)
		v.control.recordWaiting(v.pending)
		next = reconcile.Earlier(next, v.reportClients(&v.control.below, now))
		if !next.IsZero() {
			timer.Reset(timerDelay(next))
		}
		select {
		case <-v.w.Demand():
			v.demand(time.Now())
		case <-v.pending.Wake():
			v.agenda.list.wake()
		case e := <-v.events:
			v.handleEvent(e, time.Now())
		case call := <-v.control.Calls():
			call(v)
			v.wakeAll()
		case <-v.control.below.wake:
		case <-v.targetChanged:
			v.followTarget(time.Now())
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// followTarget reopens the streams at the active target, if that is another one.
func (v *viewSync) followTarget(now time.Time) {
	if v.targetChanged = v.session.targetChanged(); v.target == v.session.target() {
		return
	}
	for l := range v.all {
		l.retryAt = now.Add(rand.N(ReconnectMax))
	}
	v.agenda.streams.wake()
	v.reopen()
}

// timerDelay returns the timer duration until a time: at least 1ns. In a testing/synctest bubble, the race detector
// crashes if two timers fire at the same time while they are being set.
func timerDelay(t time.Time) time.Duration { return max(time.Until(t), time.Nanosecond) }

// stop closes the streams, waits for their goroutines, and marks the view as disconnected.
func (v *viewSync) stop() {
	for l := range v.all {
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
	v.isolated = nil
	v.reportIsolated()
	v.failures().forget(v)
	v.pending.SetConnected(false)
	v.pending.Close()
	v.counted = v.session.counters.CountList(v.pending, v.counted)
	v.group.Close()
	v.reports.Close()
}

// step does what is due, and returns when to call it again.
func (v *viewSync) step(now time.Time) (next time.Time) {
	if v.isDivided() {
		v.agenda.isolation.wake()
	}
	if v.hasRejections() {
		v.agenda.rejected.wake()
	}
	return v.agenda.run(now)
}

// isDivided reports whether the state of isolated branches may have changed. It depends on all streams, subscriptions and
// clients.
func (v *viewSync) isDivided() bool {
	return len(v.isolated) > 0 || v.mergeAll || len(v.control.Isolated()) > 0
}

// planTasks defines the tasks of the view. Each is due in the first step.
func (v *viewSync) planTasks(ctx context.Context) {
	v.checks = checks{v.checkMembers, v.checkCollection}
	a := &v.agenda
	a.tasks = tasks{
		isolation:  a.newTask(rankIsolation, "", v.stepBranches),
		list:       a.newTask(rankList, "", v.stepList),
		linger:     a.newTask(rankLinger, "", v.expireLingering),
		batch:      a.newTask(rankBatch, "", v.flush),
		decisions:  a.newTask(rankDecisions, "", v.decide),
		reports:    a.newTask(rankReports, "", v.reports.Step),
		rejected:   a.newTask(rankRejected, "", v.reportRejected),
		streams:    a.newTask(rankStreams, "", func(now time.Time) time.Time { return v.maintainStreams(ctx, now) }),
		comparison: a.newTask(rankComparison, "", v.compare),
		trim:       a.newTask(rankTrim, "", v.trim),
	}
	wake(a.all()...)
}

// wakeAll makes all tasks due except trim, and the checks of wildcard sets: a command may change anything.
func (v *viewSync) wakeAll() {
	for _, t := range v.agenda.all() {
		if t.rank != rankTrim {
			t.wake()
		}
	}
	v.wakeChecks()
}

// wakeChecks makes the checks of all wildcard sets due.
func (v *viewSync) wakeChecks() {
	for b := range v.branches {
		for _, s := range b.subs {
			s.check.wake()
		}
	}
}

// stepList passes what waits no longer in the list, and expires TTLs. It returns when to call it again.
func (v *viewSync) stepList(now time.Time) (next time.Time) {
	next = v.pending.Step(now)
	next = reconcile.Earlier(next, v.pending.Expire(now))
	v.agenda.decisions.wake() // a resource whose removal waits may have expired
	return next
}

// decide makes the decisions that are possible about removals and about the target of the view. It returns when to call it again.
// While changes wait, that is after lookAgain at the latest: what keeps one depends on the other sets, and on the time.
func (v *viewSync) decide(now time.Time) (next time.Time) {
	v.group.ComparisonPending = !v.comparison.dueAt.IsZero()
	if v.group.HasRemovals() {
		next = v.group.Decide(now)
		if v.group.StartSecondLooks(now) {
			v.verify(now)
		}
		if v.group.HasRemovals() {
			next = reconcile.Earlier(next, now.Add(lookAgain))
		}
	}
	v.confirmTarget()
	if c := &v.comparison; c.running || !c.dueAt.IsZero() {
		v.agenda.comparison.wake() // it waits for decisions and responses
	}
	return next
}

// trim removes what is no longer needed, and returns when to call it again.
func (v *viewSync) trim(now time.Time) (next time.Time) {
	v.w.Trim(now)
	v.forgetEarly(now)
	return now.Add(TrimEvery)
}

// maintainStreams opens and closes the streams of all branches, and returns when to call it again.
func (v *viewSync) maintainStreams(ctx context.Context, now time.Time) (next time.Time) {
	for b := range v.branches {
		for r := main; r <= auxiliary; r++ {
			next = reconcile.Earlier(next, v.maintainStream(ctx, b, r, now))
		}
	}
	return next
}

// maintainStream opens a stream that is needed, closes the auxiliary one if it is not, and logs a silent origin. It
// returns when to call it again.
func (v *viewSync) maintainStream(ctx context.Context, b *branch, r role, now time.Time) (next time.Time) {
	l, wanted := &b.byRole[r], b.needs(r)
	switch {
	case l.stream == nil && wanted && (r == main || b.byRole[main].open):
		return v.open(ctx, b, r, now)
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

// open opens a stream, or returns when to try again. The backoff protects an origin that accepts streams and closes
// them. If there was no connection, the relay ignores the backoff as soon as the connection is up.
func (v *viewSync) open(ctx context.Context, b *branch, r role, now time.Time) (next time.Time) {
	l := &b.byRole[r]
	if now.Before(l.retryAt) {
		if !l.notConnected {
			return l.retryAt
		}
		if !v.session.up(v.session.target()) {
			return reconcile.Earlier(l.retryAt, now.Add(connectPoll))
		}
	}
	if v.divide(b, r, now); !b.needs(r) {
		return time.Time{}
	}
	if b != v.trunk && v.trunk.needs(main) && !v.session.limiter.spare(now) {
		return now.Add(limiterPoll)
	}
	if next, ok := v.session.limiter.allow(&l.waiter, now); !ok {
		return next
	}
	if r == main && !v.connected() {
		v.targetChanged = v.session.targetChanged() // before target, or the loop could miss a change
		if target := v.session.target(); v.target != target {
			v.failures().forget(v)
			v.target = target
		}
		v.failures().streamStarted(v)
	}
	l.stream = v.session.open(v.askForHalts(ctx, r), v.target, r, v.usesSotW(b, r), v.events)
	l.branch = b
	l.open, l.sentVersions, l.warnSilentAt = false, false, time.Time{}
	l.target, l.heard, l.told = v.cfg.Targets[v.target], false, nil
	v.running++
	return time.Time{}
}

// handleEvent handles an event of a stream. Events of replaced streams are ignored.
func (v *viewSync) handleEvent(e event, now time.Time) {
	l := &e.stream.branch.byRole[e.stream.role]
	if e.ended {
		v.running--
	}
	if l.stream != e.stream || e.stream.replaced && !e.ended {
		return
	}
	switch {
	case e.ended:
		v.streamEnded(l, e.err, now)
		v.wakeForStreams()
	case e.opened:
		v.streamOpened(l, now)
		v.wakeForStreams()
	case e.header:
		l.reporting.accepted = e.relay
		if !e.tells {
			v.heardHalts(l, nil)
		}
	case e.halts != nil:
		v.heardHalts(l, e.halts)
	default:
		v.handleResponse(l, e, now)
	}
}

// wakeForStreams makes the tasks due that depend on which streams are open.
func (v *viewSync) wakeForStreams() {
	a := &v.agenda
	wake(&a.list, &a.decisions, &a.reports, &a.streams, &a.comparison)
}

// streamOpened sends all subscriptions of a new stream: an origin keeps no state of earlier streams (R088).
func (v *viewSync) streamOpened(l *adsStream, now time.Time) {
	l.open, l.openedAt = true, now
	v.session.counters.update(func(s *Stats) { s.Streams++ })
	if l.role == main {
		if l.branch == v.trunk || !v.connectedBeside(l.branch) { // an isolated branch may become the trunk
			v.log.Info("connected to the origin", slog.String("origin", v.cfg.Targets[v.target]))
		}
		v.pending.SetConnected(true)
	} else if l.endLogged {
		v.log.Info("auxiliary stream opened", slog.String("origin", v.cfg.Targets[v.target]))
	}
	l.endLogged = false
	for _, s := range l.branch.ordered() {
		v.subscribeAll(l, s, now)
		s.check.wake()
	}
	if l.branch == v.trunk {
		v.scheduleComparison(l, now)
	}
}

// subscribeAll sends the first requests of a type on a new stream.
func (v *viewSync) subscribeAll(l *adsStream, s *subscription, now time.Time) {
	switch {
	case s.wildcardRole == l.role:
		v.endQueries(s.members, now)
	case s.sweepsOn(l.role):
		s.members.StartQuery(nil, now)
	}
	reqs, asked := s.initialRequests(l.role, v.w.Generation(), v.mayResume(l))
	var reported map[string]string
	for i, r := range reqs {
		if i == 0 && !v.ignoresVersions {
			reported = r.InitialResourceVersions
		}
		l.sentVersions = l.sentVersions || i == 0 && r.InitialResourceVersions != nil
		v.request(l, s, r, now)
	}
	for set := range s.sets {
		switch set.role() {
		case l.role:
			set.beginStream(reported, now)
		case noStream: // another branch has its names, which may return to this stream
			set.Progress = reconcile.Progress{}
		}
	}
	for _, c := range s.collections {
		c.check.wake()
	}
	v.w.Asked(l.withoutRefused(s.typeURL, asked), now)
}

// streamEnded decides when to reopen a stream, and whether to fail over. The end of the main stream also ends the
// auxiliary one.
func (v *viewSync) streamEnded(l *adsStream, err error, now time.Time) {
	b, role, fallBack := l.branch, l.role, v.fallBackToSotW(l, err)
	for _, s := range b.subs {
		for set := range s.sets {
			if set.role() == role {
				set.End(now)
			}
		}
	}
	if !fallBack {
		v.recordEnd(l, err, now)
	}
	wait := v.closed(l, err, fallBack, now)
	l.retryAt = now.Add(wait)
	if !fallBack {
		if f := v.logEnd(role, err, wait); f != nil {
			v.control.failure.Store(f)
			l.endLogged = true
		}
	}
	if v.connected() {
		v.clearAsked(b, role)
	}
	if role == auxiliary {
		return
	}
	if !v.connected() {
		v.pending.SetConnected(false)
	}
	if b == v.trunk {
		v.comparison.streamEnded(err)
	}
	b.byRole[auxiliary].replace()
}

// closed marks a stream as closed, and returns when to reopen it. fallBack means that the next one uses SotW.
func (v *viewSync) closed(l *adsStream, err error, fallBack bool, now time.Time) time.Duration {
	// An isolated stream that received a response may end at once again. Only one that was alive causes no backoff.
	lasting := l.branch == v.trunk || l.open && now.Sub(l.openedAt) >= v.aliveAfter
	served, held := lasting && l.served(now), l.open && now.Sub(l.openedAt) >= minHeld
	role, address := l.role, l.address
	l.stream, l.open, l.notConnected, l.warnSilentAt = nil, false, false, time.Time{}
	switch {
	case fallBack && role == main, errors.Is(err, errResync):
		return 0
	case fallBack: // wait until the main stream has determined the variant
		return ReconnectMax
	case served:
		l.retry.Reset()
		return rand.N(ReconnectMax)
	}
	wait := l.backOff(held)
	l.notConnected = !v.session.up(v.target) // before attemptFailed, which may close the connection
	if role == main && !v.connected() {
		v.session.attemptFailed(v.target, v, address, err)
	}
	return wait
}

// clearAsked records that the names of a stream are no longer requested, while another stream of the view is open
// (R136). Otherwise clients would be told that they do not exist, although the origin can no longer answer.
func (v *viewSync) clearAsked(b *branch, r role) {
	for _, s := range b.subs {
		if s.namesRole == r {
			v.w.Asked(slices.Collect(maps.Keys(s.names)), time.Time{})
		}
	}
}

// stepBranches merges branches, and makes what depends on them known. It returns when to call it again.
func (v *viewSync) stepBranches(now time.Time) (next time.Time) {
	trunk := v.trunk
	next = v.mergeBranches(now)
	if v.trunk != trunk {
		v.hearTrunk()
	}
	v.reportIsolated()
	return next
}

// reportIsolated publishes the isolated subscriptions that end streams, for operators.
func (v *viewSync) reportIsolated() {
	if before := v.control.Isolated(); len(before)+len(v.isolated) > 0 || v.refuses() {
		all := v.isolations()
		v.control.isolated.Store(&all)
		v.session.counters.isolated.Add(int64(countIsolated(all) - countIsolated(before)))
	}
}

// askForHalts adds the header that asks for halts to the metadata of a stream that is to hear them.
func (v *viewSync) askForHalts(ctx context.Context, r role) context.Context {
	if v.cfg.Chain == nil || !v.hearsHalts(r) {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, wire.HaltsHeader, "1")
}

// hearsHalts reports whether a stream asks for halts. Each main stream does, since it may become that of the trunk. The auxiliary
// stream has the same clients.
func (v *viewSync) hearsHalts(r role) bool { return v.control.halts != nil && r == main }

// heardHalts keeps what a relay has told about halts, and passes it on if the stream is that of the trunk: one stream of a view is
// enough. It is nil if the target tells nothing.
func (v *viewSync) heardHalts(l *adsStream, told []byte) {
	if !v.hearsHalts(l.role) {
		return
	}
	l.heard, l.told = true, bytes.Clone(told)
	if l.branch == v.trunk {
		v.control.halts(l.target, l.told)
	}
}

// hearTrunk passes on what the main stream of a new trunk has heard of halts. Before it has heard anything, and while it is closed,
// what was told before remains in force: a closed stream does not hear that halts end.
func (v *viewSync) hearTrunk() {
	if l := &v.trunk.byRole[main]; l.open && l.heard {
		v.control.halts(l.target, l.told)
	}
}
