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
)

const (
	batchWait    = 5 * time.Millisecond   // demand that comes within it is one request (B.5)
	reconnectMax = 500 * time.Millisecond // before a stream that was served is opened again
	silenceWait  = 10 * time.Second       // before an origin that does not answer is worth a line (B.4)
	trimEvery    = 10 * time.Second

	connectedEvery = time.Second // is looked whether an origin can be reached again

	heldFor = 5 * time.Second // a stream without a response is held by an origin that need not be spared
)

// errResync ends a stream that the relay itself wants to open anew.
var errResync = errors.New("resync")

// A mirror keeps one view like its origin. All of it belongs to its loop.
type mirror struct {
	session *Session
	cfg     *Config
	w       *cache.Writer
	log     *slog.Logger
	control *Control // nil if there is none

	node *corepb.Node // whom the origin takes the relay for

	events  chan event
	running int // streams whose end has not been told
	lines   [auxiliary + 1]line

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
	stays      int                 // resources that are there although the origin seems to have removed them
	comparison comparison          // of all content, after a resume
	reported   *reported           // what returning clients hold and the view has never known
	reused     bool                // reuse of versions was logged
	silent     bool                // the silence of the origin was logged
}

// A line is one of the two streams to the origin: what is there now, and when to
// try again.
type line struct {
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
func (l *line) served(now time.Time) bool {
	return l.responded || l.open && l.versions && now.Sub(l.openedAt) >= silenceWait
}

// silent reports whether it is time to warn that nothing came.
func (l *line) silent(now time.Time) bool {
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
func (s *Session) Mirror(ctx context.Context, node *corepb.Node, w *cache.Writer, log *slog.Logger, control *Control) {
	m := &mirror{
		session: s,
		cfg:     &s.cfg,
		node:    node,
		w:       w,
		log:     log,
		control: control,
		events:  make(chan event),
		subs:    make(map[string]*subscription),
		linger:  newLingering(s.cfg.MaxLingering, s.cfg.MaxLingeringBytes),
	}
	m.reported = m.reports()
	from := w.Source() // of a view that was restored, what the snapshot says (B.42)
	m.source, m.identifier = slices.Index(s.cfg.Targets, from.Target), from.Identifier
	for r := range m.lines {
		m.lines[r].retry = &backoff.ExponentialBackOff{
			InitialInterval: time.Second, Multiplier: 1.6, RandomizationFactor: 0.2, MaxInterval: 30 * time.Second,
		}
		m.lines[r].retry.Reset()
	}
	for _, typeURL := range s.cfg.Prewarm {
		if !w.Owns(typeURL) {
			continue
		}
		sub := m.sub(typeURL)
		sub.prewarm = true
		sub.place(true)
	}
	m.run(ctx)
}

func (m *mirror) run(ctx context.Context) {
	timer := time.NewTimer(trimEvery) // of what act says is next
	defer timer.Stop()
	defer m.stop()
	defer m.control.end()
	m.control.begin(m)
	for {
		timer.Stop()
		next := m.act(ctx, time.Now())
		m.flushLists()
		m.control.setHolding(m.stays > 0 || len(m.reported.sets) > 0)
		if !next.IsZero() {
			timer.Reset(until(next))
		}
		select {
		case <-m.w.Demand():
			m.demand(time.Now())
		case e := <-m.events:
			m.event(e, time.Now())
		case call := <-m.control.waiting():
			call(m)
		case <-m.moved:
			if m.moved = m.session.moved(); m.target != m.session.target() {
				m.move(time.Now())
			}
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// attempts returns those of the target in use.
func (m *mirror) attempts() *attempts { return &m.session.links[m.target].attempts }

// move goes on at another target, at once.
func (m *mirror) move(now time.Time) {
	for r := range m.lines {
		m.lines[r].retryAt = now.Add(rand.N(reconnectMax))
	}
	m.reopen()
}

// until returns how long a timer is to wait for a time: a moment, for one that has come,
// since a timer that fires while it is set crashes the race detector where two do so at
// once in a bubble of testing/synctest.
func until(t time.Time) time.Duration { return max(time.Until(t), time.Nanosecond) }

// stop ends the streams and waits for their goroutines.
func (m *mirror) stop() {
	for r := range m.lines {
		l := &m.lines[r]
		m.session.pace.leave(l)
		if l.stream != nil {
			l.cancel(context.Canceled)
		}
	}
	for m.running > 0 {
		if e := <-m.events; e.ended {
			m.running--
		}
	}
	m.endComparison()
	m.attempts().left(m)
	m.w.SetConnected(false)
	for _, g := range m.guards() {
		m.drop(g.removals)
	}
	m.reported.end()
}

func (m *mirror) sub(typeURL string) *subscription {
	s := m.subs[typeURL]
	if s == nil {
		s = &subscription{typeURL: typeURL, names: make(map[*cache.Name]struct{})}
		m.subs[typeURL] = s
	}
	return s
}

// inOrder returns the subscriptions in the order in which types are sent, so that
// an origin hears of clusters first.
func (m *mirror) inOrder() []*subscription {
	return slices.SortedFunc(maps.Values(m.subs), func(a, b *subscription) int {
		return cmp.Or(wire.Rank(a.typeURL)-wire.Rank(b.typeURL), cmp.Compare(a.typeURL, b.typeURL))
	})
}

// demand takes over what clients began or ceased to want.
func (m *mirror) demand(now time.Time) {
	globs := make(map[*subscription][]string) // to ask for
	for _, d := range m.w.TakeDemand() {
		typeURL, glob, isCollection := cache.SplitCollection(d.TypeURL)
		s := m.sub(typeURL)
		switch {
		case isCollection:
			if m.demandCollection(s, glob, d, now) {
				m.asks(s, d)
				globs[s] = append(globs[s], glob)
			}
		case d.Name == nil:
			m.demandMembers(s, d, now)
		default:
			m.demandName(s, d, now)
		}
	}
	for s, names := range globs {
		if l := &m.lines[s.named]; l.open {
			m.change(l, s, names, nil, now)
		}
	}
	if m.batched > 0 && m.batchAt.IsZero() {
		m.batchAt = now.Add(batchWait)
	}
	if m.batched >= namesPerRequest {
		m.batchAt = now
	}
}

func (m *mirror) demandMembers(s *subscription, d cache.Demand, now time.Time) {
	if !d.Wanted {
		if d.Restored {
			m.wantMembers(s, now)
		}
		s.wanted, s.until = false, now.Add(jitter(m.cfg.WildcardLinger))
		return
	}
	s.wanted, s.until = true, time.Time{}
	if s.wildcard == nowhere {
		m.asks(s, d)
	}
	m.wantMembers(s, now)
	if d.Again {
		m.askMembersAgain(s, now)
	}
}

func (m *mirror) demandName(s *subscription, d cache.Demand, now time.Time) {
	if d.Wanted {
		m.linger.remove(d.Name)
		if _, have := s.names[d.Name]; !have {
			m.asks(s, d)
		}
		m.wantName(s, d.Name, d.Again)
		return
	}
	m.wantName(s, d.Name, false) // if it was restored: others are
	size := 0
	if e := m.w.Head().Type(d.TypeURL).Named.Get(d.Name); e.Present() {
		size = e.Resource.Size()
	}
	m.linger.add(d.Name, lingerer{s, now.Add(jitter(m.cfg.Linger)), size})
}

// wantMembers subscribes to the wildcard of a type. That is the first request of the type on
// its stream, or a new stream is opened for it: so every origin knows its form, and nothing
// that the origin still says of names is taken for a member.
func (m *mirror) wantMembers(s *subscription, now time.Time) {
	if s.wildcard != nowhere {
		return
	}
	m.place(s, true)
	switch l := &m.lines[s.wildcard]; {
	case !l.open:
	case l.begun[s.typeURL]:
		m.reopenFor(s)
	default:
		s.learn = learning{}
		m.request(l, s.subscribeWildcard(), now)
	}
}

// askMembersAgain has the origin say all members once more: what it said was not to
// be kept (R125). They are given up for that: to name the wildcard where the legacy
// form of it was used goes on with that, and is not answered. Nobody says of what went
// meanwhile, or was about to be said to be gone, that it did: it is looked for (B.15).
//
// To a SotW origin an empty list means all only if it opens the type, and not every server
// knows "*": that takes new streams (R048, R051).
func (m *mirror) askMembersAgain(s *subscription, now time.Time) {
	switch l := &m.lines[s.wildcard]; {
	case !l.open:
	case l.sotw != nil && wire.LegacyWildcard(s.typeURL):
		m.reopen()
	default:
		m.letGo(s, now)
		s.sweep.begin(m.w.Head().Type(s.typeURL), s.removals[cache.Members].kept, false, now)
		m.request(l, s.unsubscribeWildcard(), now)
		r := s.subscribeWildcard()
		r.ResourceNamesSubscribe = []string{wire.Wildcard}
		m.request(l, r, now)
	}
}

func (m *mirror) wantName(s *subscription, n *cache.Name, again bool) {
	if _, have := s.names[n]; have {
		if again {
			s.again = append(s.again, n)
			m.batched++
		}
		return
	}
	s.names[n] = struct{}{}
	m.place(s, s.wildcard != nowhere)
	s.added = append(s.added, n)
	m.batched++
}

// request sends a request of a type on a line.
func (m *mirror) request(l *line, r *discoverypb.DeltaDiscoveryRequest, now time.Time) {
	l.begun[r.TypeUrl] = true
	// An origin that was told what is held need not say anything.
	if l.role == main && !l.responded && !l.versions && !m.silent && l.silentAt.IsZero() {
		l.silentAt = now.Add(silenceWait)
	}
	m.requested(r, now)
	l.request(m.node, r)
}

// act does what it is time for, and returns when to look again.
func (m *mirror) act(ctx context.Context, now time.Time) (next time.Time) {
	at := func(t time.Time) { next = earlier(next, t) }
	at(m.w.Expire(now))
	at(m.expire(now))
	if !m.batchAt.IsZero() && !now.Before(m.batchAt) {
		m.flush(now)
	}
	at(m.batchAt)
	m.agenda.due(now)
	order := m.inOrder()
	for _, s := range order { // clients hear of clusters first, even if all is known at once
		for _, c := range s.due {
			m.agenda.put(c, m.look(c, now))
		}
		s.due = s.due[:0]
		at(m.learned(s, now))
		at(m.sweep(s, now))
	}
	for _, s := range slices.Backward(order) { // what refers to it goes before a cluster
		for _, g := range s.guards() {
			at(m.decide(g, now))
		}
	}
	at(m.reported.look(now))
	at(m.agenda.next())
	for r := main; r <= auxiliary; r++ {
		at(m.tend(ctx, r, now))
	}
	at(m.compare(now))
	if !now.Before(m.trimAt) {
		m.w.Trim(now)
		m.trimAt = now.Add(trimEvery)
	}
	at(m.trimAt)
	return next
}

// expire gives up what has lingered long enough.
func (m *mirror) expire(now time.Time) (next time.Time) {
	expired, next := m.linger.expired(now, m.w.Frozen())
	for s, names := range expired {
		kept := m.w.Forget(s.typeURL, names)
		for _, n := range names {
			if !slices.Contains(kept, n) { // a kept one is in demand, and will be reported
				delete(s.names, n)
				s.gone = append(s.gone, n)
			}
		}
		m.batched += len(s.gone)
		m.batchAt = now
	}
	return earlier(next, m.expireMembers(now))
}

// expireMembers gives up the members of types that nobody has wanted for long enough.
func (m *mirror) expireMembers(now time.Time) (next time.Time) {
	for _, s := range m.subs {
		if s.wanted || s.prewarm || s.wildcard == nowhere || s.until.IsZero() {
			continue
		}
		if now.Before(s.until) {
			next = earlier(next, s.until)
			continue
		}
		if m.w.Frozen() {
			continue // those who come back are to find what there was
		}
		s.until = time.Time{}
		if !m.w.ForgetMembers(s.typeURL) {
			continue // wanted again, and about to be reported
		}
		m.letGo(s, now)
		l := &m.lines[s.wildcard]
		s.learn, s.foreign[cache.Members] = learning{}, nil
		m.drop(&s.removals[cache.Members])
		m.place(s, false)
		if l.open {
			m.request(l, s.unsubscribeWildcard(), now)
		}
		m.forget(s)
	}
	return next
}

// forget drops the subscription of a type that the protocol does not know and of which nothing is wanted: there may be as many as
// clients make up.
func (m *mirror) forget(s *subscription) {
	if s.wildcard == nowhere && s.named == nowhere && len(s.added)+len(s.again)+len(s.gone) == 0 && !s.wanted && !s.prewarm && !wire.Known(s.typeURL) {
		delete(m.subs, s.typeURL)
	}
}

// flush sends changes of the names that are wanted.
func (m *mirror) flush(now time.Time) {
	m.batchAt, m.batched = time.Time{}, 0
	for _, s := range m.inOrder() {
		if len(s.added)+len(s.again)+len(s.gone) == 0 {
			continue
		}
		if l := &m.lines[s.named]; l.open {
			reqs, asked := s.changes()
			for i, r := range reqs {
				m.request(l, r, now)
				if i < len(reqs)-1 && len(r.GetResourceNamesUnsubscribe()) > 0 {
					l.flush(m.node) // what is given up to be asked for again is not one change
				}
			}
			m.w.Asked(asked, now)
		}
		s.added, s.again, s.gone = nil, nil, nil // a stream that opens later states all names
		m.place(s, s.wildcard != nowhere)
		m.forget(s)
	}
}

// learned publishes what the silence of the origin says about the members.
func (m *mirror) learned(s *subscription, now time.Time) (next time.Time) {
	if s.wildcard == nowhere {
		return time.Time{}
	}
	return m.learnedOf(s.typeURL, &s.learn, s.sweep.none(), now)
}

// learnedOf is learned for a set, of which the origin has mentioned all that is held if covered is set.
func (m *mirror) learnedOf(key string, l *learning, covered bool, now time.Time) (next time.Time) {
	t := m.w.Head().Type(key)
	p, next := l.phase(now, t.Phase, m.cfg.ColdWait)
	if p != t.Phase {
		m.setPhase(key, p, now)
		typeURL, glob, _ := cache.SplitCollection(key)
		m.log.Debug("members known", slog.String("type_url", typeURL), slog.String("name", cmp.Or(glob, wire.Wildcard)),
			slog.String("phase", p.String()))
	}
	if covered && t.Restored && !t.Covered && p == cache.Settled && t.Members.Count() > 0 && l.isSettled(now) {
		m.w.SetCovered(key)
	}
	return next
}

// setPhase publishes how much is known of a set.
func (m *mirror) setPhase(key string, p cache.Phase, now time.Time) {
	if p == cache.Confirmed {
		m.reported.confirm(cache.ReportedSet{Key: key, Kind: cache.Members}, now, now)
	}
	m.w.SetPhase(key, p)
}

// wanted reports whether a stream has anything to carry.
func (m *mirror) wanted(r role) bool {
	for _, s := range m.subs {
		if s.wants(r) {
			return true
		}
	}
	return false
}

// tend opens a stream that is wanted, closes one that is not, and says when one
// is silent.
func (m *mirror) tend(ctx context.Context, r role, now time.Time) (next time.Time) {
	l, wanted := &m.lines[r], m.wanted(r)
	switch {
	case l.stream == nil && wanted && (r == main || m.lines[main].open):
		return m.open(ctx, l, r, now)
	case l.stream == nil:
		m.session.pace.leave(l)
	case l.stream != nil && !wanted && r == auxiliary && l.open:
		l.replace()
	case l.silent(now):
		l.silentAt, m.silent = time.Time{}, true
		m.log.Warn("the origin accepted the stream and says nothing: it may not know the node that was presented to it; "+
			"TENDER_NODE_ID, TENDER_NODE_CLUSTER, TENDER_NODE_METADATA and TENDER_NODE_GROUP_BY shape it",
			slog.String("node_id", m.node.GetId()), slog.String("node_cluster", m.node.GetCluster()))
	}
	return l.silentAt
}

// open opens a stream, or returns when to look again. What waiting spares is an
// origin that takes streams and ends them; one that could not be reached is asked
// as soon as it can be.
func (m *mirror) open(ctx context.Context, l *line, r role, now time.Time) (next time.Time) {
	if now.Before(l.retryAt) {
		if !l.unconnected {
			return l.retryAt
		}
		if !m.session.up(m.session.target()) {
			return earlier(l.retryAt, now.Add(connectedEvery))
		}
	}
	if next, ok := m.session.pace.take(l, now); !ok {
		return next
	}
	if r == main {
		m.moved = m.session.moved() // before target, or a change could be missed
		if target := m.session.target(); m.target != target {
			m.attempts().left(m)
			m.target = target
		}
		m.attempts().began(m)
	}
	l.stream = m.session.open(ctx, m.target, r, m.speaksSotW(r), m.events)
	l.open, l.versions, l.silentAt = false, false, time.Time{}
	m.running++
	return time.Time{}
}

func (m *mirror) event(e event, now time.Time) {
	l := &m.lines[e.stream.role]
	if e.ended {
		m.running--
	}
	if l.stream != e.stream || e.stream.replaced && !e.ended {
		return // of a stream that was given up
	}
	switch {
	case e.ended:
		m.ended(l, e.err, now)
	case e.opened:
		m.opened(l, now)
	default:
		m.update(l, e, now)
	}
}

// opened states on a new stream all that is wanted: nothing survives from an
// earlier one (R088).
func (m *mirror) opened(l *line, now time.Time) {
	l.open, l.openedAt = true, now
	m.session.counters.streams.Add(1)
	if l.role == main {
		m.log.Info("connected to the origin", slog.String("origin", m.cfg.Targets[m.target]))
		m.w.SetConnected(true)
	}
	for _, s := range m.inOrder() {
		m.restate(l, s, now)
	}
	m.resumed(l, now)
}

// doubt begins to learn of the members anew, on a new stream on which the origin is told what is held, or is not.
func (m *mirror) doubt(s *subscription, t *cache.Type, told bool, now time.Time) {
	m.letGo(s, now)
	if s.learn = (learning{}); told && t.Restored {
		s.learn.told = now
	}
	s.sweep.begin(t, s.removals[cache.Members].kept, told && !m.ignores, now)
}

// resumable reports whether an origin may be told which members are held: a set that was not complete could not
// be told from one that shrank.
func resumable(t *cache.Type) bool { return t.Phase == cache.Confirmed || t.Restored }

// expectAll notes that the sets that a stream carries are about to be said anew.
func (m *mirror) expectAll(s *subscription, l *line) {
	for _, g := range s.all() {
		if g.role == l.role {
			g.removals.begin(m.count(g) > 0, m.mayResume(l))
			m.recount(g.removals)
		}
	}
}

// restate asks for everything that a stream carries, now that it is open.
func (m *mirror) restate(l *line, s *subscription, now time.Time) {
	head := m.w.Head()
	t := head.Type(s.typeURL)
	carries := s.wildcard == l.role
	withVersions := m.mayResume(l) && (!carries || resumable(t))
	if s.sweepsOn(l.role) {
		s.sweep.renew(now)
	}
	m.expectAll(s, l)
	reqs, asked := s.restate(l.role, head, withVersions)
	if carries {
		m.doubt(s, t, reqs[0].InitialResourceVersions != nil, now)
	}
	if s.named == l.role && len(reqs) > 0 {
		m.trust(s, reqs[0].InitialResourceVersions != nil && !m.ignores, now)
	}
	for i, r := range reqs {
		l.versions = l.versions || i == 0 && r.InitialResourceVersions != nil
		m.request(l, r, now)
	}
	m.w.Asked(asked, now)
}

// ended decides when to open the stream again.
func (m *mirror) ended(l *line, err error, now time.Time) {
	served, role, other := l.served(now), l.role, m.otherVariant(l, err)
	held := l.open && now.Sub(l.openedAt) >= heldFor
	l.stream, l.open, l.unconnected, l.silentAt = nil, false, false, time.Time{}
	wait := time.Duration(0)
	switch {
	case other && role == main, errors.Is(err, errResync):
	case other: // the main stream finds out what is spoken
		wait = reconnectMax
	case served:
		l.retry.Reset()
		wait = rand.N(reconnectMax)
	default:
		wait = l.backOff(held)
		l.unconnected = !m.session.up(m.target)
		if role == main && m.session.failed(m.target, m, err) {
			m.session.leave(m.target)
		}
	}
	l.retryAt = now.Add(wait)
	for _, s := range m.subs {
		s.unlearn(role)
	}
	if !other {
		m.logEnd(role, err, wait)
	}
	if role == auxiliary {
		m.unasked()
	} else {
		m.w.SetConnected(false)
		m.comparison.lost(err)
		m.lines[auxiliary].replace()
	}
}

// backOff returns how long to wait after a stream without a response. An origin that
// held it for a while is spared enough, and the waits begin anew.
func (l *line) backOff(held bool) time.Duration {
	if held {
		l.retry.Reset()
		return rand.N(reconnectMax)
	}
	return l.retry.NextBackOff()
}

func (m *mirror) logEnd(r role, err error, wait time.Duration) {
	retry := slog.Duration("retry_in", wait.Round(time.Millisecond))
	m.session.noteEnd(err)
	switch {
	case errors.Is(err, errResync), errors.Is(err, context.Canceled): // the latter: Mirror is about to return
	case status.Code(err) == codes.Unimplemented:
		m.log.Warn("the origin does not implement the variant of ADS that TENDER_ORIGIN_PROTOCOL allows: auto allows both, delta and sotw one",
			slog.String("protocol", m.cfg.Protocol.String()), slog.String("stream", r.String()), slog.Any("err", err), retry)
	case status.Code(err) == codes.FailedPrecondition:
		m.log.Error("the origin cannot be used by this relay until a configuration is changed: what is held is served, and does not change",
			slog.String("stream", r.String()), slog.Any("err", err), retry)
	case m.cfg.tooLarge(err):
		m.log.Error("a response of the origin is larger than TENDER_MAX_ORIGIN_RESPONSE_BYTES: what is held is served, and does not change",
			slog.String("stream", r.String()), slog.Any("err", err), retry)
	case errors.Is(err, io.EOF):
		m.log.Info("the origin closed the stream", slog.String("stream", r.String()), retry)
	default:
		m.log.Warn("stream to the origin ended", slog.String("stream", r.String()), slog.Any("err", err), retry)
	}
}

// unasked records that what was asked for on the auxiliary stream no longer is
// (R136).
func (m *mirror) unasked() {
	for _, s := range m.subs {
		if s.named == auxiliary {
			m.w.Asked(slices.Collect(maps.Keys(s.names)), time.Time{})
		}
	}
}

// update takes a response: it is applied whole and acknowledged, or refused and
// changes nothing (B.9).
func (m *mirror) update(l *line, e event, now time.Time) {
	u, err := e.update, e.err
	trace := m.trace(u, e.at)
	if trace != nil {
		defer func(log *slog.Logger) { m.log = log }(m.log)
		m.log = traced(m.log, trace)
		defer func() { trace.Answered(err) }()
	}
	l.silentAt, m.silent = time.Time{}, false
	defer func() { m.session.counters.answered(u.TypeURL, err != nil) }()
	if err != nil {
		m.log.Warn("refused a response of the origin", slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce), slog.Any("err", err))
		if u.TypeURL == "" || u.Nonce == "" {
			l.cancel(err) // nothing to refuse it by
			return
		}
		l.answer(m.node, u, err)
		return
	}
	if err = refusal(u); err != nil {
		m.log.Warn("refused resources of the origin", slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce), slog.Any("err", err))
	}
	if !l.responded {
		m.attempts().responded()
	}
	l.responded, l.full = true, false
	l.retry.Reset()
	if m.source != m.target {
		m.estrange()
	}
	if s := m.subs[u.TypeURL]; s != nil {
		m.w.SetCause(causeOf(trace, e.at))
		m.apply(s, l.role, u, now)
		m.w.SetCause(cache.Cause{})
	}
	m.vouch()
	m.met(u.ControlPlane)
	m.comparison.heard = now
	if u.Nonce != "" { // without it, an ACK would be a request
		l.answer(m.node, u, err)
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

func (m *mirror) apply(s *subscription, r role, u wire.Update, now time.Time) {
	u = m.withOmissions(s, r, u, now)
	if s.sweepsOn(r) {
		s.sweep.answered(u, now)
	}
	var c cache.Change
	switch r {
	case s.wildcard:
		c = m.take(s.guards()[cache.Members], u, now)
		if !u.Fails(wire.Wildcard) { // which would say nothing about what there is
			s.learn.heard(now, c.New > 0, m.cfg.ColdWait)
		}
		if s.sweep.heard(u, c, now) {
			m.ignoresVersions(now)
		}
	case s.named:
		u = m.applyCollections(s, u, now)
		c = m.take(s.guards()[cache.Named], u, now)
		s.learnNames.heard(now, c.New > 0, m.cfg.ColdWait)
	default:
		return // subscribed to no longer (R096)
	}
	if m.ignores && c.Same > 0 {
		m.comparison.at = time.Time{} // it resends all
	}
	m.warn(u, c)
	m.log.LogAttrs(context.Background(), slog.LevelDebug, "response applied", // allocates nothing unless it is logged
		slog.String("type_url", u.TypeURL), slog.String("nonce", u.Nonce),
		slog.Int("changed", c.Changed), slog.Int("removed", c.Removed), slog.Int("ignored", c.Ignored))
}

// warn tells what an origin should not have done.
func (m *mirror) warn(u wire.Update, c cache.Change) {
	if len(c.Reused) > 0 && !m.reused && !m.cfg.ContentVersions {
		m.reused = true
		m.log.Warn("the origin gave different content the same version: its versions are not believed from now on; "+
			"TENDER_DELTA_VERSIONS=content makes versions from content",
			slog.String("type_url", u.TypeURL), slog.String("name", c.Reused[0]))
	}
	if len(c.Ambiguous) > 0 {
		m.log.Warn("the origin gave several variants of a resource for the same parameters: the first counts",
			slog.String("type_url", u.TypeURL), slog.String("name", c.Ambiguous[0]), slog.String("nonce", u.Nonce))
	}
}
