package downstream

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// The functions of this file refuse the names that are over a limit. No origin is asked for them, and a client that
// understands resource_errors is told why. The stream goes on, so that one name does not cost the client all others
// (B.35).

// maxOver bounds the refused names of a stream that are remembered: they are subscribed to once there is room. Of
// further ones the client is told nothing.
const maxOver = 1000

// nameCount returns how many names the stream holds, over all its types.
func (s *stream) nameCount() (n int) {
	for _, sub := range s.subs {
		n += sub.Size()
	}
	return n
}

// limitNames takes what is over a limit out of a request.
func (s *stream) limitNames(sub *subscription.Subscription, r *wire.Request) {
	s.limitVersions(sub, r)
	if r.Skipped > 0 {
		s.refuseNames(sub, nil, r.Skipped, guard.Exceeds(guard.LimitNames, "%d entries more in one request than are looked at", r.Skipped))
	}
	for _, text := range r.Unsubscribe {
		delete(sub.OverLimit, text)
	}
	f := s.client.fit(sub, r.Subscribe, r.Unsubscribe, !s.delta, s.nameCount(), s.globCount())
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
		s.refuseNames(sub, over.names, len(over.names), over.why)
	}
}

// limitVersions drops initial_resource_versions that are over the limit: the client is sent more than it needs.
func (s *stream) limitVersions(sub *subscription.Subscription, r *wire.Request) {
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
	s.refuseNames(sub, nil, surplus, guard.Exceeds(guard.LimitNames, "initial_resource_versions of %d resources on one stream, at most %d are looked at", total, s.cfg.MaxNames))
}

// refuseNames records that n names are not served, which may be unknown. It counts and logs the new ones, and has the
// client told.
func (s *stream) refuseNames(sub *subscription.Subscription, names []string, n int, why error) {
	room := maxOver
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
		sub.OverLimit[text] = struct{}{}
		if sub.Errors {
			sub.AddError(text, codes.ResourceExhausted, status.Convert(why).Message())
		}
	}
	if len(names) > 0 {
		sub.Explicit() // to ask for what is too many is not to ask for everything
	}
	if n == 0 {
		return
	}
	s.server.guard.Counters.Rejected(why)
	if l := &s.server.badNameLog; l.Allow() {
		limit, _ := guard.LimitOf(why)
		s.client.log().LogAttrs(context.Background(), slog.LevelWarn, "resource names over a limit are not served",
			slog.String("type_url", sub.TypeURL), slog.String("limit", limit.String()), slog.Int("refused", n), slog.String("name", first),
			slog.String("err", status.Convert(why).Message()), l.Suppressed())
	}
}

// admitRefused subscribes to names that were refused, as far as there is room now.
func (s *stream) admitRefused() {
	for _, sub := range s.subs {
		if len(sub.OverLimit) == 0 || s.nameCount() >= s.cfg.MaxNames {
			continue
		}
		within := s.client.fit(sub, slices.Sorted(maps.Keys(sub.OverLimit)), nil, false, s.nameCount(), s.globCount()).within
		for _, text := range within {
			delete(sub.OverLimit, text)
		}
		if len(within) > 0 {
			sub.Grant(within, time.Now())
		}
	}
}
