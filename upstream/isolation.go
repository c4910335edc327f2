package upstream

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
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
//     stream open. Otherwise the origin may be down, and only the fourth end in a row divides the trunk, once at a time.
//
// A branch whose stream ends is divided in the same way. A subscription that is left alone is retried with backoff. A
// branch that is alive for aliveAfter merges with the trunk. If the trunk is the one that fails, they change places.
//
// While a branch fails, new subscriptions begin on a branch of their own, so that a client that adds one bad name after
// the other does not interrupt the trunk. An isolated subscription does not linger: it ends with its last client.
const (
	aliveAfter = 10 * time.Second

	// maxIsolated limits the branches beside the trunk, as each has streams. At the limit, subscriptions that end streams
	// share a branch.
	maxIsolated = 8

	// trunkEnds is the number of ends in a row after which the trunk is divided if the origin works, unexplainedEnds
	// that after which it is divided although the origin may be down.
	trunkEnds, unexplainedEnds = 2, 4

	// maxProof is the maximum time for which a branch must be alive before it merges with the trunk. The time doubles
	// if the trunk ends after a merge: an origin may object to a combination.
	maxProof = 10 * time.Minute
)

// count returns the number of subscriptions in the part.
func (p *part) count() int {
	n := len(p.names) + len(p.globs)
	if p.wildcard {
		n++
	}
	return n
}

// list returns the first names of the part.
func (p *part) list() []string {
	var out []string
	if p.wildcard {
		out = append(out, wire.Wildcard)
	}
	out = append(out, p.globs[:min(len(p.globs), namesListed)]...)
	return append(out, nameStrings(p.names[:min(len(p.names), namesListed)])...)
}

// counts returns the number of subscriptions in parts.
func counts(parts []part) (n int) {
	for i := range parts {
		n += parts[i].count()
	}
	return n
}

// parts returns what the streams of the given roles carry, in the order of types, for each type the wildcard and the
// names separately. included selects names, globs and wildcards by the times of their requests; nil selects all.
func (b *branch) parts(included func(requested time.Time) bool, roles ...role) (parts []part) {
	in := func(at time.Time) bool { return included == nil || included(at) }
	for _, s := range b.ordered() {
		if slices.Contains(roles, s.wildcardRole) && in(s.requestedAt) {
			parts = append(parts, part{sub: s, wildcard: true})
		}
		if !slices.Contains(roles, s.namesRole) {
			continue
		}
		p := part{sub: s}
		for n := range s.names {
			if in(n.Asked()) {
				p.names = append(p.names, n)
			}
		}
		for glob, c := range s.collections {
			if in(c.requestedAt) {
				p.globs = append(p.globs, glob)
			}
		}
		if p.count() > 0 {
			slices.SortFunc(p.names, func(a, b *cache.Name) int { return strings.Compare(a.String(), b.String()) })
			slices.Sort(p.globs)
			parts = append(parts, p)
		}
	}
	return parts
}

// half returns a half of what a stream carries: half of the types, or half of the names if there is one type. It is
// empty if the stream carries only one subscription.
func (b *branch) half(r role) []part {
	parts := b.parts(nil, r)
	if len(parts) != 1 {
		return parts[(len(parts)+1)/2:]
	}
	p := parts[0]
	switch names, globs := len(p.names), len(p.globs); {
	case names+globs < 2:
		return nil
	case globs == 0:
		p.names = p.names[(names+1)/2:]
	case names == 0:
		p.globs = p.globs[(globs+1)/2:]
	default:
		p.names = nil
	}
	return []part{p}
}

// failing reports whether a stream of an isolated branch has ended before it was alive, and none has been alive since.
func (b *branch) failing() bool { return b.byRole[main].ends+b.byRole[auxiliary].ends > 0 }

// down reports whether the main stream of the trunk is closed and has failed more than once.
func (b *branch) down() bool { return !b.byRole[main].open && b.byRole[main].ends >= trunkEnds }

// aliveAt returns when the streams of the branch will have been alive for a time; zero if one that is needed is closed.
func (b *branch) aliveAt(after time.Duration) time.Time {
	last := b.addedAt
	for r := main; r <= auxiliary; r++ {
		switch l := &b.byRole[r]; {
		case l.open && l.openedAt.After(last):
			last = l.openedAt
		case !l.open && (r == main || b.needs(r)):
			return time.Time{}
		}
	}
	return last.Add(after)
}

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
			v.batchAt = now
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
	v.change(t.stream(t.namesRole), t, p.globs, nil, now)
	v.dropIfUnused(s)
	v.dropIfUnused(t)
}

// room reports whether there may be one more branch. At the limit, it merges two branches whose streams end, except the
// given one. It prefers those whose subscriptions all end streams.
func (v *subscriptions) room(except *branch, now time.Time) bool {
	if len(v.isolated) < maxIsolated {
		return true
	}
	innocents := func(b *branch) int {
		if b.shared {
			return 0
		}
		return counts(b.parts(nil, main, auxiliary)) - 1
	}
	failing := slices.DeleteFunc(slices.Clone(v.isolated), func(b *branch) bool { return b == except || !b.failing() })
	if len(failing) < 2 {
		return false
	}
	slices.SortStableFunc(failing, func(a, b *branch) int { return innocents(a) - innocents(b) })
	into, from := failing[0], failing[1]
	for _, p := range from.parts(nil, main, auxiliary) {
		v.move(p, into, now)
	}
	into.shared = true
	v.drop(from)
	return true
}

