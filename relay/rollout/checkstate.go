package rollout

import (
	"context"
	"log/slog"
	"time"
)

// A checkState is the state of the requests to the check about one edition.
type checkState struct {
	inFlight     bool      // a request is in progress
	requestedAt  time.Time // when the last request was sent
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

// start sends a request if one is due. It returns the time of the next request; zero if only an event causes it.
func (c checks) start(ctx context.Context, now time.Time) (next time.Time) {
	m := c.machine.State()
	if c.cfg.Check == nil || !m.Phase.inProgress() || c.inFlight {
		return time.Time{}
	}
	due := c.requestedAt.Add(CheckEvery)
	if c.requestedAt.IsZero() || m.CheckSince.After(c.requestedAt) {
		due = now
	}
	if now.Before(due) {
		return due
	}
	c.requestedAt, c.inFlight = now, true
	edition, request := m.Edition, c.newRequest()
	go func() { // ends within checkTimeout
		v, err := c.cfg.Check.Send(ctx, request)
		select {
		case c.checkResults <- checkResult{edition, v, err}:
		case <-c.ended:
		}
	}()
	return time.Time{}
}

// newRequest returns a request about the edition in progress.
func (c checks) newRequest() CheckRequest {
	m := c.machine.State()
	r := CheckRequest{
		Origin: c.cfg.Origin, Edition: c.edition.id, Stage: m.Stage, Stages: len(c.cfg.Stages),
		Changed: m.Changed, Resources: c.edition.resources,
		Accepted: c.evidence.Accepted, Refused: c.evidence.Answered - c.evidence.Accepted,
		Canaries: c.canaries[:min(len(c.canaries), MaxCanaries)],
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, clients := range c.clients[:r.Stage] {
		r.Clients += clients
	}
	return r
}

// record records a result of the check, unless it is about an earlier edition.
func (c checks) record(r checkResult) {
	if r.edition != c.machine.State().Edition {
		return
	}
	c.inFlight = false
	switch {
	case r.err != nil:
		c.detail = r.err.Error()
		if c.failingSince.IsZero() {
			c.failingSince = r.RequestedAt
			c.cfg.Logger.Warn("rollout check failed; rollout is waiting",
				slog.String("edition", c.edition.id), slog.Any("err", r.err))
		}
	case r.RejectReason != "":
		c.responds()
		c.verdict, c.detail, c.failingSince = r.Verdict, "no: "+r.RejectReason, time.Time{}
	default:
		c.responds()
		c.verdict, c.detail, c.failingSince = r.Verdict, "go", time.Time{}
	}
}

// responds logs the first result after failures of the check.
func (c checks) responds() {
	if !c.failingSince.IsZero() {
		c.cfg.Logger.Info("rollout check responds again", slog.String("edition", c.edition.id))
	}
}
