package reconcile

import (
	"time"

	"github.com/xdstender/tender/cache"
)

// Times without a response after which a set is complete. Delta has no end mark (B.7).
const (
	SettleQuiet = 150 * time.Millisecond
	settleMax   = 2 * time.Second
	ConfirmMax  = 60 * time.Second // or Config.ColdWait without a new name

	// confirmSilence is the time without a response after which an origin confirms the reported content of a snapshot:
	// an origin without changes sends nothing. A relay without content closes a stream earlier (B.8).
	confirmSilence = 15 * time.Second
)

// A Progress estimates from the times of responses how much of a set an origin has sent on a stream.
type Progress struct {
	first   time.Time // response since the set was asked for; zero if none came
	last    time.Time // response
	newName time.Time // response with a name that was not known
	told    time.Time // when the relay reported the content of a snapshot to the origin; zero if it did not

	// complete reports that a SotW origin has sent the whole set. An empty set does not count, because the origin may
	// have just started.
	complete bool
}

// Complete returns when the set is complete if nothing comes until then, at the latest a minute after
// the stream began. Quiet is for how long no new name must come.
func (p *Progress) Complete(began time.Time, quiet time.Duration) time.Time {
	switch {
	case p.complete:
		return p.first
	case p.first.IsZero():
		return began.Add(ConfirmMax)
	}
	return Earlier(p.newName.Add(quiet), began.Add(ConfirmMax))
}

// responded records a response. Once no new name has come for as long as quiet, the set is complete: a
// name that is new later changes nothing about that.
func (p *Progress) responded(now time.Time, news bool, quiet time.Duration) {
	if p.first.IsZero() {
		p.first, p.newName = now, now
	}
	p.last = now
	if news && now.Before(p.newName.Add(quiet)) {
		p.newName = now
	}
}

// settled returns when the set is settled if no response arrives until then.
func (p *Progress) settled() time.Time {
	return Earlier(p.last.Add(SettleQuiet), p.first.Add(settleMax))
}

// Settled reports whether there are responses and no further one is expected.
func (p *Progress) Settled(now time.Time) bool {
	return !p.first.IsZero() && !now.Before(p.settled())
}

// Phase returns the phase of the set, given what it was before, and when it will change if nothing comes.
func (p *Progress) Phase(now time.Time, before cache.Phase, quiet time.Duration) (phase cache.Phase, next time.Time) {
	settled, complete := p.settled(), p.Complete(p.first, quiet)
	if p.first.IsZero() {
		complete = p.told.Add(confirmSilence)
		settled = complete
	}
	switch {
	case before == cache.Confirmed || p.first.IsZero() && p.told.IsZero():
		return before, time.Time{}
	case !now.Before(complete):
		return cache.Confirmed, time.Time{}
	case !now.Before(settled):
		return cache.Settled, complete
	default:
		return before, settled
	}
}

// Earlier returns the earlier of two times, of which a zero one is never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
