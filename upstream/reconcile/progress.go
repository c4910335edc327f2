package reconcile

import (
	"time"

	"github.com/xdstender/tender/cache"
)

// Time limits after which a set is settled or complete. Delta responses have no end mark (B.7).
const (
	// SettleQuiet is the time without a response after which a set is settled, at the latest after settleMax.
	SettleQuiet = 150 * time.Millisecond
	settleMax   = 2 * time.Second

	// ConfirmMax is the time after the start of a stream after which a set is complete at the latest. Usually it is
	// complete earlier: after Config.ColdWait without a new name.
	ConfirmMax = 60 * time.Second

	// confirmSilence is the time without a response after which an origin confirms the content of a snapshot: an origin
	// without changes sends nothing. A relay without content closes a silent stream earlier (B.8).
	confirmSilence = 15 * time.Second
)

// A Progress estimates from the times of responses how much of a set an origin has sent on a stream.
type Progress struct {
	firstResponse time.Time // first response since the subscription; zero without one
	lastResponse  time.Time
	lastNewName   time.Time // last response with a new name
	versionsSent  time.Time // when the relay sent the versions of a snapshot to the origin; zero if it did not

	// listed reports that a SotW origin has listed the whole set. A list that is empty or lacks a resource does not
	// count, because the origin may have just started.
	listed bool
}

// responded reports whether the origin has sent a response on the stream.
func (p *Progress) responded() bool { return !p.firstResponse.IsZero() }

// growing reports whether the origin has sent a new name after its first response.
func (p *Progress) growing() bool { return p.lastNewName.After(p.firstResponse) }

// CompleteAt returns when the set is complete if no response arrives until then. This is after the time quiet without
// a new name, but at the latest ConfirmMax after the stream began.
func (p *Progress) CompleteAt(began time.Time, quiet time.Duration) time.Time {
	switch {
	case p.listed:
		return p.firstResponse
	case p.firstResponse.IsZero():
		return began.Add(ConfirmMax)
	}
	return Earlier(p.lastNewName.Add(quiet), began.Add(ConfirmMax))
}

// recordResponse records a response, and whether it contains new names. A set that was complete stays complete: new
// names that arrive more than quiet after the previous one do not count.
func (p *Progress) recordResponse(now time.Time, newNames bool, quiet time.Duration) {
	if p.firstResponse.IsZero() {
		p.firstResponse, p.lastNewName = now, now
	}
	p.lastResponse = now
	if newNames && now.Before(p.lastNewName.Add(quiet)) {
		p.lastNewName = now
	}
}

// settledAt returns when the set is settled if no response arrives until then.
func (p *Progress) settledAt() time.Time {
	return Earlier(p.lastResponse.Add(SettleQuiet), p.firstResponse.Add(settleMax))
}

// answeredAt returns when the origin has answered if no response arrives until then. An origin that sends one response
// after another has not.
func (p *Progress) answeredAt() time.Time { return p.lastResponse.Add(SettleQuiet) }

// answered reports whether the origin has stated what it has when the stream began.
func (p *Progress) answered(now time.Time) bool { return p.responded() && !now.Before(p.answeredAt()) }

// Settled reports whether the origin has responded and probably sends no further response.
func (p *Progress) Settled(now time.Time) bool {
	return !p.firstResponse.IsZero() && !now.Before(p.settledAt())
}

// EnoughAt returns when the origin has had enough time to send the set, even if it still adds names. It returns false if
// the origin has not responded.
func (p *Progress) EnoughAt(quiet time.Duration) (at time.Time, ok bool) {
	return p.firstResponse.Add(quiet), p.responded()
}

// Phase returns the phase of the set, given its previous phase. It also returns when the phase changes if no response
// arrives until then; zero for never.
func (p *Progress) Phase(
	now time.Time, before cache.Phase, quiet time.Duration,
) (phase cache.Phase, next time.Time) {
	if before == cache.Confirmed || p.firstResponse.IsZero() && p.versionsSent.IsZero() {
		return before, time.Time{}
	}
	settled, complete := p.settledAt(), p.CompleteAt(p.firstResponse, quiet)
	if p.firstResponse.IsZero() {
		complete = p.versionsSent.Add(confirmSilence)
		settled = complete
	}
	switch {
	case !now.Before(complete):
		return cache.Confirmed, time.Time{}
	case !now.Before(settled):
		return cache.Settled, complete
	default:
		return before, settled
	}
}

// Earlier returns the earlier of two times. A zero time means never.
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
