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

// An originState is the result of the probes of an origin while the relay is not ready.
type originState struct {
	answered bool
	open     bool  // a probe stream is open and the origin has not answered
	err      error // of the last probe that failed; nil if none did
	logged   repeatedLog
}

// A repeatedLog is a log line that is repeated at growing intervals while its cause remains.
type repeatedLog struct {
	last  time.Time
	every time.Duration
}

// The intervals of a repeat.
const (
	minRepeat = 10 * time.Second
	maxRepeat = 10 * time.Minute
)

// due reports whether the line is to be logged now: at once for a new cause, and then at growing intervals.
func (r *repeatedLog) due(newCause bool, now time.Time) bool {
	if !newCause && now.Sub(r.last) < r.every {
		return false
	}
	if r.last = now; newCause {
		r.every = minRepeat
	} else {
		r.every = min(2*r.every, maxRepeat)
	}
	return true
}

// errNoGoodFile says that a directory has files and none of them can be used.
var errNoGoodFile = errors.New("none of its files is good")

// rejectsRelay reports whether the origin can be reached and does not serve the relay.
func (s *originState) rejectsRelay() bool {
	code := status.Code(s.err)
	return s.err != nil && (code == codes.Unauthenticated || code == codes.PermissionDenied || errors.Is(s.err, errNoGoodFile))
}

// reason returns why a target has not answered.
func (s *originState) reason(t *admin.Target) string {
	switch {
	case s.rejectsRelay():
		return fmt.Sprintf("the origin %s does not serve the relay: %v", t.Target, s.err)
	case s.open && t.Active:
		return fmt.Sprintf("the origin %s has not answered yet", t.Target)
	default:
		return fmt.Sprintf("the origin %s was not reached yet: its connection is %s", t.Target, t.State)
	}
}

// A probeEvent is a result of an origin's probe.
type probeEvent struct {
	origin int
	originState
}

// originProbes find out, until the relay is ready, whether the origins serve it.
type originProbes struct{ *Relay }

// run reports the relay as serving once each origin has answered a probe, unless a view was
// restored; see [originProbes.originsAnswered]. Nothing but a drain unsets that: a lost origin must not empty
// a tier that can serve (B.8).
func (r originProbes) run(ctx context.Context) {
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
	states := make([]originState, len(r.origins))
	cold, waited := time.After(r.cfg.ColdWait), false
	for !r.originsAnswered(states, waited) {
		now := slices.Clone(states)
		r.originStates.Store(&now)
		select {
		case e := <-events:
			was := &states[e.origin]
			if e.open {
				e.err = was.err // until it answers
			}
			r.logProbe(was, &e, time.Now())
			*was = e.originState
		case <-cold:
			waited = true
		case <-ctx.Done():
			return
		}
	}
	r.warnUnreachable(states)
	r.setReady()
}

// probeOrigin sends the state of an origin to events until it has answered or ctx ends.
func (r originProbes) probeOrigin(ctx context.Context, origin int, o origin, events chan<- probeEvent) {
	send := func(s originState) {
		select {
		case events <- probeEvent{origin, s}:
		case <-ctx.Done():
		}
	}
	node := sharedNode(r.groups.relayNode, slices.Clone(r.groups.relayNode.GetClientFeatures()))
	err := o.probe(ctx, upstream.Probe{
		Node:      node,
		TypeURL:   r.groups.router.probeType(origin),
		ForOthers: nodegroup.HasPlaces(r.cfg.NodeID) || slices.Contains(r.cfg.NodeGroupBy, "id"),
		Opened:    func() { send(originState{open: true}) },
		Failed:    func(err error) { send(originState{err: err}) },
	})
	if err == nil {
		send(originState{answered: true})
	}
}

// probeType returns a type of which the origin serves the wildcard set; clusters if there is none.
func (r *router) probeType(origin int) string {
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

// originsAnswered reports whether the relay is ready as far as origins go: the first one has answered, and
// each further one too, or it could not be reached within TENDER_COLD_WAIT, which has been waited
// for. One that can be reached and refuses the relay is never passed over.
func (r originProbes) originsAnswered(states []originState, waited bool) bool {
	for i := range states {
		s := &states[i]
		if !s.answered && (i == 0 || !waited || s.open || s.rejectsRelay()) {
			return false
		}
	}
	return true
}

// warnUnreachable logs the further origins that the relay does not wait for any longer.
func (r originProbes) warnUnreachable(states []originState) {
	for i := range states {
		if !states[i].answered {
			r.log.Warn("further origin unreachable: the relay is ready without it", slog.String("origin", r.cfg.OriginName(i)),
				slog.Duration("waited", r.cfg.ColdWait), slog.Any("err", states[i].err))
		}
	}
}

// logProbe logs why a probe had no answer, as its [repeat] says.
func (r originProbes) logProbe(was *originState, e *probeEvent, now time.Time) {
	e.logged = was.logged
	if e.err == nil || e.open || !e.logged.due(was.err == nil || was.err.Error() != e.err.Error(), now) {
		return
	}
	r.log.Warn("origin does not answer: relay not ready", slog.String("origin", r.cfg.OriginName(e.origin)), slog.Any("err", e.err))
}

// notReady returns why the relay is not ready, as texts for operators (B.8).
func (r *Relay) notReady() (reasons []string) {
	if r.draining.Load() {
		return []string{"the relay drains: it was told to stop"}
	}
	if r.ready.Load() {
		return nil
	}
	states := r.originStates.Load()
	for i, o := range r.origins {
		var s originState
		if states != nil {
			s = (*states)[i]
		}
		if s.answered {
			continue
		}
		for _, t := range o.status().Targets {
			reasons = append(reasons, s.reason(&t))
		}
		if s.err != nil && !s.rejectsRelay() {
			reasons = append(reasons, "last error: "+s.err.Error())
		}
	}
	return reasons
}

// probed implements downstream.Config.ProbeStatus: a relay below is ready only if this one is.
func (r *Relay) probed() error {
	if err := r.Ready(); err != nil {
		return status.Errorf(codes.Unavailable, "the relay %q is not ready: %s", r.identifier, strings.TrimSpace(err.Error()))
	}
	return nil
}
