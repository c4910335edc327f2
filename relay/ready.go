package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/upstream"
)

// An originState is the result of the probes of an origin. Probes run until the relay is ready.
type originState struct {
	answered bool
	open     bool  // a probe stream is open, and the origin has not responded
	err      error // of the last failed probe; nil if none failed
	logged   repeatedLog
}

// A repeatedLog limits a log message to growing intervals while its cause persists.
type repeatedLog struct {
	last  time.Time // when the message was last logged
	every time.Duration
}

// The intervals of a repeatedLog.
const (
	minRepeat = 10 * time.Second
	maxRepeat = 10 * time.Minute
)

// due reports whether to log the message now. A new cause is logged at once.
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

// errNoGoodFile is the error of a directory whose files are all invalid.
var errNoGoodFile = errors.New("the directory has no valid file")

// refusesRelay reports whether the origin is reachable but does not serve this relay.
func (s *originState) refusesRelay() bool {
	code := status.Code(s.err)
	return s.err != nil && (code == codes.Unauthenticated || code == codes.PermissionDenied ||
		errors.Is(s.err, errNoGoodFile))
}

// reason returns, for operators, why a target has not responded.
func (s *originState) reason(t *admin.Target) string {
	switch {
	case s.refusesRelay():
		return fmt.Sprintf("origin %s refuses the relay: %v", t.Target, s.err)
	case s.open && t.Active:
		return fmt.Sprintf("origin %s has not responded yet", t.Target)
	default:
		return fmt.Sprintf("origin %s is not connected: its connection is %s", t.Target, t.State)
	}
}

// A probeEvent is a new state of an origin.
type probeEvent struct {
	origin int
	originState
}

// originProbes probe the origins until the relay is ready.
type originProbes struct {
	settings *settings
	origins  origins
	router   *router
	log      *slog.Logger

	states atomic.Pointer[[]originState] // results; not updated once the relay is ready
	there  chan struct{}                 // closed once an origin has responded, or refuses the relay
}

// run calls setReady once the origins have responded to probes ([originsAnswered]). It must not be called if the relay
// is ready, because a view was restored. An unreachable origin does not make a ready relay unready: all replicas would
// lose their clients, although they can serve cached state (B.8).
func (p *originProbes) run(ctx context.Context, setReady func()) {
	ctx, cancel := context.WithCancel(ctx)
	var probes sync.WaitGroup
	defer probes.Wait()
	defer cancel()
	events := make(chan probeEvent)
	for i, o := range p.origins {
		probes.Go(func() { p.probeOrigin(ctx, i, o, events) }) // awaited above
	}
	states := make([]originState, len(p.origins))
	cold, waited, there := time.After(p.settings.coldWait), false, false
	for !originsAnswered(states, waited) {
		now := slices.Clone(states)
		p.states.Store(&now)
		select {
		case e := <-events:
			was := &states[e.origin]
			if e.open {
				e.err = was.err // keep the last error until the origin responds
			}
			p.logProbe(was, &e, time.Now())
			if *was = e.originState; !there && (was.answered || was.refusesRelay()) {
				there = true
				close(p.there)
			}
		case <-cold:
			waited = true
		case <-ctx.Done():
			return
		}
	}
	p.warnUnreachable(states)
	setReady()
}

// probeOrigin sends the states of an origin to events until the origin has responded or ctx ends.
func (p *originProbes) probeOrigin(ctx context.Context, origin int, o origin, events chan<- probeEvent) {
	send := func(s originState) {
		select {
		case events <- probeEvent{origin, s}:
		case <-ctx.Done():
		}
	}
	node := sharedNode(p.settings.node, slices.Clone(p.settings.node.GetClientFeatures()))
	err := o.probe(ctx, upstream.Probe{
		Node:      node,
		TypeURL:   p.router.probeType(origin),
		ForOthers: nodegroup.HasPlaces(p.settings.nodeID) || slices.Contains(p.settings.groupBy, "id"),
		Opened:    func() { send(originState{open: true}) },
		Failed:    func(err error) { send(originState{err: err}) },
	})
	if err == nil {
		send(originState{answered: true})
	}
}

// probeType returns a type whose wildcard set the origin serves, for its probe; clusters if there is none.
func (r *router) probeType(origin int) string {
	for _, typeURL := range schema.Roots {
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

// originsAnswered reports whether the relay need not wait for origins any longer. The first origin must have responded.
// Once TENDER_COLD_WAIT has passed, which waited reports, further origins that are unreachable are skipped. An origin
// that is reachable but refuses the relay is never skipped.
func originsAnswered(states []originState, waited bool) bool {
	for i := range states {
		s := &states[i]
		if !s.answered && (i == 0 || !waited || s.open || s.refusesRelay()) {
			return false
		}
	}
	return true
}

// warnUnreachable logs the origins that the relay skipped.
func (p *originProbes) warnUnreachable(states []originState) {
	for i := range states {
		if !states[i].answered {
			p.log.Warn("origin unreachable; relay ready without it", slog.String("origin", p.settings.origins[i].Name),
				slog.Duration("waited", p.settings.coldWait), slog.Any("err", states[i].err))
		}
	}
}

// logProbe logs why a probe failed, as often as its [repeatedLog] permits.
func (p *originProbes) logProbe(was *originState, e *probeEvent, now time.Time) {
	e.logged = was.logged
	if e.err == nil || e.open || !e.logged.due(was.err == nil || was.err.Error() != e.err.Error(), now) {
		return
	}
	p.log.Warn("origin does not respond; relay not ready", slog.String("origin", p.settings.origins[e.origin].Name),
		slog.Any("err", e.err))
}

// notReady returns, for operators, the reasons why the relay is not ready (B.8).
func (r *Relay) notReady() []string {
	if r.draining.Load() {
		return []string{"relay is draining: it was stopped"}
	}
	if r.ready.Load() {
		return nil
	}
	return r.probes.reasons()
}

// reasons returns, for operators, which origins have not responded and why.
func (p *originProbes) reasons() (reasons []string) {
	states := p.states.Load()
	for i, o := range p.origins {
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
		if s.err != nil && !s.refusesRelay() {
			reasons = append(reasons, "last error: "+s.err.Error())
		}
	}
	return reasons
}

// probed implements downstream.Config.Probed. It answers the probes of downstream relays, which are ready only if this
// relay is.
func (r *Relay) probed() error {
	if err := r.Ready(); err != nil {
		return status.Errorf(codes.Unavailable, "relay %q is not ready: %s", r.identifier, strings.TrimSpace(err.Error()))
	}
	return nil
}
