package upstream

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Some origins end a stream because of one subscription: go-control-plane if it has no cache for a type, others for a
// malformed name. On a shared stream, one client would interrupt all others. So the relay isolates such subscriptions
// (B.48): it moves them to a branch, which has streams of its own.
//
// Normally a view has one branch, the trunk, and this file does nothing. When a stream ends, the relay decides which of
// its subscriptions may be the cause:
//
//   - If the connection has survived, those that were added after the stream before it ended, and less than aliveAfter
//     before this one ended. They move to a new branch.
//   - If the stream ended before it was alive for aliveAfter, and so did the one before, each subscription. The relay
//     moves half of them to a new branch, so that it finds the cause by bisection, while other halves are served. It
//     does so only if the origin works: the connection has survived, and the origin has responded, or holds another
//     stream open. Otherwise the origin may be down, and only the fourth end in a row divides a branch, one at a time: each
//     half may have a cause.
//
// A branch whose stream ends is divided in the same way. A subscription that is left alone is retried with backoff. A
// branch that is alive for aliveAfter merges with the trunk. If the trunk is the one that fails, they change places.
//
// The number of branches is limited. At the limit, subscriptions that end streams alone share one, and each of them is
// tried alone in turn. If there are not two of these, the smallest branch is divided first, and the largest two wait in
// one. So the search ends for any number of causes.
//
// While a branch fails, new subscriptions begin on a branch of their own, so that a client that adds one bad name after
// the other does not interrupt the trunk. An isolated subscription without resources does not linger: it ends with its
// last client.
//
// Some origins, and proxies before them, end each stream after some seconds. Then no subscription is the cause, and
// branches would only add backoff. So the relay merges them and lowers aliveAfter if no stream at all is alive; see
// observeLife.
const (
	aliveAfter = 10 * time.Second

	// After searchTime without a live stream, in which a search finds a cause, aliveAfter is half of the median of the last
	// lives: minLives to maxLives. An origin that ends most streams before minLife is down.
	searchTime, minLife = 30 * time.Second, 250 * time.Millisecond
	minLives, maxLives  = 8, 16

	// maxIsolated limits the branches beside the trunk, as each has streams.
	maxIsolated = 8

	// unexplainedEnds is the number of ends in a row after which a branch is divided although the origin may be down.
	unexplainedEnds = 4

	// maxProof is the maximum time for which a branch must be alive before it merges with the trunk. The time doubles
	// if the trunk ends after a merge: an origin may object to a combination.
	maxProof = 10 * time.Minute
)

// owner returns the subscription that a demand is about. If there is none yet, it returns the one to extend.
func (v *subscriptions) owner(d cache.Demand, typeURL, glob string, now time.Time) *subscription {
	if len(v.isolated) == 0 && !v.trunk.down() {
		return v.sub(v.trunk, typeURL)
	}
	for b := range v.branches {
		if s := b.subs[typeURL]; s != nil && s.carries(d, glob) {
			return s
		}
	}
	b := v.trunk
	if d.Wanted {
		b = v.entry(now)
	}
	return v.sub(b, typeURL)
}

// carries reports whether the subscription contains what a demand is about.
func (s *subscription) carries(d cache.Demand, glob string) bool {
	switch {
	case glob != "":
		return s.collections[glob] != nil
	case d.Name == nil:
		return s.wildcardRole != noStream
	}
	_, have := s.names[d.Name]
	return have
}

// entry returns the branch for a new subscription: the trunk, unless a branch fails.
func (v *subscriptions) entry(now time.Time) *branch {
	failing := v.trunk.down()
	for _, b := range v.isolated {
		failing = failing || b.failing()
	}
	if !failing {
		return v.trunk
	}
	for _, b := range v.isolated {
		if !b.failing() {
			b.addedAt = now
			return b
		}
	}
	if !v.room(nil, now) {
		return v.trunk
	}
	b := newBranch()
	b.addedAt, v.isolated = now, append(v.isolated, b)
	return b
}

