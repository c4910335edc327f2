package subscription

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// Settings configure all subscriptions of a server. They are read-only.
type Settings struct {
	AckWait         time.Duration // how long a response waits for its ACK before the next one follows (B.12)
	ColdWait        time.Duration // how long a client waits for an unreachable origin (B.8)
	ResponseBytes   int           // size at which a response that may be partial ends (B.32)
	ContentVersions bool          // versions are content hashes, so different content has different versions (B.3)
}

// confirmWait is how long an origin may take to send all its resources after a reconnect. It is also how long a
// wildcard set takes to be confirmed (B.7).
func (c *Settings) confirmWait() time.Duration { return min(c.ColdWait, time.Minute) }

// A Client is what all subscriptions of one client have in common. It is read-only.
type Client struct {
	Settings *Settings
	Watch    *cache.Watch

	Delta  bool
	Errors bool // the client understands resource_errors (B.39)

	// Closed is called for each response that was answered or never will be. It returns the trace span of the response.
	// Nil disables tracing.
	Closed func(Exchange) (traceID, spanID string)
}

// A Counter counts the responses of a type and their answers. Its methods may be called from any goroutine.
type Counter interface {
	Sent(bytes int)
	Answered(rejected bool)
	Propagated(took time.Duration) // from the receipt of a change to its ACK
}

// An Exchange is a response and its outcome.
type Exchange struct {
	TypeURL, Version, Nonce string
	Bytes                   int // of its body

	Caused time.Time // when the oldest change in it was received; zero if no change caused it
	Sent   time.Time
	Ended  time.Time // when it was answered or the stream ended

	Outcome fanout.Outcome
	Code    int32        // the gRPC code of a NACK
	Detail  string       // of a NACK
	Fanouts *fanout.List // of the changes in it that are tracked
}

// Forever is the deadline of a wait that only an event ends.
var Forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// Earlier returns the earlier of two times. It ignores a zero time.
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

// A Moment is a time in nanoseconds since epoch, by the monotonic clock; 0 is unset. It has a third of the size of a
// time.Time.
type Moment int64

// epoch is the origin of all moments.
var epoch = time.Now()

// MomentOf returns the moment of a time.
func MomentOf(t time.Time) Moment {
	if t.IsZero() {
		return 0
	}
	return Moment(t.Sub(epoch))
}

// Time returns the time. It derives the wall time from the current wall clock.
func (m Moment) Time() time.Time {
	if m == 0 {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(-m.ago(now))
}

// ago returns the time that has passed since m.
func (m Moment) ago(now time.Time) time.Duration { return now.Sub(epoch) - time.Duration(m) }

// Traits are the protocol's rules for a resource type and one client.
type Traits struct {
	TypeURL string
	Rank    int // position in the send order (B.11)

	// FullState: a SotW response holds the client's complete set, and the client removes a resource that is absent (R058,
	// R059). For a type that the protocol does not define, requestUpdate.updateFullState sets it.
	FullState bool

	// grouped: a SotW response holds all resources that the stream subscribed to, but absence means nothing (B.17).
	grouped bool

	// legacyWildcard: a client that never gave a name subscribes to all resources (B.17).
	legacyWildcard bool

	Order schema.Order // in make before break (B.11)

	// alwaysSent: a resource that a client subscribes to is sent even if the client reports that it has it. An Envoy that
	// warms a cluster or a listener needs it again, and its request does not show that. A relay does not (B.3).
	alwaysSent bool

	// Secret: the server logs which client is sent which Secret (B.36).
	Secret bool
}

// Software describes a client's software.
type Software struct {
	Envoy bool
	GRPC  bool
	Relay bool // another Tender
}

// TraitsOf returns the traits of a type for a client. Envoy's SotW subscriptions deliver an empty update to the
// watchers of names that a response omits, so some types are grouped for Envoy.
func TraitsOf(typeURL string, by Software) Traits {
	of, rank := schema.TypeOf(typeURL)
	return Traits{
		TypeURL:        typeURL,
		Rank:           rank,
		legacyWildcard: wire.LegacyWildcard(typeURL),
		FullState:      of.FullState,
		Order:          of.Order,
		grouped:        of.Grouped && by.Envoy,
		alwaysSent:     of.AlwaysSent && !by.Relay,
		Secret:         wire.IsSecret(typeURL),
	}
}

// LateRemovals reports whether removals wait until changes to the resources that referred to the removed ones were sent (B.11).
func (t *Traits) LateRemovals() bool { return t.Order.LateRemovals() }

// Dependent reports whether resources need clusters, so that they are never sent before the clusters (B.11).
func (t *Traits) Dependent() bool { return t.Order == schema.AfterClusters }
