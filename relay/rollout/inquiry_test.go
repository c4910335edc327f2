package rollout

import (
	"errors"
	"iter"
	"log/slog"
	"testing"
	"time"

	"github.com/xdstender/tender/downstream"
)

// TestCheckFailsOverEditions: since when the check gives no answer does not depend on how often the origin supersedes editions.
func TestCheckFailsOverEditions(t *testing.T) {
	c := NewController(ControllerConfig{
		Config: Config{Stages: Stages{{Lasts: time.Minute}}, Checked: true}, Logger: slog.New(slog.DiscardHandler),
		Observed: func() iter.Seq[downstream.Observed] { return func(func(downstream.Observed) bool) {} },
	}, nil)
	at := time.Unix(1e9, 0)
	c.cut(t.Context(), at, Facts{}, nil)
	c.take(answered{c.machine.Edition(), Verdict{Asked: at}, errors.New("down")})
	c.cut(t.Context(), at.Add(time.Minute), Facts{}, nil)
	if !c.failing.Equal(at) || c.words != "" || !c.asked.IsZero() {
		t.Errorf("the check fails since %v and was asked at %v about the next edition (%q); want since %v, and that it was not asked", c.failing, c.asked, c.words, at)
	}
	c.take(answered{c.machine.Edition(), Verdict{Asked: at.Add(time.Hour), Go: true}, nil})
	if !c.failing.IsZero() {
		t.Errorf("the check fails since %v, although it answered", c.failing)
	}
}

// TestTheCheckIsToldOfNoOtherEdition: what clients did with the edition before is no news of the next.
func TestTheCheckIsToldOfNoOtherEdition(t *testing.T) {
	c, _ := aController(t)
	c.parts = nil
	c.evidence, c.canaries = Evidence{Wanting: 3, Answered: 3, Accepted: 2}, []string{"canary"}
	c.cut(t.Context(), time.Unix(1e9, 0), Facts{}, nil)
	if q := c.question(); q.Accepted+q.Refused+len(q.Canaries) > 0 || len(c.cohorts) != 3 {
		t.Errorf("the check is asked %+v about an edition that nobody was served", q)
	}
}
