package downstream

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream/subscription"
)

// Traces exports spans of deliveries. Its fields are read-only once a server has it.
type Traces struct {
	// Every exports one of so many deliveries of a sampled change; zero exports none for being sampled.
	Every int

	// Slow exports deliveries that take at least as long, from the receipt of the change. Zero exports none for that.
	Slow time.Duration

	// Delivered exports a delivery that is over, and returns the span. It may be called from any goroutine, and must not
	// wait. Refused deliveries are always exported.
	Delivered func(Delivery) (traceID, spanID string)
}

// A Delivery is a response to a client, and its outcome.
type Delivery struct {
	Node, Group string
	Stream      uint64 // its number

	TypeURL, Version, Nonce string
	Bytes                   int // of its body

	// Caused is the receipt of the message that caused the response, Began when there was something to send, Sent when
	// it was sent, and Ended when it was answered or the stream ended. A response that no message caused began when it
	// was sent.
	Caused, Began, Sent, Ended time.Time

	Outcome cache.Outcome
	Code    int32  // the gRPC code of a NACK
	Detail  string // of a NACK

	// Fanouts are those of the changes in the response that are followed.
	Fanouts *cache.Fanouts
}

// delivered exports a response whose exchange with the client has ended, if it is to be exported, and returns its span;
// empty if there is none.
func (c *client) delivered(x subscription.Exchange) (traceID, spanID string) {
	t := c.cfg.Traces
	d := Delivery{
		Caused: x.CausedAt, Began: x.SentAt, Sent: x.SentAt, Ended: x.ClosedAt,
		Outcome: x.Outcome, Fanouts: x.Fanouts,
	}
	if d.Caused.IsZero() {
		d.Caused = x.SentAt
	}
	shown := x.Outcome == cache.Refused || t.Slow > 0 && x.ClosedAt.Sub(d.Caused) >= t.Slow
	for l := x.Fanouts; l != nil; l = l.Others {
		if l.Began.Before(d.Began) {
			d.Began = l.Began
		}
		if l.Span != nil && l.Span.Sampled() && t.Every > 0 && l.Next()%int64(t.Every) == 0 {
			shown = true
		}
	}
	if !shown {
		return "", ""
	}
	d.Node, d.Group, d.Stream = c.node, c.group, c.stream
	d.TypeURL, d.Version, d.Nonce, d.Bytes = x.TypeURL, x.Version, x.Nonce, x.Bytes
	d.Code, d.Detail = x.Code, x.Detail
	return t.Delivered(d)
}
