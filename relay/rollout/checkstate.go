package rollout

import (
	"context"
	"log/slog"
	"time"
)

// checks sends requests about the editions of a part to the external check, one at a time for each edition. The goroutine
// of Run owns it.
type checks struct {
	check   *Check // nil without an external check
	log     *slog.Logger
	results chan checkResult
	ended   <-chan struct{} // closed when Run returns
	checkState
}

// A checkState is the state of the requests to the check about one edition.
type checkState struct {
	inFlight     bool      // a request is in progress
	requestedAt  time.Time // when the last request was sent
	verdict      Verdict
	detail       string    // the last verdict or error, for operators
	failingSince time.Time // start of the failures; zero if the last request succeeded
}

// A checkResult is the result of one request about an edition of a part.
type checkResult struct {
	part    *part
	edition Edition
	Verdict
	err error
}

// reset starts the requests about a new edition. This does not end a failure of the check.
func (c *checks) reset() { c.checkState = checkState{failingSince: c.failingSince} }

// startCheck sends a request about the edition of a part if one is due. It returns the time of the next request; zero if
// only an event causes it.
func (c *Controller) startCheck(ctx context.Context, now time.Time, p *part) (next time.Time) {
	return p.checks.start(ctx, now, p, c.newRequest)
}

// start implements startCheck.
func (c *checks) start(
	ctx context.Context, now time.Time, p *part, newRequest func(*part) CheckRequest,
) (next time.Time) {
	m := p.machine.State()
	if c.check == nil || !m.Phase.inProgress() || c.inFlight {
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
	edition, request := m.Edition, newRequest(p)
	go func() { // ends within checkTimeout
		v, err := c.check.Send(ctx, request)
		select {
		case c.results <- checkResult{p, edition, v, err}:
		case <-c.ended:
		}
	}()
	return time.Time{}
}

// newRequest returns a request about the edition in progress of a part.
func (c *Controller) newRequest(p *part) CheckRequest {
	m := p.machine.State()
	return CheckRequest{
		Origin: c.cfg.Origin, Part: p.edition.name, Edition: p.edition.id, Stage: m.Stage, Stages: len(c.cfg.Stages),
		Changed: m.Changed, Resources: p.edition.resources, Clients: c.tracker.clientsOf(m.Stage),
		Accepted: p.evidence.Accepted, Rejected: p.evidence.Answered - p.evidence.Accepted,
		Canaries: p.canaries[:min(len(p.canaries), MaxCanaries)],
	}
}

// record records a result of the check, unless it is about an earlier edition than current. id is that of current in
// the log.
func (c *checks) record(r checkResult, current Edition, id string) {
	if r.edition != current {
		return
	}
	c.inFlight = false
	switch {
	case r.err != nil:
		c.detail = r.err.Error()
		if c.failingSince.IsZero() {
			c.failingSince = r.RequestedAt
			c.log.Warn("rollout check failed; rollout is waiting",
				slog.String("edition", id), slog.Any("err", r.err))
		}
	case r.RejectReason != "":
		c.logResponse(id)
		c.verdict, c.detail, c.failingSince = r.Verdict, "no: "+r.RejectReason, time.Time{}
	default:
		c.logResponse(id)
		c.verdict, c.detail, c.failingSince = r.Verdict, "go", time.Time{}
	}
}

// logResponse logs the first result after failures of the check.
func (c *checks) logResponse(id string) {
	if !c.failingSince.IsZero() {
		c.log.Info("rollout check responds again", slog.String("edition", id))
	}
}