// isolate moves parts of a branch to a new one.
func (v *subscriptions) isolate(from *branch, parts []part, now time.Time) {
	to := newBranch()
	v.isolated = append(v.isolated, to)
	from.since, to.since, to.addedAt = now, now, now
	for _, p := range parts {
		v.log.Info("upstream stream ended: moving subscriptions to a stream of their own",
			slog.String("type_url", p.sub.typeURL), slog.Int("count", p.count()), slog.Any("names", p.list()),
			slog.Any("err", from.failure))
		v.move(p, to, now)
	}
	if from == v.trunk && !v.mergedAt.IsZero() {
		v.proof, v.mergedAt = min(2*max(v.proof, aliveAfter), maxProof), time.Time{}
	}
}

// recordEnd records that the origin has ended a stream.
func (v *subscriptions) recordEnd(l *adsStream, err error, now time.Time) {
	if !l.open || errors.Is(err, errResync) {
		return
	}
	b := l.branch
	l.undecided, l.endedServed, l.endedAt, b.failure = true, l.responded, now, err
	l.recent = b.parts(func(requested time.Time) bool {
		return requested.After(l.openedAt) && now.Sub(requested) < aliveAfter
	}, l.role)
	if now.Sub(l.openedAt) >= aliveAfter {
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

// connectedBeside reports whether a main stream of another branch is open.
func (v *streams) connectedBeside(b *branch) bool {
	for other := range v.branches {
		if other != b && other.byRole[main].open {
			return true
		}
	}
	return false
}

// searching reports whether an isolated branch has several subscriptions.
func (v *streams) searching() bool {
	return slices.ContainsFunc(v.isolated, func(b *branch) bool { return counts(b.parts(nil, main, auxiliary)) > 1 })
}

// forgetEarly forgets what was added before streams opened that are alive.
func (v *streams) forgetEarly(now time.Time) {
	for l := range v.all {
		if l.open && now.Sub(l.openedAt) >= aliveAfter {
			l.early = nil
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
		v.isolate(b, suspects, now)
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
	unexplained := l.ends >= unexplainedEnds && !v.searching()
	if l.ends == 0 || b.shared || !objects && !unexplained {
		return nil
	}
	return b.half(r)
}

// mergeBranches merges the branches that are alive with the trunk. It returns when to call it again.
func (v *subscriptions) mergeBranches(now time.Time) (next time.Time) {
	if !v.mergedAt.IsZero() && now.Sub(v.mergedAt) >= aliveAfter {
		v.proof, v.mergedAt = 0, time.Time{}
	}
	for i, b := range slices.Backward(v.isolated) {
		switch {
		case !b.used():
			if b.logged {
				v.log.Info("isolated subscription has no client any more")
			}
			v.drop(b)
		case !v.trunk.used() && !v.trunk.byRole[main].open:
			v.trunk, v.isolated[i] = b, v.trunk
		default:
			next = reconcile.Earlier(next, v.mergeAlive(i, b, now))
		}
	}
	return next
}

// mergeAlive merges an isolated branch with the trunk if both are alive, or replaces a trunk that is down by it. It returns
// when to call it again.
func (v *subscriptions) mergeAlive(i int, b *branch, now time.Time) (next time.Time) {
	at, trunkAt := b.aliveAt(max(v.proof, aliveAfter)), v.trunk.aliveAt(aliveAfter)
	switch {
	case at.IsZero():
	case now.Before(at):
		return at
	case trunkAt.IsZero() && v.trunk.down():
		b.recover()
		v.trunk, v.isolated[i] = b, v.trunk
	case trunkAt.IsZero():
	case now.Before(trunkAt):
		return trunkAt
	default:
		v.merge(b, now)
	}
	return time.Time{}
}

// used reports whether the branch carries any subscription.
func (b *branch) used() bool { return b.needs(main) || b.needs(auxiliary) }

// recover records that the streams of the branch are alive.
func (b *branch) recover() {
	for r := range b.byRole {
		b.byRole[r].ends, b.byRole[r].objections = 0, 0
	}
}

// merge moves the subscriptions of a branch to the trunk.
func (v *subscriptions) merge(b *branch, now time.Time) {
	parts := b.parts(nil, main, auxiliary)
	v.drop(b)
	for _, p := range parts {
		v.log.Info("upstream stream is stable: subscriptions return to the shared stream",
			slog.String("type_url", p.sub.typeURL), slog.Int("count", p.count()))
		v.move(p, v.trunk, now)
	}
	v.mergedAt = now
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

// refuses reports whether names are not requested because a SotW request cannot contain them.
func (v *streams) refuses() bool {
	for l := range v.all {
		if l.open && l.sotw != nil && l.sotw.refusing > 0 {
			return true
		}
	}
	return false
}

// isolations returns the isolated subscriptions that end streams, and the names that a SotW request cannot contain.
func (v *streams) isolations() (all []Isolation) {
	for _, b := range v.isolated {
		if !b.failing() {
			continue
		}
		for _, p := range b.parts(nil, main, auxiliary) {
			names := p.list()
			all = append(all, Isolation{
				TypeURL: p.sub.typeURL, Names: names[:min(len(names), namesListed)], Count: p.count(), Since: b.since, Err: b.failure,
			})
		}
	}
	for l := range v.all {
		if !l.open || l.sotw == nil || l.sotw.refusing == 0 {
			continue
		}
		for _, typeURL := range slices.Sorted(maps.Keys(l.sotw.types)) {
			if of := l.sotw.types[typeURL].refusal; of != nil {
				all = append(all, *of)
			}
		}
	}
	return all
}

// countIsolated returns the number of isolated subscriptions.
func countIsolated(all []Isolation) (n int) {
	for i := range all {
		n += all[i].Count
	}
	return n
}
