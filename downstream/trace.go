package downstream

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Traces shows deliveries to people. Its fields are read-only once a server has it.
type Traces struct {
	// Every is of how many deliveries of a change that is shown one is shown; zero is none.
	Every int

	// Slow is how long a delivery may take, from the receipt of what caused it, that is not shown for that. Zero shows
	// none for it.
	Slow time.Duration

	// Delivered is told of a delivery that is over, from any goroutine, and must not wait. It returns which span
	// shows it. Of those that were refused it is told always.
	Delivered func(Delivery) (traceID, spanID string)
}

// A Delivery is a response that was sent to a client, and what became of it.
type Delivery struct {
	Node, Group string
	Stream      uint64 // its number

	TypeURL, Version, Nonce string
	Bytes                   int // of its body

	// Caused is when the message was received that caused it, Began when there was something to send, Sent when
	// it was sent, and Ended when it was answered, or the stream ended. What nothing caused began when it was sent.
	Caused, Began, Sent, Ended time.Time

	Outcome cache.Outcome
	Code    int32  // of gRPC, if it was refused
	Detail  string // likewise, in the client's words

	// Fanouts are those of the changes that it told of, as far as they are followed.
	Fanouts *cache.Fanouts
}

// show tells of the newest response that it is over, if that is to be shown, and returns which
// span shows it; empty ones if none does.
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
