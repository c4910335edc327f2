package subscription

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
)

// Settings are what a server configures of its subscriptions. They do not change.
type Settings struct {
	AckWait         time.Duration // how long a response waits for its ACK before the next one follows (B.12)
	ColdWait        time.Duration // how long a client waits for an origin that is not there (B.8)
	ResponseBytes   int           // the size at which a response that need not be complete ends (B.32)
	ContentVersions bool          // versions are made from content, which no other content has (B.3)

	FullState      map[string]bool // type URLs that are full-state by option (B.7)
	LegacyWildcard map[string]bool // type URLs of which an empty list of names means all by option (B.17)
}

// confirmWait bounds how long an origin that is connected again takes to send all that it has: as long as a
// wildcard set takes to be confirmed (B.7).
func (c *Settings) confirmWait() time.Duration { return min(c.ColdWait, time.Minute) }

// A Client is what all subscriptions of one client have in common. It does not change.
type Client struct {
	Settings *Settings
	Watch    *cache.Watch

	Delta  bool
	Errors bool // the client understands resource_errors (B.39)

	// Closed is told of each response that was answered, or never will be, and returns the span that shows
	// it. Nil shows none.
	Closed func(Exchange) (traceID, spanID string)
}

// A Counter counts what is sent of a type and how clients answer. Its methods may be called from any goroutine.
type Counter interface {
	Sent(bytes int)
	Answered(refused bool)
	Propagated(took time.Duration) // from the receipt of a change to its ACK
}

// An Exchange is a response and its outcome.
type Exchange struct {
	TypeURL, Version, Nonce string
	Bytes                   int // of its body

	Caused time.Time // when the oldest change in it was received; zero if no change caused it
	Sent   time.Time
	Ended  time.Time // when it was answered, or the stream ended

	Outcome fanout.Outcome
	Code    int32        // the gRPC code of a NACK
	Detail  string       // of a NACK
	Fanouts *fanout.List // of the changes in it that are followed
}

// Forever stands for a wait that only an event ends.
var Forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// Earlier returns the earlier of two times; a zero time is none.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

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
