package rollout

import (
	"context"
	"log/slog"
	"time"
)

// An inquiry is what the check was asked of one edition, and what it answered.
type inquiry struct {
	asking  bool      // an answer is awaited
	asked   time.Time // when the check was asked last
	verdict Verdict
	words   string    // what it answered, or why it did not
	failing time.Time // since when it does not
}

// An answered is an answer of the check, about an edition.
type answered struct {
	about Edition
	Verdict
	err error
}

// ask asks the check if that is due, and returns when it is due next; zero is not before something changes.
func (c *Controller) ask(ctx context.Context, now time.Time) (next time.Time) {
	if c.cfg.Check == nil || !c.machine.open() || c.asking {
		return time.Time{}
	}
	due := c.asked.Add(CheckEvery)
	if c.asked.IsZero() || c.machine.Ripe().After(c.asked) {
		due = now
	}
	if now.Before(due) {
		return due
	}
	c.asked, c.asking = now, true
	edition, question := c.machine.Edition(), c.question()
	go func() { // which answers within checkTimeout
		v, err := c.cfg.Check.Ask(ctx, question)
		select {
		case c.verdicts <- answered{edition, v, err}:
		case <-c.ended:
		}
	}()
	return time.Time{}
}

func (c *Controller) question() Question {
	q := Question{
		Origin: c.cfg.Origin, Edition: c.about.id, Stage: c.machine.Stage(), Stages: len(c.cfg.Stages),
		Changed: c.machine.Changed(), Resources: c.about.resources,
		Accepted: c.evidence.Accepted, Refused: c.evidence.Answered - c.evidence.Accepted,
		Canaries: c.canaries[:min(len(c.canaries), MaxCanaries)],
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, clients := range c.clients[:q.Stage] {
		q.Clients += clients
	}
	return q
}

// take takes an answer of the check.
func (c *Controller) take(a answered) {
	if a.about != c.machine.Edition() {
		return
	}
	c.asking = false
	switch {
	case a.err != nil:
		c.words = a.err.Error()
		if c.failing.IsZero() {
			c.failing = a.Asked
			c.cfg.Logger.Warn("rollout check gives no answer; the edition goes no further", slog.String("edition", c.about.id), slog.Any("err", a.err))
		}
	case a.Refuse != "":
		c.verdict, c.words, c.failing = a.Verdict, "no: "+a.Refuse, time.Time{}
	default:
		c.verdict, c.words, c.failing = a.Verdict, "go", time.Time{}
	}
}
