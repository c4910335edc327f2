package rollout

import (
	"errors"
	"iter"
	"log/slog"
	"testing"
	"time"

	"github.com/xdstender/tender/downstream"
)

// TestCheckFailsOverEditions holds that a new edition does not reset the start of a failure of the check.
func TestCheckFailsOverEditions(t *testing.T) {
	c := NewController(ControllerConfig{
		Config: Config{Stages: Stages{{Lasts: time.Minute}}, Checked: true}, Logger: slog.New(slog.DiscardHandler),
		Observed: func() iter.Seq[downstream.Observed] { return func(func(downstream.Observed) bool) {} },
	}, nil)
	at := time.Unix(1e9, 0)
	c.partition().cutEdition(t.Context(), at, Facts{}, nil)
	c.recordCheckResult(checkResult{c.machine.State().Edition, Verdict{Asked: at}, errors.New("down")})
	c.partition().cutEdition(t.Context(), at.Add(time.Minute), Facts{}, nil)
	if !c.failingSince.Equal(at) || c.detail != "" || !c.asked.IsZero() {
		t.Errorf("the check fails since %v and was asked at %v about the next edition (%q); want since %v, and that it was not asked", c.failingSince, c.asked, c.detail, at)
	}
	c.recordCheckResult(checkResult{c.machine.State().Edition, Verdict{Asked: at.Add(time.Hour), Go: true}, nil})
	if !c.failingSince.IsZero() {
		t.Errorf("the check fails since %v, although it answered", c.failingSince)
	}
}

// TestCheckRequestOmitsOtherEditions holds that a request does not count answers to the previous edition.
func TestCheckRequestOmitsOtherEditions(t *testing.T) {
	c, _ := aController(t)
	c.parts = nil
	c.evidence, c.canaries = Evidence{Wanting: 3, Answered: 3, Accepted: 2}, []string{"canary"}
	c.partition().cutEdition(t.Context(), time.Unix(1e9, 0), Facts{}, nil)
	if q := c.newQuestion(); q.Accepted+q.Refused+len(q.Canaries) > 0 || len(c.cohorts) != 3 {
		t.Errorf("the check is asked %+v about an edition that no client was served", q)
	}
}
