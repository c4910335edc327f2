package reconcile

import (
	"time"

	"github.com/xdstender/tender/cache"
)

// How long a set has to be quiet to be taken for complete: Delta has no end mark (B.7).
const (
	SettleQuiet = 150 * time.Millisecond
	settleMax   = 2 * time.Second
	ConfirmMax  = 60 * time.Second // or Config.ColdWait without a new name

	// confirmSilence is how long an origin has to be silent that was told what a snapshot holds: it says
	// nothing if that is what there is. It is longer than a relay that has no content keeps a stream (B.8).
	confirmSilence = 15 * time.Second
)

// A Progress is how much of a set an origin has stated on a stream, by the timing of its responses.
type Progress struct {
	first   time.Time // response since the set was asked for; zero if none came
	last    time.Time // response
	newName time.Time // response with a name that was not known
	told    time.Time // when the origin was told which members a snapshot holds; zero if it was not

	// complete: a SotW origin has sent the set as a whole. An empty one does not count, it may be that of
	// an origin that has just started.
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

// settled returns when the first answers seem to be all, if nothing comes until then.
func (p *Progress) settled() time.Time {
	return Earlier(p.last.Add(SettleQuiet), p.first.Add(settleMax))
}

// Settled reports whether the first answers, of which there are some, seem to be all.
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
