package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// This file answers responses. The answer is an ACK or a NACK as soon as the response is applied. Later, another NACK of
// the same response tells the origin what clients reject, and an ACK that they do not any more (B.9).

// Bounds on what an origin is told. A content is told once; after reportAgain it is told again, if the origin was sent an
// ACK since, or is another server. Between two NACKs of a type is at least reportInterval, so that an origin that answers
// each one, or ends its stream, is not kept busy.
const (
	reportInterval = 10 * time.Second
	reportAgain    = 10 * time.Minute
	reportNames    = 4   // resources that one NACK names
	reportDetail   = 512 // bytes of the error of a client
)

// reports are what origins were told about the resources of a type that a stream carries.
type reports struct {
	at       time.Time           // of the last NACK
	contents map[string]reported // by name
}

// A reported is a rejected content that origins were told.
type reported struct {
	digest wire.Digest
	at     time.Time
}

// answer sends an ACK of a response, or a NACK if the relay rejects it, or a part of it.
func (v *responses) answer(l *adsStream, u wire.Update, own error) {
	said := &answer{wire.Update{TypeURL: u.TypeURL, Nonce: u.Nonce, SystemVersion: u.SystemVersion}, own, false}
	l.answers[u.TypeURL] = said
	l.reporting.applied = u.Nonce
	l.ackOrNack(v.node, said.response, own)
}

// Report implements Controlled.
func (v *responses) Report(rejected []Rejection) { v.rejected = rejected }

// hasRejections reports whether clients reject a resource, or the origin was told that they do.
func (v *responses) hasRejections() bool { return len(v.rejected) > 0 || v.reported }

// reportRejected tells the origin what has changed of what clients reject. It returns when to call it again.
func (v *responses) reportRejected(now time.Time) (next time.Time) {
	if !v.hasRejections() {
		return time.Time{}
	}
	v.reported = false
	for l := range v.all {
		if !l.open {
			continue
		}
		for _, s := range l.branch.ordered() {
			if said := l.answers[s.typeURL]; said != nil {
				next = reconcile.Earlier(next, v.reportType(l, s, said, now))
				v.reported = v.reported || said.reported
			}
		}
	}
	return next
}

// reportType tells the origin what clients reject of a type on a stream, if that is due.
func (v *responses) reportType(l *adsStream, s *subscription, said *answer, now time.Time) (next time.Time) {
	current, told := s.current(l.role, v.rejected), &s.told[l.role]
	told.forget(current, now)
	switch due := told.dueAt(current, said.reported); {
	case len(current) == 0 && said.reported:
		v.log.Info("origin told that clients reject nothing more", slog.String("type_url", s.typeURL))
	case due.IsZero() || said.response.Nonce == "":
		return time.Time{}
	case now.Before(due):
		return due
	default:
		told.note(current, now)
		v.log.Info("origin told what clients reject", slog.String("type_url", s.typeURL),
			slog.String("name", current[0].Name), slog.Int("count", len(current)))
	}
	said.reported = len(current) > 0
	l.ackOrNack(v.node, said.response, said.err(current))
	return time.Time{}
}

// err returns what to tell the origin: what the relay rejects, and what clients reject.
func (a *answer) err(rejected []Rejection) error {
	switch text := describe(rejected); {
	case text == "":
		return a.own
	case a.own == nil:
		return errors.New(text)
	default:
		return fmt.Errorf("%w; %s", a.own, text)
	}
}

// describe returns the rejected resources as text; empty without any.
func describe(rejected []Rejection) string {
	var parts []string
	for _, r := range rejected[:min(len(rejected), reportNames)] {
		detail := r.Err
		if len(detail) > reportDetail {
			detail = strings.ToValidUTF8(detail[:reportDetail], "") + "…"
		}
		parts = append(parts, fmt.Sprintf("resource %.256q rejected by %d of %d clients: %q", r.Name, r.Rejecting, r.Clients, detail))
	}
	if more := len(rejected) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

// current returns the rejections of resources of a stream of the subscription whose content is still the newest of the
// origin, the most frequent first.
func (s *subscription) current(r role, rejected []Rejection) (all []Rejection) {
	for _, rejection := range rejected {
		if rejection.TypeURL == s.typeURL && s.hasNewest(r, &rejection) {
			all = append(all, rejection)
		}
	}
	slices.SortStableFunc(all, func(a, b Rejection) int {
		return cmp.Or(b.Rejecting-a.Rejecting, cmp.Compare(a.Name, b.Name))
	})
	return all
}

// hasNewest reports whether a rejected content is the newest of a resource that a stream of the subscription carries.
func (s *subscription) hasNewest(r role, rejection *Rejection) bool {
	for set := range s.sets {
		if set.role() != r || set.kind == cache.ByName && !s.subscribesTo(rejection.Name) {
			continue
		}
		if newest := set.Get(rejection.Name); newest != nil && newest.SameContent(rejection.Resource) {
			return true
		}
	}
	return false
}

// subscribesTo reports whether a name is among the names of the subscription. Other names of the view may be of another
// origin.
func (s *subscription) subscribesTo(name string) bool {
	_, subscribed := s.names[s.byName.view.w.View().FindName(s.typeURL, name)]
	return subscribed
}

// dueAt returns when to tell the origin what clients reject; zero if it need not be told. standing reports that the last
// answer told what they reject.
func (r *reports) dueAt(rejected []Rejection, standing bool) (due time.Time) {
	for _, rejection := range rejected {
		at := r.at.Add(reportInterval)
		if told, ok := r.contents[rejection.Name]; ok && told.digest == rejection.Resource.Digest {
			if standing {
				continue
			}
			if again := told.at.Add(reportAgain); again.After(at) {
				at = again
			}
		}
		due = reconcile.Earlier(due, at)
	}
	return due
}

// note records that the origin is told what clients reject.
func (r *reports) note(rejected []Rejection, now time.Time) {
	if r.contents == nil {
		r.contents = make(map[string]reported)
	}
	r.at = now
	for _, rejection := range rejected {
		r.contents[rejection.Name] = reported{rejection.Resource.Digest, now}
	}
}

// forget drops what was told long ago and is not rejected any more.
func (r *reports) forget(rejected []Rejection, now time.Time) {
	for name, told := range r.contents {
		is := func(rejection Rejection) bool { return rejection.Name == name }
		if now.Sub(told.at) >= reportAgain && !slices.ContainsFunc(rejected, is) {
			delete(r.contents, name)
		}
	}
}