// move moves a part of a subscription to another branch, and requests it there if the stream is open. It skips what is
// no longer subscribed to.
func (v *subscriptions) move(p part, to *branch, now time.Time) {
	s, t := p.sub, v.sub(to, p.sub.typeURL)
	if p.wildcard && s.wildcardRole != noStream {
		v.endQueries(s.members, now)
		s.members, t.members = t.members, s.members
		for _, of := range []*subscription{s, t} {
			of.members.sub, of.byName.QueriesFor = of, of.members.Set
		}
		t.wanted, t.prewarm, t.lingerUntil = s.wanted, s.prewarm, s.lingerUntil
		s.wanted, s.prewarm, s.lingerUntil = false, false, time.Time{}
		v.assignStreams(s, false)
		v.subscribeMembers(t, now)
	}
	for _, n := range p.names {
		if _, have := s.names[n]; have {
			delete(s.names, n)
			v.addName(t, n, false)
			s.byName.MoveTo(t.byName.Set, n.String())
			v.agenda.batch.wake()
		}
	}
	p.globs = slices.DeleteFunc(p.globs, func(glob string) bool { return s.collections[glob] == nil })
	for _, glob := range p.globs {
		c := s.collections[glob]
		delete(s.collections, glob)
		if t.collections == nil {
			t.collections = make(map[string]*collection)
		}
		t.collections[glob], c.sub, c.requestedAt = c, t, now
	}
	v.assignStreams(s, s.wildcardRole != noStream)
	v.assignStreams(t, t.wildcardRole != noStream)
	wake(&s.check, &t.check, &v.agenda.linger)
	v.change(t.stream(t.namesRole), t, p.globs, nil, now)
	v.dropIfUnused(s)
	v.dropIfUnused(t)
}

// room reports whether there may be one more branch, for a part of b; b is nil for new subscriptions. At the limit, it
// merges two others: those that only carry subscriptions which end streams, or the largest two that are still divided.
// A branch that is not the smallest of these waits, so that the search for each cause ends.
func (v *subscriptions) room(b *branch, now time.Time) bool {
	if len(v.isolated) < maxIsolated {
		return true
	}
	causes, divided := v.failing(b)
	merged := causes
	if len(causes) < 2 {
		merged = divided
		if len(divided) < 2 || b != nil && b != v.trunk && divided[len(divided)-1].size() < b.size() {
			return false
		}
	}
	into, from := merged[0], merged[1]
	for _, p := range from.parts(nil, main, auxiliary) {
		v.move(p, into, now)
	}
	into.shared, into.turns = len(causes) >= 2, nil
	v.drop(from)
	return true
}

// failing returns the isolated branches whose streams end, except b: those that only carry subscriptions which end
// streams, the shared one first, and the others, the largest first.
func (v *subscriptions) failing(b *branch) (causes, divided []*branch) {
	for _, other := range v.isolated {
		switch {
		case other == b || !other.failing():
		case other.shared: // there is at most one
			causes = append([]*branch{other}, causes...)
		case other.isCause():
			causes = append(causes, other)
		default:
			divided = append(divided, other)
		}
	}
	slices.SortStableFunc(divided, func(a, b *branch) int { return b.size() - a.size() })
	return causes, divided
}

// retryAlone gives each subscription of the shared branch a stream of its own from time to time: the origin may accept it
// now. b is a branch whose stream has ended, and which carries only subscriptions that end streams.
func (v *subscriptions) retryAlone(b *branch, now time.Time) {
	i := slices.IndexFunc(v.isolated, func(other *branch) bool { return other.shared })
	if i < 0 || b.shared && len(v.isolated) > maxIsolated/2 {
		return
	}
	shared := v.isolated[i]
	var next []part
	for len(next) == 0 {
		if len(shared.turns) == 0 {
			if shared.turns = shared.singles(); len(shared.turns) < 2 {
				return
			}
		}
		p := shared.turns[0]
		r := p.sub.namesRole
		if p.wildcard {
			r = p.sub.wildcardRole
		}
		if shared.turns = shared.turns[1:]; r != noStream {
			next = subscribed([]part{p}, r) // empty if the subscription has ended
		}
	}
	if b.shared {
		b = newBranch()
		v.isolated = append(v.isolated, b)
		b.since, b.addedAt, b.logged = now, now, true
	}
	for _, p := range b.parts(nil, main, auxiliary) {
		v.move(p, shared, now)
	}
	v.move(next[0], b, now)
}

// isolate moves parts of a branch to a new one.
func (v *subscriptions) isolate(from *branch, parts []part, now time.Time) (to *branch) {
	to = newBranch()
	v.isolated = append(v.isolated, to)
	from.since, to.since, to.addedAt = now, now, now
	for _, p := range parts {
		v.log.Info("upstream stream ended: moving subscriptions to a stream of their own",
			slog.String("type_url", p.sub.typeURL), slog.Int("count", p.count()), slog.Any("names", p.list()),
			slog.Any("err", from.failure))
		v.move(p, to, now)
	}
	v.forgetUnused(to, now)
	if from == v.trunk && !v.mergedAt.IsZero() {
		v.proof, v.mergedAt = min(2*max(v.proof, v.aliveAfter), maxProof), time.Time{}
	}
	return to
}

