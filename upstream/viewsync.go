package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// TrimEvery is how often a loop trims what its writer keeps.
const TrimEvery = 10 * time.Second

const (
	batchWait    = 5 * time.Millisecond   // demand that comes within it is one request (B.5)
	ReconnectMax = 500 * time.Millisecond // before a stream that was served is opened again
	silenceWait  = 10 * time.Second       // before an origin that does not answer is worth a line (B.4)

	connectedEvery = time.Second // is looked whether an origin can be reached again

	heldFor = 5 * time.Second // a stream without a response is held by an origin that need not be spared
)

// errResync ends a stream that the relay itself wants to open anew.
var errResync = errors.New("resync")

// A mirror keeps one view like its origin. All of it belongs to its loop.
type viewSync struct {
	session *Session
	cfg     *Config
	w       *cache.Writer
	log     *slog.Logger
	control *Control // nil if there is none

	node *corepb.Node // whom the origin takes the relay for

	events  chan event
	running int // streams whose end has not been told
	lines   [auxiliary + 1]adsStream

	subs   map[string]*subscription
	linger *lingering
	agenda agenda

	lingeringGlobs int

	batchAt time.Time // when changed demand is sent
	batched int       // names waiting for that
	trimAt  time.Time

	target     int                 // index of the target in use
	moved      <-chan struct{}     // closed once the session returned to an earlier one
	source     int                 // that of the target that answered last; -1 if none did
	noDelta    bool                // the target does not implement Delta; until it ends a stream
	ignores    bool                // the origin was seen to resend what it was told is held
	identifier string              // of the control plane
	keeping    map[string][]string // names that an operator had kept of collections that are not followed yet, by key
	comparison comparison          // of all content, after a resume
	group      *reconcile.Group    // the sets that are held
	reports    *reconcile.Reports  // what returning clients hold and the view has never known
	reused     bool                // reuse of versions was logged
	silent     bool                // the silence of the origin was logged
}

// A line is one of the two streams to the origin: what is there now, and when to
// try again.
type adsStream struct {
	*stream
	open     bool
	openedAt time.Time
	versions bool // the origin was told what is held
	full     bool // until it has answered, it is not
	retry    *backoff.ExponentialBackOff
	retryAt  time.Time

	unconnected bool      // the stream ended, or never began, for want of a connection
	waits       bool      // for the session's pace
	silentAt    time.Time // when to warn that nothing came; zero if something did
}

// served reports whether the origin has taken care of the stream. Silence is the
// right answer to one who holds everything already.
func (l *adsStream) served(now time.Time) bool {
	return l.responded || l.open && l.versions && now.Sub(l.openedAt) >= silenceWait
}

// silent reports whether it is time to warn that nothing came.
func (l *adsStream) silent(now time.Time) bool {
	return !l.silentAt.IsZero() && !now.Before(l.silentAt)
}

// Mirror keeps a view like its origin, which takes the relay for a node that must not be altered, until ctx ends
// and everything that it started has ended. No failure of the origin ends it: it
// is logged and tried again, at intervals from 1s to 30s while the origin gives
// no response, and at once after a stream that had one, or that the origin held for
// 5s: it may be a relay that waits for an origin of its own.
//
// The control, which may be nil, has it do what an operator wants.
//
// Source: gRFC A57.
func (s *Session) Sync(ctx context.Context, node *corepb.Node, w *cache.Writer, log *slog.Logger, control *Control) {
	v := &viewSync{
		session: s,
		cfg:     &s.cfg,
		node:    node,
		w:       w,
		log:     log,
		control: control,
		events:  make(chan event),
		subs:    make(map[string]*subscription),
		keeping: make(map[string][]string),
		linger:  newLingering(s.cfg.MaxLingering, s.cfg.MaxLingeringBytes),
	}
	cfg := reconcile.Config{
		Hold: s.cfg.MassDeleteHold, HoldExplicit: s.cfg.HoldExplicit, ColdWait: s.cfg.ColdWait, Counts: &s.counters.Counts, Logger: log,
	}
	v.group, v.reports = reconcile.NewGroup(cfg), v.newReports(cfg)
	from := w.Source() // of a view that was restored, what the snapshot says (B.42)
	v.source, v.identifier = slices.Index(s.cfg.Targets, from.Target), from.Identifier
	for r := range v.lines {
		v.lines[r].retry = &backoff.ExponentialBackOff{
			InitialInterval: time.Second, Multiplier: 1.6, RandomizationFactor: 0.2, MaxInterval: 30 * time.Second,
		}
		v.lines[r].retry.Reset()
	}
	for _, typeURL := range s.cfg.Prewarm {
		if !w.Owns(typeURL) {
			continue
		}
		sub := v.sub(typeURL)
		sub.prewarm = true
		sub.place(true)
	}
	v.run(ctx)
}

