package rollout

import "time"

// Facts are the input of a machine.
type Facts struct {
	Differs     bool      // latest differs from the last good in a pending name
	Edited      bool      // latest differs from the edition in progress or rejected, in one of its names
	Behind      bool      // latest differs from the edition in a pending name
	Changed     time.Time // time of the newest change of a pending name
	Complete    bool      // the origin is connected, and its sets are confirmed
	Unavailable bool      // some node groups have pending changes that the facts above exclude
	Frozen      bool      // an operator froze the origin

	Evidence Evidence // of the cohorts that are served the edition
	Halt     string   // reason of Signals to halt the edition; empty without one
	Verdict  Verdict  // of the check about the edition; zero without one
}

// Evidence counts the answers of connected clients in the cohorts that are served the edition.
type Evidence struct {
	Wanting  int // clients that subscribe to something that the edition changes
	Known    int // of these, clients that had accepted the last good; other clients cannot delay a stage
	Answered int // of these, clients that accepted or refused all of it
	Accepted int // of these, clients that accepted
}

// A Verdict is a decision of the check.
type Verdict struct {
	Asked  time.Time // the time of the request; zero without one
	Go     bool
	Refuse string // the reason of a rejection; empty without one
}

// sufficient reports whether the stage may end. Of the clients that subscribe to the changes, at least one must have
// accepted and at least 90 percent must have answered.
func (e Evidence) sufficient() bool {
	return e.Wanting == 0 || e.Accepted > 0 && 10*e.Answered >= 9*e.Wanting
}
