package demo

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/rollout"
)

// A rolloutDemo distributes three editions: a good one, a bad one that is halted, and a fix. Endpoints change
// meanwhile. Only the goroutine of showRollout uses the fields that mu does not guard.
type rolloutDemo struct {
	*demo
	began    time.Time
	http     http.Client
	status   *rollout.Status // as readStatus last read it
	edition  edition         // of the current act; nil before the first act
	bad      edition         // the listener of the halted edition
	rollback time.Duration   // duration of the rollback of the halted edition

	// State at the previous row.
	printed time.Time
	counted reading

	mu     sync.Mutex // guards demo.mesh and latest
	latest string     // description of the latest change of endpoints
}

// showRollout shows the three editions. It returns an error if the relay does not distribute one of them as expected.
func (d *demo) showRollout(ctx context.Context, began time.Time) error {
	s := &rolloutDemo{demo: d, began: began, http: http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: d.network.dialHTTP()}}}
	s.printed, s.counted = began, d.meter.now()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	endpoints := begin(ctx, s.changeEndpoints, fail)
	err := s.acts(ctx)
	endpoints.end()
	switch {
	case failed(ctx) != nil:
		return failed(ctx)
	case ctx.Err() != nil: // and err is its cause
		d.print("\nEnded before the rollouts were over.\n")
		return nil
	default:
		return err
	}
}

// acts runs the three acts, then waits until Options.For has passed.
func (s *rolloutDemo) acts(ctx context.Context) error {
	s.introduction()
	if err := s.awaitConfirmed(ctx); err != nil {
		return err
	}
	if err := s.promote(ctx, "1. A good change: the cluster cart has a connect timeout of 250ms, not of 1s", s.mesh.shortenTimeout); err != nil {
		return err
	}
	if err := s.halt(ctx, "2. A bad change: the listener ingress has a CORS filter after the router", s.mesh.breakIngress); err != nil {
		return err
	}
	if err := s.promote(ctx, "3. The fix: the CORS filter is before the router", s.mesh.fixIngress); err != nil {
		return err
	}
	if left := time.Until(s.began.Add(s.For)); left > 0 {
		s.print("\nEndpoints go on changing until %v are over.\n\n"+rolloutHead, s.For)
		if err := s.pause(ctx, left); err != nil {
			return err
		}
	}
	return s.checkContained()
}

// promote releases an edition and waits until it has passed all stages. It returns an error if the relay halts it.
func (s *rolloutDemo) promote(ctx context.Context, title string, next func() (change, error)) error {
	before, err := s.release(ctx, title, next)
	if err != nil {
		return err
	}
	promoted := func() bool { return s.status.Outcomes.Promoted > before.Promoted }
	halted := func() bool { return s.status.Outcomes.Halted > before.Halted }
	for i, stage := range s.cohorts.stages {
		reached := func() bool {
			return s.status.Stage > i+1 || s.status.Stage == i+1 && s.sent() >= s.cohorts.clients(i+1)
		}
		if err := s.await(ctx, fmt.Sprintf("stage %d", i+1), func() bool { return reached() || promoted() || halted() }); err != nil {
			return err
		}
		if halted() {
			return fmt.Errorf("a good change was halted: %s", s.status.Halted.Reason)
		}
		s.row(time.Now(), fmt.Sprintf("stage %d of %d, %v: all of its clients have it", i+1, len(s.cohorts.stages), stage.Selector))
	}
	if err := s.await(ctx, "its promotion", func() bool { return promoted() && s.holding() == s.Clients }); err != nil {
		return err
	}
	s.row(time.Now(), "promoted: all clients have it, and it is the last good configuration now")
	return s.checkOrder()
}

