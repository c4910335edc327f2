package demo

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
)

// An edition is what the relay distributes in stages: the resources that one change of the origin replaces.
type edition []replaced

// A replaced resource has one content before an edition, and another after it.
type replaced struct {
	typeURL, name string
	before, after content
}

func editionOf(c change, before map[string]map[string]content) (e edition) {
	for _, u := range c.updates {
		for _, r := range u.Resources {
			e = append(e, replaced{u.TypeURL, r.Name, before[u.TypeURL][r.Name], contentOf(u.TypeURL, r.Name, r.Value())})
		}
	}
	return e
}

// ofType returns the part of an edition that is of one type.
func (e edition) ofType(typeURL string) (part edition) {
	for _, r := range e {
		if r.typeURL == typeURL {
			part = append(part, r)
		}
	}
	return part
}

// deliveries are when a client was sent what, of types that wait for their stage. They belong to their client. Nil
// records nothing.
type deliveries struct {
	times   map[content]times
	refused time.Time // when the client first refused an update; zero if it has refused none
}

type times struct{ first, last time.Time }

func newDeliveries() *deliveries { return &deliveries{times: make(map[content]times)} }

func (d *deliveries) add(u update, now time.Time) {
	if d == nil || u.typeURL == wire.EndpointType {
		return
	}
	for name, value := range u.resources {
		c := contentOf(u.typeURL, name, value)
		d.times[c] = times{first: earliest(d.times[c].first, now), last: now}
	}
}

func (d *deliveries) addRefusal(now time.Time) {
	if d != nil {
		d.refused = earliest(d.refused, now)
	}
}

// earliest returns the earlier of two times. Zero is no time.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// A progress is how far a client is with an edition.
type progress struct {
	sent     time.Time // when the client was first sent part of the edition; zero if never
	complete bool      // the client has all of the edition

	// The client has the content from before the edition for all resources of the edition that it was sent. A rejected
	// resource counts once the former content was sent.
	restored   bool
	restoredAt time.Time // zero if it was sent nothing of the edition
}

func (c *client) progress(e edition) progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := progress{complete: true, restored: true}
	for _, r := range e {
		held := c.held[r.typeURL][r.name].content
		p.complete = p.complete && held == r.after
		after, before := c.deliveries.times[r.after], c.deliveries.times[r.before]
		if after.first.IsZero() {
			continue
		}
		p.sent = earliest(p.sent, after.first)
		p.restored = p.restored && held == r.before && before.last.After(after.last)
		if before.last.After(p.restoredAt) {
			p.restoredAt = before.last
		}
	}
	return p
}

// sent returns how many clients were sent part of the edition.
func (s *rolloutDemo) sent() int {
	canaries, others := s.sentTo(s.edition)
	return canaries + others
}

func (s *rolloutDemo) sentTo(e edition) (canaries, others int) {
	for _, c := range s.clients {
		switch {
		case c.progress(e).sent.IsZero():
		case s.cohorts.of[c] == 0:
			canaries++
		default:
			others++
		}
	}
	return canaries, others
}

// holding returns how many clients have all of the edition.
func (s *rolloutDemo) holding() (n int) {
	for _, c := range s.clients {
		if c.progress(s.edition).complete {
			n++
		}
	}
	return n
}

// restored returns how long it took, from when the first client was sent part of the edition, until all had again what
// was before; ok is false if some do not yet.
func (s *rolloutDemo) restored() (took time.Duration, ok bool) {
	var first, last time.Time
	for _, c := range s.clients {
		p := c.progress(s.edition)
		if !p.restored {
			return 0, false
		}
		first = earliest(first, p.sent)
		if p.restoredAt.After(last) {
			last = p.restoredAt
		}
	}
	return last.Sub(first), true
}

// firstRefusal returns when a client first refused an update; zero if none has.
func (s *rolloutDemo) firstRefusal() (first time.Time) {
	for _, c := range s.clients {
		c.mu.Lock()
		first = earliest(first, c.deliveries.refused)
		c.mu.Unlock()
	}
	return first
}

// checkOrder returns an error if a client was sent the edition before a stage that comes before its own.
func (s *rolloutDemo) checkOrder() error {
	firsts := make([]time.Time, len(s.cohorts.sizes))
	for _, c := range s.clients {
		cohort := s.cohorts.of[c]
		firsts[cohort] = earliest(firsts[cohort], c.progress(s.edition).sent)
	}
	var before time.Time
	for cohort, at := range firsts {
		if at.IsZero() {
			continue // no client is in it
		}
		if at.Before(before) {
			return fmt.Errorf("stage %d was sent a change before the one before", cohort+1)
		}
		before = at
	}
	return nil
}

// checkLastGood returns an error unless all clients have the endpoints that the origin has, and what it had before the
// edition.
func (s *rolloutDemo) checkLastGood(ctx context.Context) error {
	s.mu.Lock() // no endpoint changes
	defer s.mu.Unlock()
	want := s.mesh.contents()
	for _, r := range s.edition {
		want[r.typeURL][r.name] = r.before
	}
	return s.agreement(ctx, settleWait, want)
}

// envoyError returns the error with which an Envoy would refuse an update; empty if it would not. It looks only for the
// fault of the bad edition: the last HTTP filter of a listener must be the router.
func envoyError(u update) string {
	if u.typeURL != wire.ListenerType {
		return ""
	}
	for name, value := range u.resources {
		// filter_chains=3 {filters=3 {typed_config=4 {value=2 {http_filters=5 {name=1}}}}}
		manager := field(value, 3, 3, 4, 2)
		filters, last := 0, ""
		for len(manager) > 0 {
			num, typ, tag := protowire.ConsumeTag(manager)
			size := protowire.ConsumeFieldValue(num, typ, manager[max(tag, 0):])
			if tag < 0 || size < 0 {
				break
			}
			if num == 5 && typ == protowire.BytesType {
				filter, _ := protowire.ConsumeBytes(manager[tag:])
				filters, last = filters+1, string(field(filter, 1))
			}
			manager = manager[tag+size:]
		}
		if filters > 0 && last != routerFilter {
			return fmt.Sprintf("Error adding/updating listener(s) %s: Error: terminal filter named %s of type %[2]s must be the last filter in a http filter chain.",
				name, routerFilter)
		}
	}
	return ""
}
