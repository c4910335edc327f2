package downstream

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// reauthorize returns the grant of a peer with a kept Node under the current rules.
func (s *Server) reauthorize(ctx context.Context, from guard.Peer, kept *guard.KeptNode) (grant Grant, err error) {
	err = s.guard.WithKept(ctx, from, kept, func(n *node) (err error) {
		grant, err = s.cfg.authorize(from, n)
		return err
	})
	return grant, err
}

// checkType returns an error if the client may not request a type.
func (s *stream) checkType(typeURL string) error {
	if s.grant == nil {
		return nil
	}
	return s.grant.Type(typeURL)
}

// setGrant replaces the grant of the client. It unsubscribes from names that the new grant denies, and subscribes to
// names that only the previous grant denied. The error ends the stream.
func (s *stream) setGrant(grant Grant) error {
	if s.grant = grant; s.halts != nil {
		s.halts.current = false
	}
	for _, sub := range s.subs {
		if err := s.checkType(sub.TypeURL); err != nil {
			return err
		}
		if err := s.reauthorizeNames(sub); err != nil {
			return err
		}
	}
	return nil
}

// restrictsNames reports whether names of the subscription must be checked.
func (s *stream) restrictsNames(sub *subscription.Subscription) bool {
	return s.grant != nil && (s.grant.RestrictsNames(sub.TypeURL) || len(sub.Denied) > 0)
}

// removeDenied removes denied names from a request. A denied name ends a stream of one type. An aggregated stream
// continues, and the name is not answered, so that the client keeps all other resources (B.36).
func (s *stream) removeDenied(sub *subscription.Subscription, r *wire.Request) error {
	if !s.restrictsNames(sub) {
		return nil
	}
	var denied []string
	allowed := func(text string) bool { return s.checkName(sub, text) == nil }
	r.Subscribe = slices.DeleteFunc(r.Subscribe, func(text string) bool {
		if allowed(text) {
			return false
		}
		denied = append(denied, text)
		return true
	})
	maps.DeleteFunc(r.InitialVersions, func(text, _ string) bool { return !allowed(text) })
	if !s.delta {
		maps.DeleteFunc(sub.Denied, func(text string, _ struct{}) bool { return !slices.Contains(denied, text) })
	}
	for _, text := range r.Unsubscribe {
		delete(sub.Denied, text)
	}
	return s.recordDenied(sub, denied)
}

// checkName returns an error if the client may not request a name, which may have parameters.
func (s *stream) checkName(sub *subscription.Subscription, text string) error {
	return s.grant.Name(sub.TypeURL, wire.PlainName(text))
}

// recordDenied records denied names, to subscribe to them when the rules allow them. The error ends the stream.
func (s *stream) recordDenied(sub *subscription.Subscription, names []string) error {
	for _, text := range names {
		if _, denied := sub.Denied[text]; denied {
			continue
		}
		err := s.checkName(sub, text)
		if s.typeURL != "" {
			return err
		}
		if sub.Denied == nil {
			sub.Denied = make(map[string]struct{})
		}
		if s.nameCount() < s.cfg.MaxNames {
			sub.Denied[strings.Clone(text)] = struct{}{} // a part of a larger string would keep all of it in memory
		}
		sub.MarkExplicit() // otherwise a subscription without names would mean the wildcard
		s.server.logDeniedName(s.client, err)
	}
	return nil
}

// reauthorizeNames removes names from a subscription that are now denied, and adds names that were denied before.
func (s *stream) reauthorizeNames(sub *subscription.Subscription) error {
	if !s.restrictsNames(sub) {
		return nil
	}
	allowed := func(text string) bool { return s.checkName(sub, text) == nil }
	var granted []string
	maps.DeleteFunc(sub.Denied, func(text string, _ struct{}) bool {
		if !allowed(text) {
			return false
		}
		granted = append(granted, text)
		return true
	})
	if err := s.recordDenied(sub, sub.Revoke(allowed)); err != nil {
		return err
	}
	if len(granted) > 0 {
		sub.Grant(granted, time.Now())
	}
	return nil
}

// A limitCheck divides the names of a request into those within the limits and those over a limit.
type limitCheck struct {
	within []string
	over   []overLimit // one per limit
}

// An overLimit has the names over one limit, with the error of the first of them.
type overLimit struct {
	limit guard.Limit
	names []string
	err   error
}

// addOver adds a name that is over a limit. It calls errorOf for the first name only: a client may send many.
func (k *limitCheck) addOver(text string, limit guard.Limit, errorOf func() error) {
	i := slices.IndexFunc(k.over, func(o overLimit) bool { return o.limit == limit })
	if i < 0 {
		i = len(k.over)
		k.over = append(k.over, overLimit{limit: limit, err: errorOf()})
	}
	k.over[i].names = append(k.over[i].names, text)
}

// A usage has the number of names that a stream keeps, and the number of globs among them.
type usage struct{ names, globs int }