// halt releases an edition that the canaries reject. It waits until the relay has halted it and rolled the canaries
// back.
func (s *rolloutDemo) halt(ctx context.Context, title string, next func() (change, error)) error {
	before, err := s.release(ctx, title, next)
	if err != nil {
		return err
	}
	if err := s.await(ctx, "its halt", func() bool { return s.status.Outcomes.Halted > before.Halted || s.status.Stage > 1 }); err != nil {
		return err
	}
	halted := s.status.Halted
	if halted == nil {
		return fmt.Errorf("a bad change was not halted: its rollout is at stage %d", s.status.Stage)
	}
	rejected := s.firstRejection()
	if len(s.status.Rejections) == 0 || rejected.IsZero() {
		return fmt.Errorf("the rollout was halted, but not by a client that rejected it: %s", halted.Reason)
	}
	rejection := s.status.Rejections[0]
	s.row(rejected, fmt.Sprintf("stage 1 of %d, %v: its clients reject the listener; %s says:", len(s.cohorts.stages), s.cohorts.stages[0].Selector, rejection.Node))
	s.note(rejection.Detail)
	s.row(halted.At, "HALTED: no other client is served it. The reason:")
	s.note(strings.TrimSuffix(halted.Reason, ": "+rejection.Detail))
	return s.revert(ctx)
}

// revert waits until all clients have the last good configuration, and checks that endpoints still reach them.
func (s *rolloutDemo) revert(ctx context.Context) error {
	if err := s.await(ctx, "the last good at all canaries", func() bool { _, ok := s.restored(); return ok }); err != nil {
		return err
	}
	s.rollback, _ = s.restored()
	s.row(time.Now(), fmt.Sprintf("reverted: all canaries have the last good configuration, %s after the first was sent the change", milliseconds(s.rollback)))
	if err := s.changeEndpoint(); err != nil { // at a low rate, no tick may fall into the pause
		return err
	}
	if err := s.pause(ctx, s.haltShown()); err != nil || ctx.Err() != nil {
		return err
	}
	if err := s.checkLastGood(ctx); err != nil {
		return fmt.Errorf("after the rollback: %w", err)
	}
	_, others := s.sentTo(s.edition)
	s.bad = s.edition.ofType(wire.ListenerType)
	s.row(time.Now(), fmt.Sprintf("all %d clients have the last good configuration and the newest endpoints; %d of the %d that are no canaries were sent the change",
		s.Clients, others, s.others()))
	if others > 0 {
		return fmt.Errorf("%d clients that are no canaries were sent the bad change", others)
	}
	return nil
}

// release begins an act: the origin makes a change, of which the relay makes an edition. It returns the outcomes of the
// editions before.
func (s *rolloutDemo) release(ctx context.Context, title string, next func() (change, error)) (before rollout.Outcomes, err error) {
	if err := s.readStatus(ctx); err != nil {
		return before, err
	}
	s.print("\n%s\n\n"+rolloutHead, title)
	s.count()
	if err := s.changeStaged(next); err != nil {
		return before, err
	}
	s.row(time.Now(), fmt.Sprintf("the control plane has it; the relay gathers changes for %v", gatherTime))
	return s.status.Outcomes, nil
}

// changeStaged submits a change of types that the relay distributes in stages, and sets s.edition.
func (s *rolloutDemo) changeStaged(next func() (change, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.mesh.contents()
	c, err := s.mesh.do(next)
	if err != nil {
		return err
	}
	c.staged = true
	s.edition = editionOf(c, before)
	s.origin.submit(c)
	return nil
}

// changeEndpoints changes endpoints at the rate of the demo until ctx ends.
func (s *rolloutDemo) changeEndpoints(ctx context.Context) error {
	ticks := time.NewTicker(s.interval())
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			if err := s.changeEndpoint(); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// changeEndpoint makes one change of endpoints, which the relay does not stage. It may be called from any goroutine.
func (s *rolloutDemo) changeEndpoint() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.mesh.do(s.mesh.changePods)
	if err != nil {
		return err
	}
	s.latest = c.what
	s.origin.submit(c)
	return nil
}

// shortenTimeout makes the good change: a shorter connect timeout of the cluster cart.
func (m *mesh) shortenTimeout() (change, error) {
	cart := m.services[1].versions[0]
	cart.timeout = 250
	u, err := m.clusterOf(cart)
	return change{what: "a good change", updates: []wire.Update{u}}, err
}

// breakIngress makes the bad change. Clients reject its listener.
func (m *mesh) breakIngress() (change, error) {
	l, err := m.ingressWith(router, cors)
	return change{what: "a bad change", updates: []wire.Update{l}}, err
}

// fixIngress makes the fix of the listener.
func (m *mesh) fixIngress() (change, error) {
	l, err := m.ingressWith(cors, router)
	return change{what: "a fix", updates: []wire.Update{l}}, err
}
