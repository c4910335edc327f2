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

// A fit says which names of a request are within the limits, and which are over each limit, and why.
type limitCheck struct {
	within []string
	over   []overLimit
}

// An overLimit is what a limit refuses of a request.
type overLimit struct {
	names []string
	err   error
}

func (f *limitCheck) addOver(text string, why error) {
	limit, _ := guard.LimitOf(why)
	for i := range f.over {
		if l, _ := guard.LimitOf(f.over[i].err); l == limit {
			f.over[i].names = append(f.over[i].names, text)
			return
		}
	}
	f.over = append(f.over, overLimit{[]string{text}, why})
}

// fit finds the names of a request that are over a limit. The subscription gives up the names in ceases at the same time,
// and with replaces all that are not in the request. The stream holds so many names and globs. Names that the
// subscription has are within the limits, and so are names that other clients want of an origin.
func (c *client) checkLimits(sub *subscription.Subscription, names, ceases []string, replaces bool, held,
	globs int) (f limitCheck) {
	if c.allWithinLimits(names, held) {
		f.within = names // as nearly always
		return f
	}
	has := sub.NamesAndGlobs()
	if replaces {
		ceases = slices.Collect(maps.Keys(has))
	}
	count := func(text string, by int) {
		if held += by; wire.Glob(text) {
			globs += by
		}
	}
	for _, text := range sortedSet(ceases) {
		if _, is := has[text]; is {
			count(text, -1)
		}
	}
	var fresh []string
	for _, text := range sortedSet(names) {
		_, had := has[text]
		if !had && !isWildcard(sub, text) {
			fresh = append(fresh, text)
			continue
		}
		if f.within = append(f.within, text); had && replaces {
			count(text, 1)
		}
	}
	f.addNew(c, sub, fresh, ceases, held, globs)
	return f
}

// fitAll reports whether all names are within the limits whatever the subscription has, as nearly always.
func (c *client) allWithinLimits(names []string, held int) bool {
	return held+len(names) <= c.cfg.MaxNames && len(names) <= c.Watch.Room() && !slices.ContainsFunc(names, wire.Glob)
}

// standsForAll reports whether a name stands for all resources of the type.
func isWildcard(sub *subscription.Subscription, text string) bool {
	return text == wire.Wildcard || text == "" && wire.Known(sub.TypeURL)
}

// add is fit for names that the subscription does not have.
func (f *limitCheck) addNew(c *client, sub *subscription.Subscription, fresh, ceases []string, held, globs int) {
	wanted := held + len(fresh)
	var plain []string
	followed := 0 // of the globs, those that are new to the group
	var tooMany error
	if wanted > c.cfg.MaxNames {
		tooMany = guard.Exceeds(guard.LimitNames, "%d resource names on one stream, at most %d are served", wanted,
			c.cfg.MaxNames)
	}
	for _, text := range fresh {
		var why error
		switch {
		case held >= c.cfg.MaxNames:
			why = tooMany
		case wire.Glob(text):
			why = c.checkGlobLimits(sub.TypeURL, text, globs, &followed)
		}
		if why != nil {
			f.addOver(text, why)
			continue
		}
		if held++; wire.Glob(text) {
			globs++
			f.within = append(f.within, text)
		} else {
			plain = append(plain, text)
		}
	}
	over, bound := c.Watch.OverQuota(sub.Key, plain, ceases)
	if len(over) == 0 {
		f.within = append(f.within, plain...)
		return
	}
	why := originQuotaError(c.Watch.Peer(), bound)
	for _, text := range plain {
		if _, is := slices.BinarySearch(over, text); is {
			f.addOver(text, why)
		} else {
			f.within = append(f.within, text)
		}
	}
}

// originOver returns why a name of a peer is over a bound of its origin.
func originQuotaError(peer string, bound quota.Exceeded) error {
	if bound.PerPeer {
		return guard.Exceeds(guard.LimitOriginNames,
			"clients of %s want %d resource names of one origin, at most %d of one peer are served while more than half of %d are wanted",
			peer, bound.Used, bound.Limit, bound.Total)
	}
	return guard.Exceeds(guard.LimitOriginNames,
		"clients want %d resource names of one origin, it is asked for at most %d", bound.Used, bound.Limit)
}