// add adds a name n times; n may be negative.
func (u *usage) add(text string, n int) {
	if u.names += n; wire.Glob(text) {
		u.globs += n
	}
}

// checkLimits checks the names that a request adds to a subscription of a stream with a usage. The request also removes
// the names in unsubscribed, or with replaceAll all names that it does not list. Names that are already subscribed are
// within the limits. Names with other subscribers do not count against the quota of their origin.
func (c *client) checkLimits(
	sub *subscription.Subscription, names, unsubscribed []string, replaceAll bool, u usage,
) (k limitCheck) {
	if c.allWithinLimits(names, u) {
		k.within = names // the usual case
		return k
	}
	before := sub.NamesAndGlobs()
	if replaceAll {
		unsubscribed = slices.Collect(maps.Keys(before))
	}
	for _, text := range sortedSet(unsubscribed) {
		if _, subscribed := before[text]; subscribed {
			u.add(text, -1)
		}
	}
	var added []string
	for _, text := range sortedSet(names) {
		_, subscribed := before[text]
		if !subscribed && !isWildcard(sub, text) {
			added = append(added, text)
			continue
		}
		if k.within = append(k.within, text); subscribed && replaceAll {
			u.add(text, 1)
		}
	}
	k.addNew(c, sub, added, unsubscribed, u)
	return k
}

// allWithinLimits reports whether all names are within the limits, regardless of the names already subscribed.
func (c *client) allWithinLimits(names []string, u usage) bool {
	return u.names+len(names) <= c.cfg.MaxNames && len(names) <= c.Watch.Room() &&
		!slices.ContainsFunc(names, wire.Glob)
}

// isWildcard reports whether a name means all resources of the type.
func isWildcard(sub *subscription.Subscription, text string) bool {
	return text == wire.Wildcard || text == "" && wire.Known(sub.TypeURL)
}

// addNew checks names that the subscription does not have.
func (k *limitCheck) addNew(c *client, sub *subscription.Subscription, added, unsubscribed []string, u usage) {
	total := u.names + len(added)
	var plain []string
	newGlobs := 0 // checked globs that no other client of the group is subscribed to
	for _, text := range added {
		if u.names >= c.cfg.MaxNames {
			k.addOver(text, guard.LimitNames, func() error {
				return guard.Exceeds(guard.LimitNames, "%d resource names on one stream, at most %d are allowed", total,
					c.cfg.MaxNames)
			})
			continue
		}
		if wire.Glob(text) && !k.admitGlob(c, sub.TypeURL, text, u.globs, &newGlobs) {
			continue
		}
		if u.add(text, 1); wire.Glob(text) {
			k.within = append(k.within, text)
		} else {
			plain = append(plain, text)
		}
	}
	over, bound := c.Watch.OverQuota(sub.Key, plain, unsubscribed)
	if len(over) == 0 {
		k.within = append(k.within, plain...)
		return
	}
	for _, text := range plain {
		if _, isOver := slices.BinarySearch(over, text); isOver {
			k.addOver(text, guard.LimitOriginNames, func() error { return originQuotaError(c.Watch.Peer(), bound) })
		} else {
			k.within = append(k.within, text)
		}
	}
}

// originQuotaError returns the error for a name of a peer that is over the quota of its origin.
func originQuotaError(peer string, bound quota.Exceeded) error {
	if bound.PerPeer {
		return guard.Exceeds(guard.LimitOriginNames,
			"clients of %s subscribe to %d resource names of one origin, "+
				"at most %d of one peer are allowed while more than half of %d are in use",
			peer, bound.Used, bound.Limit, bound.Total)
	}
	return guard.Exceeds(guard.LimitOriginNames,
		"clients subscribe to %d resource names of one origin, at most %d are allowed", bound.Used, bound.Limit)
}

// Limits of the globs of a stream, and of those of all clients of a node group.
const (
	maxGlobs      = 1000
	maxGroupGlobs = 10_000
)

// admitGlob reports whether a glob is within the limits on a stream that has other globs already, and otherwise adds it
// to those over a limit. If the glob is new to the group, it counts it in newGlobs.
func (k *limitCheck) admitGlob(c *client, typeURL, glob string, others int, newGlobs *int) bool {
	if others >= maxGlobs {
		k.addOver(glob, guard.LimitGlobs, func() error {
			return guard.Exceeds(guard.LimitGlobs, "more than %d globs on one stream", maxGlobs)
		})
		return false
	}
	if unfollowed, all := c.Watch.CountUnsubscribed([]string{cache.Collection(typeURL, glob)}); unfollowed > 0 {
		if all+*newGlobs >= maxGroupGlobs {
			k.addOver(glob, guard.LimitGroupGlobs, func() error {
				return guard.Exceeds(guard.LimitGroupGlobs, "more than %d globs in one node group", maxGroupGlobs)
			})
			return false
		}
		*newGlobs++
	}
	return true
}

// sortedSet returns the distinct texts in order.
func sortedSet(texts []string) []string { return slices.Compact(slices.Sorted(slices.Values(texts))) }

