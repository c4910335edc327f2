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
	p := c.newPart()
	c.addPart(p)
	record := func(v Verdict, err error) {
		current := p.machine.edition
		p.checks.record(checkResult{p, current, v, err}, current, p.edition.id)
	}
	at := time.Unix(1e9, 0)
	c.cutEditions(t.Context(), at, map[*part]*component{p: {}})
	record(Verdict{RequestedAt: at}, errors.New("down"))
	c.cutEditions(t.Context(), at.Add(time.Minute), map[*part]*component{p: {}})
	if !p.checks.failingSince.Equal(at) || p.checks.detail != "" || !p.checks.requestedAt.IsZero() {
		t.Errorf("after a new edition: failing since %v, last request at %v, detail %q; want failing since %v and no request",
			p.checks.failingSince, p.checks.requestedAt, p.checks.detail, at)
	}
	allowed := Verdict{RequestedAt: at.Add(time.Hour), Allowed: true}
	record(allowed, nil)
	if !p.checks.failingSince.IsZero() {
		t.Errorf("after a verdict: failing since %v, want zero", p.checks.failingSince)
	}
	record(allowed, nil)
	for _, line := range []string{"rollout check failed", "rollout check responds again"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("logged %d times %q, want once:\n%s", n, line, log.String())
		}
	}
}

// TestCheckRequestOmitsEarlierEdition verifies that a request does not count answers to the edition before.
func TestCheckRequestOmitsEarlierEdition(t *testing.T) {
	c, _, p := newIdleController(t)
	c.tracker.sections = nil
	p.evidence, p.canaries = Evidence{Subscribed: 3, Answered: 3, Accepted: 2}, []string{"canary"}
	c.cutEditions(t.Context(), time.Unix(1e9, 0), map[*part]*component{p: {}})
	if q := c.newRequest(p); q.Accepted+q.Rejected+len(q.Canaries) > 0 || len(p.cohorts) != 3 {
		t.Errorf("the request about an edition that is not served yet is %+v, want no answers", q)
	}
}