func (v *viewSync) run(ctx context.Context) {
	timer := time.NewTimer(TrimEvery) // of what act says is next
	defer timer.Stop()
	defer v.stop()
	defer v.control.End()
	v.control.Begin(v)
	for {
		timer.Stop()
		next := v.act(ctx, time.Now())
		v.flushLists()
		v.control.SetHolding(v.group.Busy() || v.reports.Waits())
		if !next.IsZero() {
			timer.Reset(until(next))
		}
		select {
		case <-v.w.Demand():
			v.demand(time.Now())
		case e := <-v.events:
			v.event(e, time.Now())
		case call := <-v.control.Calls():
			call(v)
		case <-v.moved:
			if v.moved = v.session.moved(); v.target != v.session.target() {
				v.move(time.Now())
			}
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// attempts returns those of the target in use.
func (v *viewSync) attempts() *attempts { return &v.session.links[v.target].attempts }

// move goes on at another target, at once.
func (v *viewSync) move(now time.Time) {
	for r := range v.lines {
		v.lines[r].retryAt = now.Add(rand.N(ReconnectMax))
	}
	v.reopen()
}

// until returns how long a timer is to wait for a time: a moment, for one that has come,
// since a timer that fires while it is set crashes the race detector where two do so at
// once in a bubble of testing/synctest.
func until(t time.Time) time.Duration { return max(time.Until(t), time.Nanosecond) }

// stop ends the streams and waits for their goroutines.
func (v *viewSync) stop() {
	for r := range v.lines {
		l := &v.lines[r]
		v.session.pace.leave(l)
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
	v.attempts().left(v)
	v.w.SetConnected(false)
	v.group.Close()
	v.reports.Close()
}

func (v *viewSync) sub(typeURL string) *subscription {
	s := v.subs[typeURL]
	if s == nil {
		s = &subscription{typeURL: typeURL, names: make(map[*cache.Name]struct{})}
		s.members = v.newSet(s, typeURL, wire.Wildcard, cache.Wildcard)
		s.byName = v.newSet(s, typeURL, "", cache.ByName)
		s.members.AskedOn(s.byName.Set)
		v.subs[typeURL] = s
	}
	return s
}

// inOrder returns the subscriptions in the order in which types are sent, so that
// an origin hears of clusters first.
func (v *viewSync) inOrder() []*subscription {
	return slices.SortedFunc(maps.Values(v.subs), func(a, b *subscription) int {
		return cmp.Or(wire.Rank(a.typeURL)-wire.Rank(b.typeURL), cmp.Compare(a.typeURL, b.typeURL))
	})
}

// demand takes over what clients began or ceased to want.
func (v *viewSync) demand(now time.Time) {
	globs := make(map[*subscription][]string) // to ask for
	for _, d := range v.w.TakeDemand() {
		typeURL, glob, isCollection := cache.SplitCollection(d.TypeURL)
		s := v.sub(typeURL)
		switch {
		case isCollection:
			if v.demandCollection(s, glob, d, now) {
				v.asks(s, d)
				globs[s] = append(globs[s], glob)
			}
		case d.Name == nil:
			v.demandMembers(s, d, now)
		default:
			v.demandName(s, d, now)
		}
	}
	for s, names := range globs {
		if l := &v.lines[s.named]; l.open {
			v.change(l, s, names, nil, now)
		}
	}
	if v.batched > 0 && v.batchAt.IsZero() {
		v.batchAt = now.Add(batchWait)
	}
	if v.batched >= namesPerRequest {
		v.batchAt = now
	}
}

func (v *viewSync) demandMembers(s *subscription, d cache.Demand, now time.Time) {
	if !d.Wanted {
		if d.Restored {
			v.wantMembers(s, now)
		}
		s.wanted, s.until = false, now.Add(jitter(v.cfg.WildcardLinger))
		return
	}
	s.wanted, s.until = true, time.Time{}
	if s.wildcard == nowhere {
		v.asks(s, d)
	}
	v.wantMembers(s, now)
	if d.Again {
		v.askMembersAgain(s, now)
	}
}

func (v *viewSync) demandName(s *subscription, d cache.Demand, now time.Time) {
	if d.Wanted {
		v.linger.remove(d.Name)
		if _, have := s.names[d.Name]; !have {
			v.asks(s, d)
		}
		v.wantName(s, d.Name, d.Again)
		return
	}
	v.wantName(s, d.Name, false) // if it was restored: others are
	size := 0
	if e := v.w.Generation().Type(d.TypeURL).ByName.Get(d.Name); e.Present() {
		size = e.Resource.Size()
	}
	v.linger.add(d.Name, lingerer{s, now.Add(jitter(v.cfg.Linger)), size})
}

// wantMembers subscribes to the wildcard of a type. That is the first request of the type on
// its stream, or a new stream is opened for it: so every origin knows its form, and nothing
// that the origin still says of names is taken for a member.
func (v *viewSync) wantMembers(s *subscription, now time.Time) {
	if s.wildcard != nowhere {
		return
	}
	v.place(s, true)
	switch l := &v.lines[s.wildcard]; {
	case !l.open:
	case l.begun[s.typeURL]:
		v.reopenFor(s)
	default:
		s.members.Lost()
		v.request(l, s.subscribeWildcard(), now)
	}
}

// askMembersAgain has the origin say all members once more: what it said was not to
// be kept (R125). They are given up for that: to name the wildcard where the legacy
// form of it was used goes on with that, and is not answered. Nobody says of what went
// meanwhile, or was about to be said to be gone, that it did: it is looked for (B.15).
//
// To a SotW origin an empty list means all only if it opens the type, and not every server
// knows "*": that takes new streams (R048, R051).
func (v *viewSync) askMembersAgain(s *subscription, now time.Time) {
	switch l := &v.lines[s.wildcard]; {
	case !l.open:
	case l.sotw != nil && wire.LegacyWildcard(s.typeURL):
		v.reopen()
	default:
		v.rest(s.members, now)
		s.members.Restart(now)
		v.request(l, s.unsubscribeWildcard(), now)
		r := s.subscribeWildcard()
		r.ResourceNamesSubscribe = []string{wire.Wildcard}
		v.request(l, r, now)
	}
}

func (v *viewSync) wantName(s *subscription, n *cache.Name, again bool) {
	if _, have := s.names[n]; have {
		if again {
			s.again = append(s.again, n)
			v.batched++
		}
		return
	}
	s.names[n] = struct{}{}
	v.place(s, s.wildcard != nowhere)
	s.added = append(s.added, n)
	v.batched++
}

// request sends a request of a type on a line.
func (v *viewSync) request(l *adsStream, r *discoverypb.DeltaDiscoveryRequest, now time.Time) {
	l.begun[r.TypeUrl] = true
	// An origin that was told what is held need not say anything.
	if l.role == main && !l.responded && !l.versions && !v.silent && l.silentAt.IsZero() {
		l.silentAt = now.Add(silenceWait)
	}
	v.requested(r, now)
	l.request(v.node, r)
}

// act does what it is time for, and returns when to look again.
func (v *viewSync) act(ctx context.Context, now time.Time) (next time.Time) {
	at := func(t time.Time) { next = reconcile.Earlier(next, t) }
	at(v.w.Expire(now))
	at(v.expire(now))
	if !v.batchAt.IsZero() && !now.Before(v.batchAt) {
		v.flush(now)
	}
	at(v.batchAt)
	v.agenda.due(now)
	for _, s := range v.inOrder() { // clients hear of clusters first, even if all is known at once
		for _, c := range s.due {
			v.agenda.put(c, v.look(c, now))
		}
		s.due = s.due[:0]
		at(v.learned(s.members, now))
		at(v.resolve(s.members, now))
	}
	v.group.Untrusted = !v.comparison.at.IsZero()
	if v.group.Look(now) {
		v.resync()
	}
	at(v.group.Decide(now))
	v.confirm()
	at(v.reports.Check(now))
	at(v.agenda.next())
	for r := main; r <= auxiliary; r++ {
		at(v.tend(ctx, r, now))
	}
	at(v.compare(now))
	if !now.Before(v.trimAt) {
		v.w.Trim(now)
		v.trimAt = now.Add(TrimEvery)
	}
	at(v.trimAt)
	return next
}

// expire gives up what has lingered long enough.
func (v *viewSync) expire(now time.Time) (next time.Time) {
	expired, next := v.linger.expired(now, v.w.Frozen())
	for s, names := range expired {
		kept := v.w.Forget(s.typeURL, names)
		for _, n := range names {
			if !slices.Contains(kept, n) { // a kept one is in demand, and will be reported
				delete(s.names, n)
				s.gone = append(s.gone, n)
			}
		}
		v.batched += len(s.gone)
		v.batchAt = now
	}
	return reconcile.Earlier(next, v.expireMembers(now))
}

// expireMembers gives up the members of types that nobody has wanted for long enough.
func (v *viewSync) expireMembers(now time.Time) (next time.Time) {
	for _, s := range v.subs {
		if s.wanted || s.prewarm || s.wildcard == nowhere || s.until.IsZero() {
			continue
		}
		if now.Before(s.until) {
			next = reconcile.Earlier(next, s.until)
			continue
		}
		if v.w.Frozen() {
			continue // those who come back are to find what there was
		}
		s.until = time.Time{}
		if !v.w.ForgetMembers(s.typeURL) {
			continue // wanted again, and about to be reported
		}
		v.rest(s.members, now)
		l := &v.lines[s.wildcard]
		s.members.Reset()
		v.place(s, false)
		if l.open {
			v.request(l, s.unsubscribeWildcard(), now)
		}
		v.forget(s)
	}
	return next
}

// forget drops the subscription of a type that the protocol does not know and of which nothing is wanted: there may be as many as
// clients make up.
func (v *viewSync) forget(s *subscription) {
	if s.wildcard == nowhere && s.named == nowhere && len(s.added)+len(s.again)+len(s.gone) == 0 && !s.wanted && !s.prewarm && !wire.Known(s.typeURL) {
		v.group.Drop(s.members.Set)
		v.group.Drop(s.byName.Set)
		delete(v.subs, s.typeURL)
	}
}

// flush sends changes of the names that are wanted.
func (v *viewSync) flush(now time.Time) {
	v.batchAt, v.batched = time.Time{}, 0
	for _, s := range v.inOrder() {
		if len(s.added)+len(s.again)+len(s.gone) == 0 {
			continue
		}
		if l := &v.lines[s.named]; l.open {
			reqs, asked := s.changes()
			for i, r := range reqs {
				v.request(l, r, now)
				if i < len(reqs)-1 && len(r.GetResourceNamesUnsubscribe()) > 0 {
					l.flush(v.node) // what is given up to be asked for again is not one change
				}
			}
			v.w.Asked(asked, now)
		}
		s.added, s.again, s.gone = nil, nil, nil // a stream that opens later states all names
		v.place(s, s.wildcard != nowhere)
		v.forget(s)
	}
}

// learned publishes what the silence of the origin says about a wildcard set or a collection.
func (v *viewSync) learned(s *set, now time.Time) (next time.Time) {
	if s.role() == nowhere {
		return time.Time{}
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
func (v *viewSync) setPhase(key string, p cache.Phase, now time.Time) {
	if p == cache.Confirmed {
		v.reports.Confirm(cache.ReportedSet{Key: key, Kind: cache.Wildcard}, now, now)
	}
	v.w.SetPhase(key, p)
}

// wanted reports whether a stream has anything to carry.
func (v *viewSync) wanted(r role) bool {
	for _, s := range v.subs {
		if s.wants(r) {
			return true
		}
	}
	return false
}

// tend opens a stream that is wanted, closes one that is not, and says when one
// is silent.
func (v *viewSync) tend(ctx context.Context, r role, now time.Time) (next time.Time) {
	l, wanted := &v.lines[r], v.wanted(r)
	switch {
	case l.stream == nil && wanted && (r == main || v.lines[main].open):
		return v.open(ctx, l, r, now)
	case l.stream == nil:
		v.session.pace.leave(l)
	case l.stream != nil && !wanted && r == auxiliary && l.open:
		l.replace()
	case l.silent(now):
		l.silentAt, v.silent = time.Time{}, true
		v.log.Warn("the origin accepted the stream and says nothing: it may not know the node that was presented to it; "+
			"TENDER_NODE_ID, TENDER_NODE_CLUSTER, TENDER_NODE_METADATA and TENDER_NODE_GROUP_BY shape it",
			slog.String("node_id", v.node.GetId()), slog.String("node_cluster", v.node.GetCluster()))
	}
	return l.silentAt
}

// open opens a stream, or returns when to look again. What waiting spares is an
// origin that takes streams and ends them; one that could not be reached is asked
// as soon as it can be.
func (v *viewSync) open(ctx context.Context, l *adsStream, r role, now time.Time) (next time.Time) {
	if now.Before(l.retryAt) {
		if !l.unconnected {
			return l.retryAt
		}
		if !v.session.up(v.session.target()) {
			return reconcile.Earlier(l.retryAt, now.Add(connectedEvery))
		}
	}
	if next, ok := v.session.pace.take(l, now); !ok {
		return next
	}
	if r == main {
		v.moved = v.session.moved() // before target, or a change could be missed
		if target := v.session.target(); v.target != target {
			v.attempts().left(v)
			v.target = target
		}
		v.attempts().began(v)
	}
	l.stream = v.session.open(ctx, v.target, r, v.speaksSotW(r), v.events)
	l.open, l.versions, l.silentAt = false, false, time.Time{}
	v.running++
	return time.Time{}
}

func (v *viewSync) event(e event, now time.Time) {
	l := &v.lines[e.stream.role]
	if e.ended {
		v.running--
	}
	if l.stream != e.stream || e.stream.replaced && !e.ended {
		return // of a stream that was given up
	}
	switch {
	case e.ended:
		v.ended(l, e.err, now)
	case e.opened:
		v.opened(l, now)
	default:
		v.update(l, e, now)
	}
}

// opened states on a new stream all that is wanted: nothing survives from an
// earlier one (R088).
func (v *viewSync) opened(l *adsStream, now time.Time) {
	l.open, l.openedAt = true, now
	v.session.counters.streams.Add(1)
	if l.role == main {
		v.log.Info("connected to the origin", slog.String("origin", v.cfg.Targets[v.target]))
		v.w.SetConnected(true)
	}
	for _, s := range v.inOrder() {
		v.restate(l, s, now)
	}
	v.resumed(l, now)
}

// restate asks for everything that a stream carries, now that it is open.
func (v *viewSync) restate(l *adsStream, s *subscription, now time.Time) {
	switch {
	case s.wildcard == l.role:
		v.rest(s.members, now)
	case s.sweepsOn(l.role):
		s.members.Ask(nil, now)
	}
	reqs, asked := s.restate(l.role, v.w.Generation(), v.mayResume(l))
	var told map[string]string
	for i, r := range reqs {
		if i == 0 && !v.ignores {
			told = r.InitialResourceVersions
		}
		l.versions = l.versions || i == 0 && r.InitialResourceVersions != nil
		v.request(l, r, now)
	}
	for set := range s.sets {
		if set.role() == l.role {
			set.begin(told, now)
		}
	}
	for _, c := range s.collections {
		v.agenda.put(c, now)
	}
	v.w.Asked(asked, now)
}

// ended decides when to open the stream again.
func (v *viewSync) ended(l *adsStream, err error, now time.Time) {
	served, role, other := l.served(now), l.role, v.otherVariant(l, err)
	held := l.open && now.Sub(l.openedAt) >= heldFor
	l.stream, l.open, l.unconnected, l.silentAt = nil, false, false, time.Time{}
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
		l.unconnected = !v.session.up(v.target)
		if role == main && v.session.failed(v.target, v, err) {
			v.session.leave(v.target)
		}
	}
	l.retryAt = now.Add(wait)
	for s := range v.sets {
		if s.role() == role {
			s.Lost()
		}
	}
	if !other {
		v.logEnd(role, err, wait)
	}
	if role == auxiliary {
		v.unasked()
	} else {
		v.w.SetConnected(false)
		v.comparison.lost(err)
		v.lines[auxiliary].replace()
	}
}

// backOff returns how long to wait after a stream without a response. An origin that
// held it for a while is spared enough, and the waits begin anew.
func (l *adsStream) backOff(held bool) time.Duration {
	if held {
		l.retry.Reset()
		return rand.N(ReconnectMax)
	}
	return l.retry.NextBackOff()
}

func (v *viewSync) logEnd(r role, err error, wait time.Duration) {
	retry := slog.Duration("retry_in", wait.Round(time.Millisecond))
	v.session.noteEnd(err)
	switch {
	case errors.Is(err, errResync), errors.Is(err, context.Canceled): // the latter: Mirror is about to return
	case status.Code(err) == codes.Unimplemented:
		v.log.Warn("the origin does not implement the variant of ADS that TENDER_ORIGIN_PROTOCOL allows: auto allows both, delta and sotw one",
			slog.String("protocol", v.cfg.Protocol.String()), slog.String("stream", r.String()), slog.Any("err", err), retry)
	case status.Code(err) == codes.FailedPrecondition:
		v.log.Error("the origin cannot be used by this relay until a configuration is changed: what is held is served, and does not change",
			slog.String("stream", r.String()), slog.Any("err", err), retry)
	case v.cfg.tooLarge(err):
		v.log.Error("a response of the origin is larger than TENDER_MAX_ORIGIN_RESPONSE_BYTES: what is held is served, and does not change",
			slog.String("stream", r.String()), slog.Any("err", err), retry)
	case errors.Is(err, io.EOF):
		v.log.Info("the origin closed the stream", slog.String("stream", r.String()), retry)
	default:
		v.log.Warn("stream to the origin ended", slog.String("stream", r.String()), slog.Any("err", err), retry)
	}
}

// unasked records that what was asked for on the auxiliary stream no longer is
// (R136).
func (v *viewSync) unasked() {
	for _, s := range v.subs {
		if s.named == auxiliary {
			v.w.Asked(slices.Collect(maps.Keys(s.names)), time.Time{})
		}
	}
}

// update takes a response: it is applied whole and acknowledged, or refused and
// changes nothing (B.9).
func (v *viewSync) update(l *adsStream, e event, now time.Time) {
	u, err := e.update, e.err
	trace := v.trace(u, e.at)
	if trace != nil {
		defer func(log *slog.Logger) { v.log = log }(v.log)
		v.log = traced(v.log, trace)
		defer func() { trace.Answered(err) }()
	}
	l.silentAt, v.silent = time.Time{}, false
	defer func() { v.session.counters.answered(u.TypeURL, err != nil) }()
	if err != nil {
		v.log.Warn("refused a response of the origin", slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce), slog.Any("err", err))
		if u.TypeURL == "" || u.Nonce == "" {
			l.cancel(err) // nothing to refuse it by
			return
		}
		l.answer(v.node, u, err)
		return
	}
	if err = refusal(u); err != nil {
		v.log.Warn("refused resources of the origin", slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce), slog.Any("err", err))
	}
	if !l.responded {
		v.attempts().responded()
	}
	l.responded, l.full = true, false
	l.retry.Reset()
	if v.source != v.target {
		v.serverChanged()
	}
	if s := v.subs[u.TypeURL]; s != nil {
		v.w.SetCause(CauseOf(trace, e.at))
		v.apply(s, l.role, u, now)
		v.w.SetCause(cache.Cause{})
	}
	v.sameServer(u.ControlPlane)
	v.comparison.heard = now
	if u.Nonce != "" { // without it, an ACK would be a request
		l.answer(v.node, u, err)
	}
}

// refusal returns why not all of a response was taken: it names the first of the resources that are larger
// than allowed, and tells how many there are.
func refusal(u wire.Update) error {
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

func (v *viewSync) apply(s *subscription, r role, u wire.Update, now time.Time) {
	u = v.withOmissions(s, r, u, now)
	if s.sweepsOn(r) {
		s.members.Answered(u, now)
	}
	var c cache.Change
	switch r {
	case s.wildcard:
		c = v.take(s.members, u, now)
	case s.named:
		c = v.take(s.byName, v.applyCollections(s, u, now), now)
	default:
		return // subscribed to no longer (R096)
	}
	if v.ignores && c.Same > 0 {
		v.comparison.at = time.Time{} // it resends all
	}
	v.warn(u, c)
	v.log.LogAttrs(context.Background(), slog.LevelDebug, "response applied", // allocates nothing unless it is logged
		slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce),
		slog.Int("changed", c.Changed), slog.Int("removed", c.Removed), slog.Int("ignored", c.Ignored))
}

// warn tells what an origin should not have done.
func (v *viewSync) warn(u wire.Update, c cache.Change) {
	if len(c.Reused) > 0 && !v.reused && !v.cfg.ContentVersions {
		v.reused = true
		v.log.Warn("the origin gave different content the same version: its versions are not believed from now on; "+
			"TENDER_DELTA_VERSIONS=content makes versions from content",
			slog.String("type_url", u.TypeURL), slog.String("name", c.Reused[0]))
	}
	if len(c.Ambiguous) > 0 {
		v.log.Warn("the origin gave several variants of a resource for the same parameters: the first counts",
			slog.String("type_url", u.TypeURL), slog.String("name", c.Ambiguous[0]), slog.String("nonce", u.Nonce))
	}
}
