package downstream

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
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

// show exports the newest response, which is over, if it is to be exported, and returns its span; empty if there is
// none.
func (t *Traces) show(s *subscription, o cache.Outcome, r *wire.Request, now time.Time) (traceID, spanID string) {
	d := Delivery{
		Caused: s.caused.time(), Began: s.sentAt, Sent: s.sentAt, Ended: now,
		Outcome: o, Fanouts: s.reached,
	}
	if d.Caused.IsZero() {
		d.Caused = s.sentAt
	}
	shown := o == cache.Refused || t.Slow > 0 && now.Sub(d.Caused) >= t.Slow
	for l := s.reached; l != nil; l = l.Others {
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
	d.Node, d.Group, d.Stream = s.node, s.client.group, s.stream
	d.TypeURL, d.Version, d.Nonce, d.Bytes = s.typeURL, s.said, s.nonce, s.bytes
	if r != nil {
		d.Code, d.Detail = r.ErrorCode, wire.Shorten(r.ErrorMessage, maxDetail)
	}
	return t.Delivered(d)
}
