package rollout

import (
	"errors"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/downstream"
)

// TestCheckFailureOutlastsEdition verifies that a new edition does not reset the start of a failure of the check.
func TestCheckFailureOutlastsEdition(t *testing.T) {
	var log strings.Builder
	c := NewController(ControllerConfig{
		Config: Config{Stages: Stages{{Duration: time.Minute}}, Checked: true}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Observed: func() iter.Seq[downstream.Observed] { return func(func(downstream.Observed) bool) {} },
	}, nil)
	at := time.Unix(1e9, 0)
	c.partSet().cutEdition(t.Context(), at, Facts{}, nil)
	c.checks().record(checkResult{c.machine.State().Edition, Verdict{RequestedAt: at}, errors.New("down")})
	c.partSet().cutEdition(t.Context(), at.Add(time.Minute), Facts{}, nil)
	if !c.failingSince.Equal(at) || c.detail != "" || !c.requestedAt.IsZero() {
		t.Errorf("after a new edition: failing since %v, last request at %v, detail %q; want failing since %v and no request",
			c.failingSince, c.requestedAt, c.detail, at)
	}
	allowed := Verdict{RequestedAt: at.Add(time.Hour), Allowed: true}
	c.checks().record(checkResult{c.machine.State().Edition, allowed, nil})
	if !c.failingSince.IsZero() {
		t.Errorf("after a verdict: failing since %v, want zero", c.failingSince)
	}
	c.checks().record(checkResult{c.machine.State().Edition, allowed, nil})
	for _, line := range []string{"rollout check failed", "rollout check responds again"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("logged %d times %q, want once:\n%s", n, line, log.String())
		}
	}
}

// TestCheckRequestOmitsEarlierEdition verifies that a request does not count answers to the edition before.
func TestCheckRequestOmitsEarlierEdition(t *testing.T) {
	c, _ := newIdleController(t)
	c.parts = nil
	c.evidence, c.canaries = Evidence{Subscribed: 3, Answered: 3, Accepted: 2}, []string{"canary"}
	c.partSet().cutEdition(t.Context(), time.Unix(1e9, 0), Facts{}, nil)
	if q := c.checks().newRequest(); q.Accepted+q.Refused+len(q.Canaries) > 0 || len(c.cohorts) != 3 {
		t.Errorf("the request about an edition that is not served yet is %+v, want no answers", q)
	}
}