// usage returns the current usage of the stream.
func (s *stream) usage() usage { return usage{s.nameCount(), s.globCount()} }

// dropOverLimit removes the names that are over a limit from a request. The relay does not request them from an origin.
// A client that understands resource_errors is sent an error for each. The stream continues, so that the client keeps
// all other resources (B.35).
func (s *stream) dropOverLimit(sub *subscription.Subscription, r *wire.Request) {
	s.dropSurplusVersions(sub, r)
	if r.Skipped > 0 {
		s.recordOverLimit(sub, nil, r.Skipped, guard.Exceeds(guard.LimitNames,
			"one request has %d names more than are read", r.Skipped))
	}
	for _, text := range r.Unsubscribe {
		delete(sub.OverLimit, text)
	}
	checked := s.client.checkLimits(sub, r.Subscribe, r.Unsubscribe, !s.delta, s.usage())
	r.Subscribe = checked.within
	if !s.delta { // a SotW client has unsubscribed from names that it no longer lists
		listed := make(map[string]struct{})
		for _, over := range checked.over {
			for _, text := range over.names {
				listed[text] = struct{}{}
			}
		}
		maps.DeleteFunc(sub.OverLimit, func(text string, _ struct{}) bool { _, ok := listed[text]; return !ok })
	}
	for _, over := range checked.over {
		for _, text := range over.names {
			delete(r.InitialVersions, text) // the resource is not removed, only not served
		}
		s.recordOverLimit(sub, over.names, len(over.names), over.err)
	}
}

// dropSurplusVersions removes initial_resource_versions over the limit. The client is then sent resources that it
// already holds.
func (s *stream) dropSurplusVersions(sub *subscription.Subscription, r *wire.Request) {
	if sub.Started() || len(r.InitialVersions) == 0 {
		return
	}
	total := len(r.InitialVersions)
	for _, other := range s.subs {
		total += other.InitialVersions()
	}
	surplus := min(total-s.cfg.MaxNames, len(r.InitialVersions))
	if surplus <= 0 {
		return
	}
	dropped := 0
	maps.DeleteFunc(r.InitialVersions, func(string, string) bool {
		dropped++
		return dropped <= surplus
	})
	s.recordOverLimit(sub, nil, surplus, guard.Exceeds(guard.LimitNames,
		"initial_resource_versions of %d resources on one stream, at most %d are read", total, s.cfg.MaxNames))
}

// recordOverLimit records that n names are not served. names may be nil if they are unknown. It counts and logs the new
// ones, and queues an error for each of them if the client understands resource_errors.
func (s *stream) recordOverLimit(sub *subscription.Subscription, names []string, n int, err error) {
	room := maxOverLimit
	for _, other := range s.subs {
		room -= len(other.OverLimit)
	}
	s.overLimitAt = time.Now()
	first, message := "", status.Convert(err).Message()
	for _, text := range names {
		if _, recorded := sub.OverLimit[text]; recorded {
			n--
			continue
		}
		if first == "" {
			first = text
		}
		if room--; room < 0 {
			continue
		}
		if sub.OverLimit == nil {
			sub.OverLimit = make(map[string]struct{})
		}
		text = strings.Clone(text) // a part of a larger string would keep all of it in memory
		sub.OverLimit[text] = struct{}{}
		if sub.Errors {
			sub.AddError(text, codes.ResourceExhausted, message)
		}
	}
	if len(names) > 0 {
		sub.MarkExplicit() // otherwise a subscription without names would mean the wildcard
	}
	if n == 0 {
		return
	}
	limit, _ := guard.LimitOf(err)
	s.server.guard.Counters.Refused("", limit, s.watch.Peer(), err)
	if l := &s.server.badNameLog; l.Allow() {
		s.client.log().LogAttrs(context.Background(), slog.LevelWarn, "resource names over a limit are not served",
			slog.String("type_url", sub.TypeURL), slog.String("limit", limit.String()),
			slog.Int("refused", n), slog.String("name", first),
			slog.String("err", message), l.Suppressed())
	}
}

// overLimitPause is the time after which the recorded names of a stream are checked again if the stream has as many
// names as before, since other clients may have fewer. A check takes long.
const overLimitPause = time.Second

// admitOverLimit subscribes to recorded names while usage is below the limits again. before is the usage before the
// request.
func (s *stream) admitOverLimit(before usage, now time.Time) {
	if u := s.usage(); u.names >= before.names && u.globs >= before.globs && now.Before(s.overLimitAt.Add(overLimitPause)) {
		return
	}
	s.overLimitAt = now
	for _, sub := range s.subs {
		if len(sub.OverLimit) == 0 || s.nameCount() >= s.cfg.MaxNames {
			continue
		}
		within := s.client.checkLimits(sub, slices.Sorted(maps.Keys(sub.OverLimit)), nil, false, s.usage()).within
		for _, text := range within {
			delete(sub.OverLimit, text)
		}
		if len(within) > 0 {
			sub.Grant(within, time.Now())
		}
	}
}
