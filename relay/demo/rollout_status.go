package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// pollInterval is the time between two reads of the relay's API.
const pollInterval = 50 * time.Millisecond

// await reads the status of the rollout into s.status until done returns true. It returns an error after a timeout,
// which names what it waited for.
func (s *rolloutDemo) await(ctx context.Context, what string, done func() bool) error {
	wait := 2*s.Stage + startWait
	ok, err := s.poll(ctx, wait, func() (bool, error) {
		err := s.readStatus(ctx)
		return err == nil && done(), err
	})
	if err == nil && !ok {
		return fmt.Errorf("the rollout has not come to %s after %v: its state is %v, and it waits for %q", what, wait, s.status.Phase, s.status.WaitsFor)
	}
	return err
}

// awaitConfirmed waits until the relay has confirmed all wildcard sets. Before that, the relay does not stage changes.
func (s *rolloutDemo) awaitConfirmed(ctx context.Context) error {
	ok, err := s.poll(ctx, startWait, func() (bool, error) {
		var is admin.Status
		if err := s.get(ctx, "status", &is); err != nil {
			return false, err
		}
		confirmed := 0
		for _, v := range is.Views {
			for _, t := range v.Types {
				if _, wildcard := needs[t.TypeURL]; wildcard && t.Phase == "confirmed" {
					confirmed++
				}
			}
		}
		return confirmed >= len(needs), nil
	})
	if err == nil && !ok {
		return fmt.Errorf("the relay has not confirmed the clusters and listeners of the control plane after %v", startWait)
	}
	return err
}

// poll calls done until it returns true or an error, and prints rows meanwhile. It returns false when wait has
// passed. The end of ctx is an error.
func (s *rolloutDemo) poll(ctx context.Context, wait time.Duration, done func() (bool, error)) (bool, error) {
	over := time.Now().Add(wait)
	for {
		if ok, err := done(); ok || err != nil || time.Now().After(over) {
			return ok, err
		}
		if err := s.pause(ctx, pollInterval); err != nil {
			return false, err
		}
	}
}

// readStatus reads the status of the only rollout into s.status.
func (s *rolloutDemo) readStatus(ctx context.Context) error {
	var answer admin.Rollouts
	if err := s.get(ctx, "rollouts", &answer); err != nil {
		return err
	}
	if len(answer.Rollouts) != 1 {
		return fmt.Errorf("the relay has %d rollouts, want 1", len(answer.Rollouts))
	}
	s.status = answer.Rollouts[0]
	return nil
}

// get decodes the answer of the relay's admin API at api/v1/path.
func (s *rolloutDemo) get(ctx context.Context, path string, into any) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read the %s of the relay: %w", path, err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/api/v1/%s", s.relay.AdminAddrs()[0], path), nil)
	if err != nil {
		return err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
