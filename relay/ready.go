package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/upstream"
)

// A standing is how an origin stands with the relay while that is not ready.
type standing struct {
	answered bool
	open     bool  // a probe's stream is, and the origin has not answered
	err      error // of the last probe that ended without an answer; nil if none did
	logged   repeat
}

// A repeat is a log line that is repeated at growing intervals while its cause remains.
type repeat struct {
	last  time.Time
	every time.Duration
}

// The intervals of a repeat.
const (
	leastRepeat = 10 * time.Second
	mostRepeat  = 10 * time.Minute
)

// due reports whether the line is to be logged now: at once for a new cause, and then at growing intervals.
func (r *repeat) due(newCause bool, now time.Time) bool {
	if !newCause && now.Sub(r.last) < r.every {
		return false
	}
	if r.last = now; newCause {
		r.every = leastRepeat
	} else {
		r.every = min(2*r.every, mostRepeat)
	}
	return true
}

// errNoGoodFile says that a directory has files and none of them can be used.
var errNoGoodFile = errors.New("none of its files is good")

// refuses reports whether the origin can be reached and does not serve the relay.
func (s *standing) refuses() bool {
	code := status.Code(s.err)
	return s.err != nil && (code == codes.Unauthenticated || code == codes.PermissionDenied || errors.Is(s.err, errNoGoodFile))
}

// reason says why a target has not answered.
func (s *standing) reason(t *admin.Target) string {
	switch {
	case s.refuses():
		return fmt.Sprintf("the origin %s does not serve the relay: %v", t.Target, s.err)
	case s.open && t.Active:
		return fmt.Sprintf("the origin %s has not answered yet", t.Target)
	default:
		return fmt.Sprintf("the origin %s was not reached yet: its connection is %s", t.Target, t.State)
	}
}

// A probeEvent is what a probe of an origin has found.
type probeEvent struct {
	origin int
	standing
}

// readiness reports the relay as serving once each origin has answered a probe, unless a view was
// restored; see [Relay.allStand]. Nothing but a drain unsets that: a lost origin must not empty
// a tier that can serve (B.8).
func (r *Relay) readiness(ctx context.Context) {
	if r.ready.Load() {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var probes sync.WaitGroup
	defer probes.Wait()
	defer cancel()
	events := make(chan probeEvent)
	for i, o := range r.origins {
		probes.Go(func() { r.probeOrigin(ctx, i, o, events) }) // awaited above
	}
	stands := make([]standing, len(r.origins))
	cold, waited := time.After(r.cfg.ColdWait), false
	for !r.allStand(stands, waited) {
		now := slices.Clone(stands)
		r.standings.Store(&now)
		select {
		case e := <-events:
			was := &stands[e.origin]
			if e.open {
				e.err = was.err // until it answers
			}
			r.logProbe(was, &e, time.Now())
			*was = e.standing
		case <-cold:
			waited = true
		case <-ctx.Done():
			return
		}
	}
	r.warnUnreachable(stands)
	r.setReady()
}

// probeOrigin tells how an origin stands, until it has answered or ctx ends.
func (r *Relay) probeOrigin(ctx context.Context, origin int, o origin, events chan<- probeEvent) {
	tell := func(s standing) {
		select {
		case events <- probeEvent{origin, s}:
		case <-ctx.Done():
		}
	}
	node := sharedNode(r.groups.own, slices.Clone(r.groups.own.GetClientFeatures()))
	err := o.probe(ctx, upstream.Probe{
		Node:      node,
		TypeURL:   r.groups.router.asked(origin),
		ForOthers: nodegroup.HasPlaces(r.cfg.NodeID) || slices.Contains(r.cfg.NodeGroupBy, "id"),
		Opened:    func() { tell(standing{open: true}) },
		Failed:    func(err error) { tell(standing{err: err}) },
	})
	if err == nil {
		tell(standing{answered: true})
	}
}

// asked returns a type whose members are an origin's, clusters if there are none.
func (r *router) asked(origin int) string {
	for _, typeURL := range []string{wire.ClusterType, wire.ListenerType} {
		if r.route(typeURL, "") == origin {
			return typeURL
		}
	}
	for typeURL, of := range r.types {
		if of == origin {
			return typeURL
		}
	}
	return wire.ClusterType
}

// allStand reports whether the relay is ready as far as origins go: the first one has answered, and
// each further one too, or it could not be reached within TENDER_COLD_WAIT, which has been waited
// for. One that can be reached and refuses the relay is never passed over.
func (r *Relay) allStand(stands []standing, waited bool) bool {
	for i := range stands {
		s := &stands[i]
		if !s.answered && (i == 0 || !waited || s.open || s.refuses()) {
			return false
		}
	}
	return true
}

// warnUnreachable names the further origins without which the relay becomes ready.
func (r *Relay) warnUnreachable(stands []standing) {
	for i := range stands {
		if !stands[i].answered {
			r.log.Warn("further origin unreachable: the relay is ready without it", slog.String("origin", r.cfg.OriginName(i)),
				slog.Duration("waited", r.cfg.ColdWait), slog.Any("err", stands[i].err))
		}
	}
}

// logProbe logs why a probe had no answer, as its [repeat] says.
func (r *Relay) logProbe(was *standing, e *probeEvent, now time.Time) {
	e.logged = was.logged
	if e.err == nil || e.open || !e.logged.due(was.err == nil || was.err.Error() != e.err.Error(), now) {
		return
	}
	r.log.Warn("origin does not answer: relay not ready", slog.String("origin", r.cfg.OriginName(e.origin)), slog.Any("err", e.err))
}

// notReady returns why the relay is not ready, for people (B.8).
func (r *Relay) notReady() (reasons []string) {
	if r.draining.Load() {
		return []string{"the relay drains: it was told to stop"}
	}
	if r.ready.Load() {
		return nil
	}
	stands := r.standings.Load()
	for i, o := range r.origins {
		var s standing
		if stands != nil {
			s = (*stands)[i]
		}
		if s.answered {
			continue
		}
		for _, t := range o.status().Targets {
			reasons = append(reasons, s.reason(&t))
		}
		if s.err != nil && !s.refuses() {
			reasons = append(reasons, "last error: "+s.err.Error())
		}
	}
	return reasons
}

// probed implements downstream.Config.Probed: a relay below is ready only if this one is.
func (r *Relay) probed() error {
	if err := r.Ready(); err != nil {
		return status.Errorf(codes.Unavailable, "the relay %q is not ready: %s", r.identifier, strings.TrimSpace(err.Error()))
	}
	return nil
}
