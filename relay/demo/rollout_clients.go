package demo

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
)

// An edition lists the resources that one change of the origin replaces. The relay distributes them in stages.
type edition []replaced

// A replaced is a resource of an edition, with its content before the edition and in it.
type replaced struct {
	typeURL, name string
	before, after content
}

// editionOf returns the edition of a change. before holds the contents of the mesh before the change.
func editionOf(c change, before map[string]map[string]content) (e edition) {
	for _, u := range c.updates {
		for _, r := range u.Resources {
			e = append(e, replaced{u.TypeURL, r.Name, before[u.TypeURL][r.Name], contentOf(u.TypeURL, r.Name, r.Value())})
		}
	}
	return e
}

// ofType returns the resources of an edition that are of one type.
func (e edition) ofType(typeURL string) (part edition) {
	for _, r := range e {
		if r.typeURL == typeURL {
			part = append(part, r)
		}
	}
	return part
}

// deliveries records when a client received each content of the staged types. The mutex of the client guards it. A nil
// *deliveries records nothing.
type deliveries struct {
	times    map[content]times
	rejected time.Time // time of the first NACK; zero if there was none
}

// times are the first and the last delivery of a content.
type times struct{ first, last time.Time }

func newDeliveries() *deliveries { return &deliveries{times: make(map[content]times)} }

// add records the resources of an update. Endpoints are not staged and not recorded.
func (d *deliveries) add(u update, now time.Time) {
	if d == nil || u.typeURL == wire.EndpointType {
		return
	}
	for name, value := range u.resources {
		c := contentOf(u.typeURL, name, value)
		d.times[c] = times{first: earliest(d.times[c].first, now), last: now}
	}
}

// addRejection records the time of a NACK. Only the first one is kept.
func (d *deliveries) addRejection(now time.Time) {
	if d != nil {
		d.rejected = earliest(d.rejected, now)
	}
}

// earliest returns the earlier of two times. A zero time is ignored.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// A progress describes which part of an edition a client has.
type progress struct {
	sent     time.Time // when the client was first sent part of the edition; zero if never
	complete bool      // the client has all of the edition

	// restored is set if the client has the former content of every resource of the edition that it was sent. For a
	// rejected resource, the relay must have sent the former content again.
	restored   bool
	restoredAt time.Time // when the last former content was sent; zero if none of the edition was sent
}

// progress returns the progress of the client with an edition. It may be called from any goroutine.
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
		p.restored = p.restored && held == r.before && !before.last.Before(after.last)
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

// sentTo returns how many canaries and how many other clients were sent part of an edition.
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

// restored returns the time from the first delivery of the edition until every client had the former contents again.
// It returns false if some clients do not have them yet.
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

// firstRejection returns the time of the first NACK of any client; zero if there was none.
func (s *rolloutDemo) firstRejection() (first time.Time) {
	for _, c := range s.clients {
		c.mu.Lock()
		first = earliest(first, c.deliveries.rejected)
		c.mu.Unlock()
	}
	return first
}

// checkOrder returns an error if a stage was sent the edition before an earlier stage.
func (s *rolloutDemo) checkOrder() error {
	firsts := make([]time.Time, len(s.cohorts.sizes))
	for _, c := range s.clients {
		cohort := s.cohorts.of[c]
		firsts[cohort] = earliest(firsts[cohort], c.progress(s.edition).sent)
	}
	var before time.Time
	for cohort, at := range firsts {
		if at.IsZero() {
			continue // no client is in the cohort
		}
		if at.Before(before) {
			return fmt.Errorf("stage %d was sent a change before the one before", cohort+1)
		}
		before = at
	}
	return nil
}

// checkLastGood returns an error unless all clients have the current endpoints, and the contents from before the
// edition.
func (s *rolloutDemo) checkLastGood(ctx context.Context) error {
	s.mu.Lock() // stops changes of endpoints during the comparison
	defer s.mu.Unlock()
	want := s.mesh.contents()
	for _, r := range s.edition {
		want[r.typeURL][r.name] = r.before
	}
	return s.agreement(ctx, settleWait, want)
}

// envoyError returns the error detail with which an Envoy would reject an update, or "" if an Envoy would accept it. It
// checks only that the last HTTP filter of a listener is the router, which the bad edition violates.
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