// globOver returns why a glob is over a limit, on a stream that has others, if followed of these are new to the group.
func (c *client) checkGlobLimits(typeURL, glob string, others int, followed *int) error {
	if others >= c.cfg.MaxGlobs {
		return guard.Exceeds(guard.LimitGlobs, "more globs on one stream than the %d that are served", c.cfg.MaxGlobs)
	}
	if more, all := c.Watch.Unfollowed([]string{cache.Collection(typeURL, glob)}); more > 0 {
		if all+*followed >= c.cfg.MaxGroupGlobs {
			return guard.Exceeds(guard.LimitGroupGlobs, "more globs in one node group than the %d that are served",
				c.cfg.MaxGroupGlobs)
		}
		*followed++
	}
	return nil
}

// set returns texts in order, each once.
func sortedSet(texts []string) []string { return slices.Compact(slices.Sorted(slices.Values(texts))) }

// limitNames removes the names that are over a limit from a request. No origin is asked for them, and a client that
// understands resource_errors is sent an error for them. The stream goes on, so that one name does not cost the client
// all others (B.35).
func (s receiver) dropOverLimit(sub *subscription.Subscription, r *wire.Request) {
	s.dropSurplusVersions(sub, r)
	if r.Skipped > 0 {
		s.recordOverLimit(sub, nil, r.Skipped, guard.Exceeds(guard.LimitNames,
			"%d entries more in one request than are looked at", r.Skipped))
	}
	for _, text := range r.Unsubscribe {
		delete(sub.OverLimit, text)
	}
	f := s.client.checkLimits(sub, r.Subscribe, r.Unsubscribe, !s.delta, s.nameCount(), s.globCount())
	r.Subscribe = f.within
	if !s.delta { // what the client lists no more, it gave up
		listed := make(map[string]struct{})
		for _, over := range f.over {
			for _, text := range over.names {
				listed[text] = struct{}{}
			}
		}
		maps.DeleteFunc(sub.OverLimit, func(text string, _ struct{}) bool { _, is := listed[text]; return !is })
	}
	for _, over := range f.over {
		for _, text := range over.names {
			delete(r.InitialVersions, text) // that it is not served does not mean that it is gone
		}
		s.recordOverLimit(sub, over.names, len(over.names), over.err)
	}
}

// limitVersions drops initial_resource_versions that are over the limit: the client is sent more than it needs.
func (s receiver) dropSurplusVersions(sub *subscription.Subscription, r *wire.Request) {
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
		"initial_resource_versions of %d resources on one stream, at most %d are looked at", total, s.cfg.MaxNames))
}

// refuseNames records that n names are not served, which may be unknown. It counts and logs the new ones, and has the
// client told.
func (s receiver) recordOverLimit(sub *subscription.Subscription, names []string, n int, why error) {
	room := maxOverLimit
	for _, other := range s.subs {
		room -= len(other.OverLimit)
	}
	first := ""
	for _, text := range names {
		if _, again := sub.OverLimit[text]; again {
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
			sub.AddError(text, codes.ResourceExhausted, status.Convert(why).Message())
		}
	}
	if len(names) > 0 {
		sub.MarkExplicit() // to ask for what is too many is not to ask for everything
	}
	if n == 0 {
		return
	}
	s.server.guard.Counters.Rejected(why)
	if l := &s.server.badNameLog; l.Allow() {
		limit, _ := guard.LimitOf(why)
		s.client.log().LogAttrs(context.Background(), slog.LevelWarn, "resource names over a limit are not served",
			slog.String("type_url", sub.TypeURL), slog.String("limit", limit.String()), slog.Int("refused",
				n), slog.String("name", first),
			slog.String("err", status.Convert(why).Message()), l.Suppressed())
	}
}

// admitRefused subscribes to names that were refused, as far as there is room now.
func (s receiver) admitOverLimit() {
	for _, sub := range s.subs {
		if len(sub.OverLimit) == 0 || s.nameCount() >= s.cfg.MaxNames {
			continue
		}
		within := s.client.checkLimits(sub, slices.Sorted(maps.Keys(sub.OverLimit)), nil, false, s.nameCount(),
			s.globCount()).within
		for _, text := range within {
			delete(sub.OverLimit, text)
		}
		if len(within) > 0 {
			sub.Grant(within, time.Now())
		}
	}
}
