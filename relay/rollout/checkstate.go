package rollout

import (
	"context"
	"log/slog"
	"time"
)

// A checkState is the state of the requests to the check about one edition.
type checkState struct {
	pending      bool      // a request is in progress
	asked        time.Time // when the last request was sent
	verdict      Verdict
	detail       string    // the last verdict or error, for operators
	failingSince time.Time // start of the failures; zero if the last request succeeded
}

// A checkResult is the result of one request about an edition.
type checkResult struct {
	edition Edition
	Verdict
	err error
}

// startCheck sends a request if one is due. It returns the time of the next request; zero waits for an event.
func (c *Controller) startCheck(ctx context.Context, now time.Time) (next time.Time) {
	m := c.machine.State()
	if c.cfg.Check == nil || !m.Phase.inProgress() || c.pending {
		return time.Time{}
	}
	due := c.asked.Add(CheckEvery)
	if c.asked.IsZero() || m.CheckSince.After(c.asked) {
		due = now
	}
	if now.Before(due) {
		return due
	}
	c.asked, c.pending = now, true
	edition, question := m.Edition, c.newQuestion()
	go func() { // ends within checkTimeout
		v, err := c.cfg.Check.Ask(ctx, question)
		select {
		case c.checkResults <- checkResult{edition, v, err}:
		case <-c.ended:
		}
	}()
	return time.Time{}
}

func (c *Controller) newQuestion() Question {
	m := c.machine.State()
	q := Question{
		Origin: c.cfg.Origin, Edition: c.edition.id, Stage: m.Stage, Stages: len(c.cfg.Stages),
		Changed: m.Changed, Resources: c.edition.resources,
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

// recordCheckResult records a result of the check, unless it is about an earlier edition.
func (c *Controller) recordCheckResult(a checkResult) {
	if a.edition != c.machine.State().Edition {
		return
	}
	c.pending = false
	switch {
	case a.err != nil:
		c.detail = a.err.Error()
		if c.failingSince.IsZero() {
			c.failingSince = a.Asked
			c.cfg.Logger.Warn("rollout check gives no answer; the edition does not proceed", slog.String("edition", c.edition.id), slog.Any("err", a.err))
		}
	case a.Refuse != "":
		c.verdict, c.detail, c.failingSince = a.Verdict, "no: "+a.Refuse, time.Time{}
	default:
		c.verdict, c.detail, c.failingSince = a.Verdict, "go", time.Time{}
	}
}
