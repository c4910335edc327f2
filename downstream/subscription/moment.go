package subscription

import "time"

// A Moment is a time in nanoseconds since epoch, by the monotonic clock; 0 is none. It is a third of the size of a
// time.Time.
type Moment int64

// epoch is what moments are counted from.
var epoch = time.Now()

// MomentOf returns the moment of a time.
func MomentOf(t time.Time) Moment {
	if t.IsZero() {
		return 0
	}
	return Moment(t.Sub(epoch))
}

// Time returns the time, with the wall time that corresponds to it today.
func (m Moment) Time() time.Time {
	if m == 0 {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(-m.ago(now))
}

// ago returns how long ago it was.
func (m Moment) ago(now time.Time) time.Duration { return now.Sub(epoch) - time.Duration(m) }
