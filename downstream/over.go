package downstream

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// The functions of this file refuse names that are over a limit, each by itself: nobody answers for them, and a client
// that understands it is told why. The stream goes on, so that one name does not take all else from the client (B.35).

// maxOver bounds the refused names of a stream that are remembered: they are subscribed to once there is room. Of
// further ones the client is told nothing.
const maxOver = 1000

// held returns how many names the stream holds, over all its types.
func (s *stream) held() (n int) {
	for _, sub := range s.subs {
		n += len(sub.names) + len(sub.let) + len(sub.globs) + len(sub.failures.bad) + len(sub.denied)
	}
	return n
}

// limitNames takes what is over a limit out of a request.
func (s *stream) limitNames(sub *subscription, r *wire.Request) {
	s.limitVersions(sub, r)
	if r.Skipped > 0 {
		s.refuseNames(sub, nil, r.Skipped, guard.Exceeds(guard.LimitNames, "%d entries more in one request than are looked at", r.Skipped))
	}
	for _, text := range r.Unsubscribe {
		delete(sub.over, text)
	}
	f := sub.fit(r.Subscribe, r.Unsubscribe, !s.delta, s.held(), s.globs())
	r.Subscribe = f.within
	if !s.delta { // what the client lists no more, it gave up
		listed := make(map[string]struct{})
		for _, over := range f.over {
			for _, text := range over.names {
				listed[text] = struct{}{}
			}
		}
		maps.DeleteFunc(sub.over, func(text string, _ struct{}) bool { _, is := listed[text]; return !is })
	}
	for _, over := range f.over {
		for _, text := range over.names {
			delete(r.InitialVersions, text) // that it is not served does not mean that it is gone
		}
		s.refuseNames(sub, over.names, len(over.names), over.why)
	}
}

// limitVersions drops what a client says it holds where that is more than is looked at: it is sent more than it needs.
func (s *stream) limitVersions(sub *subscription, r *wire.Request) {
	if sub.begun || len(r.InitialVersions) == 0 {
		return
	}
	total := len(r.InitialVersions)
	for _, other := range s.subs {
		total += len(other.known)
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

// refuseNames takes note of names that are not served, or of a number of them that are not known, and counts, logs and
// tells those that are new.
func (s *stream) refuseNames(sub *subscription, names []string, n int, why error) {
	room := maxOver
	for _, other := range s.subs {
		room -= len(other.over)
	}
	first := ""
	for _, text := range names {
		if _, again := sub.over[text]; again {
			n--
			continue
		}
		if first == "" {
			first = text
		}
		if room--; room < 0 {
			continue
		}
		if sub.over == nil {
			sub.over = make(map[string]struct{})
		}
		sub.over[text] = struct{}{}
		if sub.errors {
			sub.failures.own = append(sub.failures.own, wire.NewResourceError(text, codes.ResourceExhausted, status.Convert(why).Message()))
		}
	}
	if len(names) > 0 {
		sub.explicit = true // to ask for what is too many is not to ask for everything
	}
	if n == 0 {
		return
	}
	s.server.guard.Counters.Rejected(why)
	if l := &s.server.badNameLog; l.Allow() {
		limit, _ := guard.LimitOf(why)
		s.client.log().LogAttrs(context.Background(), slog.LevelWarn, "resource names over a limit are not served",
			slog.String("type_url", sub.typeURL), slog.String("limit", limit.String()), slog.Int("refused", n), slog.String("name", first),
			slog.String("err", status.Convert(why).Message()), l.Suppressed())
	}
}

// admitRefused subscribes to names that were refused, as far as there is room now.
func (s *stream) admitRefused() {
	for _, sub := range s.subs {
		if len(sub.over) == 0 || s.held() >= s.cfg.MaxNames {
			continue
		}
		within := sub.fit(slices.Sorted(maps.Keys(sub.over)), nil, false, s.held(), s.globs()).within
		for _, text := range within {
			delete(sub.over, text)
		}
		if len(within) > 0 {
			sub.give(within)
		}
	}
}