// forgetUnused ends the subscriptions of an isolated branch that no client uses and that have no resources. With
// resources they linger, because returning clients need them while the origin ends all streams.
func (v *subscriptions) forgetUnused(b *branch, now time.Time) {
	if v.pending.RetainsUnused() {
		return
	}
	for _, s := range b.ordered() {
		if !s.lingerUntil.IsZero() && v.empty(s.typeURL) {
			s.lingerUntil = now
			v.agenda.linger.wake()
		}
		for _, c := range s.collections {
			if !c.lingerUntil.IsZero() && v.empty(c.key) {
				c.lingerUntil = now
				c.check.wake()
			}
		}
		var unused []*cache.Name
		for n := range s.names {
			if v.linger.names.Contains(n) && !v.present(s.typeURL, n) {
				v.linger.remove(n)
				unused = append(unused, n)
			}
		}
		if len(unused) > 0 {
			v.agenda.linger.wake()
			v.forget(s.typeURL, unused)
		}
	}
}

// swap makes an isolated branch the trunk, and the trunk an isolated branch.
func (v *subscriptions) swap(i int, now time.Time) {
	v.trunk, v.isolated[i] = v.isolated[i], v.trunk
	v.forgetUnused(v.isolated[i], now)
	v.agenda.comparison.wake() // the trunk has another stream
}

// observeLife adapts aliveAfter to an origin that ends all streams after some seconds.
func (v *streams) observeLife(life time.Duration, now time.Time) {
	alive := life >= aliveAfter
	for l := range v.all {
		alive = alive || l.open && now.Sub(l.openedAt) >= aliveAfter
	}
	switch {
	case alive:
		v.aliveAfter, v.lives = aliveAfter, nil
		return
	case len(v.lives) == 0:
		v.livesSince = now.Add(-life)
	case len(v.lives) == maxLives:
		v.lives = v.lives[1:]
	}
	v.lives = append(v.lives, life)
	if len(v.lives) < minLives || now.Sub(v.livesSince) < searchTime {
		return
	}
	usual := slices.Sorted(slices.Values(v.lives))[len(v.lives)/2]
	if usual < minLife {
		return
	}
	if v.aliveAfter == aliveAfter {
		v.mergeAll = true
		v.log.Info("origin ends all streams: no subscription is isolated for that",
			slog.Duration("time", usual.Round(time.Millisecond)))
	}
	v.aliveAfter = usual / 2
}

// recordEnd records that the origin has ended a stream.
func (v *subscriptions) recordEnd(l *adsStream, err error, now time.Time) {
	if !l.open || errors.Is(err, errResync) {
		return
	}
	b := l.branch
	l.undecided, l.endedServed, l.endedAt, b.failure = true, l.responded, now, err
	v.observeLife(now.Sub(l.openedAt), now)
	l.recent = b.parts(func(requested time.Time) bool {
		return requested.After(l.openedAt) && now.Sub(requested) < v.aliveAfter
	}, l.role)
	if now.Sub(l.openedAt) >= v.aliveAfter {
		l.ends, l.objections, l.early = 0, 0, nil
		return
	}
	l.recent, l.early = append(l.recent, l.early...), nil
	for _, s := range b.subs { // not sent yet
		if s.namesRole == l.role && len(s.added) > 0 {
			l.early = append(l.early, part{sub: s, names: slices.Clone(s.added)})
		}
	}
	l.ends++
	parts := b.parts(nil, main, auxiliary)
	if b != v.trunk && !b.logged && counts(parts) == 1 && v.connectedBeside(b) {
		b.logged = true
		v.log.Warn("subscription ends upstream streams: it is isolated",
			slog.String("type_url", parts[0].sub.typeURL), slog.Any("names", parts[0].list()), slog.Any("err", err))
	}
}

// forgetEarly forgets what was added before streams opened that are alive, and what is no longer subscribed to: while
// the origin is unreachable, clients may come and go.
func (v *streams) forgetEarly(now time.Time) {
	for b := range v.branches {
		for r := range b.byRole {
			l := &b.byRole[r]
			if l.open && now.Sub(l.openedAt) >= v.aliveAfter {
				l.early = nil
			}
			l.early = subscribed(l.early, role(r))
		}
	}
}

