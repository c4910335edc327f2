package pending

import (
	"time"

	"github.com/xdstender/tender/cache"
)

// A Delay is how long a change has waited before it is applied. The zero value is that of a change that has not.
type Delay struct {
	Cause  cache.Cause // of the change, with the time of its receipt
	Since  time.Time   // when it began to wait
	Reason string      // for which it waited last
}

// Frozen returns the delay of a change that waits since a time for the end of a freeze.
func Frozen(since time.Time) Delay {
	return Delay{Cause: cache.Cause{Received: since}, Since: since, Reason: frozenReason}
}

// Oldest returns the delay of the change that was received first. Changes that pass together belong to the trace of that one.
func (d Delay) Oldest(o Delay) Delay {
	if d.Since.IsZero() || !o.Since.IsZero() && o.Cause.Received.Before(d.Cause.Received) {
		return o
	}
	return d
}

// End records in the trace of the change that it passes, and returns its cause.
func (d Delay) End(now time.Time) cache.Cause {
	if d.Cause.Trace != nil {
		d.Cause.Trace.Waited(d.Reason, d.Since, now)
	}
	return d.Cause
}

// Why changes wait. Package reconcile has further reasons.
const (
	intervalReason   = "interval"
	frozenReason     = "frozen"
	rolledBackReason = "rolled-back"
)
