package rollout

import "time"

// Facts are the input of a machine. A name is pending if latest and the last good differ in it.
type Facts struct {
	Differs     bool      // at least one name is pending
	Edited      bool      // latest differs from the edition, in progress or rejected, in a name that the edition changes
	Behind      bool      // latest differs from the edition in a pending name
	Changed     time.Time // time of the newest change of a pending name
	Complete    bool      // the origin is connected and its wildcard sets are confirmed
	Unavailable bool      // some node groups have pending changes that the facts above exclude
	Frozen      bool      // an operator froze the origin

	Evidence   Evidence // answers of the cohorts that are served the edition
	HaltReason string   // result of Signals.HaltReason
	Verdict    Verdict  // newest verdict of the check about the edition; zero without one
	Judgement  Judgement
}

// Evidence counts the answers of connected clients in the cohorts that are served the edition.
type Evidence struct {
	Subscribed int // clients that subscribe to a resource that the edition changes
	Trusted    int // subscribed clients that had accepted the last good; only they can halt a rollout by their silence
	Answered   int // subscribed clients that accepted or rejected all of these resources
	Accepted   int // subscribed clients that accepted all of these resources
}

// A Verdict is a decision of the check.
type Verdict struct {
	RequestedAt  time.Time // the time of the request; zero without one
	Allowed      bool      // the edition may proceed
	RejectReason string    // the reason of a rejection; empty without one
}

// sufficient reports whether the stage may end. Of the clients that subscribe to the changes, at least one must have
// accepted and at least 90 percent must have answered.
func (e Evidence) sufficient() bool {
	return e.Subscribed == 0 || e.Accepted > 0 && 10*e.Answered >= 9*e.Subscribed
}