// divide moves subscriptions of a stream that has ended to another branch, if they may be the cause. It is called
// before the next stream opens, when gRPC has noticed whether the connection was lost.
func (v *subscriptions) divide(b *branch, r role, now time.Time) {
	l := &b.byRole[r]
	if !l.undecided {
		return
	}
	recent := l.recent
	l.undecided, l.recent = false, nil
	if b != v.trunk && b.isCause() {
		v.retryAlone(b, now)
		return
	}
	works := v.works(b, r)
	if works && l.ends > 0 {
		l.objections++
	}
	suspects := recent
	if !works || len(recent) == 0 || counts(recent) >= counts(b.parts(nil, r)) {
		l.early = append(recent, l.early...)
		suspects = v.halfOf(b, r)
	}
	if len(suspects) > 0 && v.room(b, now) {
		l.ends, l.objections = 0, 0
		whole := counts(suspects) >= counts(b.parts(nil, r))
		if to := &v.isolate(b, suspects, now).byRole[main]; whole {
			to.retry, l.retry = l.retry, to.retry
		} else {
			l.retry.Reset() // the rest of the stream may not include the cause
		}
	}
}

// works reports whether the origin worked when it ended a stream of a branch: the connection has survived, and the origin has
// responded on the stream, or holds another one open.
func (v *subscriptions) works(b *branch, r role) bool {
	up, since := v.session.links[v.target].connected()
	l := &b.byRole[r]
	return up && since.Before(l.endedAt) && (l.endedServed || r == auxiliary || v.connectedBeside(b))
}

// halfOf returns a half of what a stream carries, if enough streams have ended; otherwise nothing.
func (v *subscriptions) halfOf(b *branch, r role) []part {
	l := &b.byRole[r]
	objects := l.objections >= trunkEnds || b != v.trunk && l.objections > 0
	unexplained := l.ends >= unexplainedEnds && !v.searchingBeside(b)
	if l.ends == 0 || b.shared || !objects && !unexplained {
		return nil
	}
	return b.half(r)
}

// mergeBranches merges the branches that are alive with the trunk. It returns when to call it again.
func (v *subscriptions) mergeBranches(now time.Time) (next time.Time) {
	switch {
	case v.mergedAt.IsZero():
	case now.Sub(v.mergedAt) >= v.aliveAfter:
		v.proof, v.mergedAt = 0, time.Time{}
	default:
		next = v.mergedAt.Add(v.aliveAfter)
	}
	v.agenda.streams.wake()
	for i, b := range slices.Backward(v.isolated) {
		switch {
		case v.mergeAll:
			v.merge(b, now)
		case !b.used():
			if b.logged {
				v.log.Info("isolation ended: the subscription has no client any more")
			}
			v.drop(b)
		case !v.trunk.used() && !v.trunk.byRole[main].open:
			v.swap(i, now)
		default:
			next = reconcile.Earlier(next, v.mergeAlive(i, b, now))
		}
	}
	if v.mergeAll {
		v.mergeAll = false
		v.trunk.recover()
		v.trunk.reopen() // what was just added would be suspect when its stream ends
	}
	return next
}

// mergeAlive merges an isolated branch with the trunk if both are alive, or replaces a trunk that is down by it. It returns
// when to call it again.
func (v *subscriptions) mergeAlive(i int, b *branch, now time.Time) (next time.Time) {
	at, trunkAt := b.aliveAt(max(v.proof, v.aliveAfter)), v.trunk.aliveAt(v.aliveAfter)
	switch {
	case at.IsZero():
	case now.Before(at):
		return at
	case trunkAt.IsZero() && v.trunk.down():
		b.recover()
		v.swap(i, now)
	case trunkAt.IsZero():
	case now.Before(trunkAt):
		return trunkAt
	default:
		for _, p := range b.parts(nil, main, auxiliary) {
			v.log.Info("upstream stream is stable: subscriptions return to the shared stream",
				slog.String("type_url", p.sub.typeURL), slog.Int("count", p.count()))
		}
		v.merge(b, now)
	}
	return time.Time{}
}

// merge moves the subscriptions of a branch to the trunk.
func (v *subscriptions) merge(b *branch, now time.Time) {
	parts := b.parts(nil, main, auxiliary)
	v.drop(b)
	for _, p := range parts {
		v.move(p, v.trunk, now)
	}
	v.mergedAt = now
	v.agenda.isolation.schedule(now.Add(v.aliveAfter))
}

// drop closes the streams of a branch and removes it from the view.
func (v *subscriptions) drop(b *branch) {
	for r := range b.byRole {
		v.session.limiter.stopWaiting(&b.byRole[r].waiter)
	}
	b.reopen() // the branch opens no further streams
	v.isolated = slices.DeleteFunc(slices.Clone(v.isolated), func(other *branch) bool { return other == b })
	for _, s := range slices.Collect(maps.Values(b.subs)) {
		v.dropIfUnused(s)
	}
}
