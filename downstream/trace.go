package downstream

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
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

// A Delivery is a response to a client, and its outcome. A response that no message caused counts as caused when it was
// sent.
type Delivery struct {
	subscription.Exchange
	Node, Group string
	Stream      uint64    // its number
	Began       time.Time // when there was something to send
}

// delivered exports a response whose exchange with the client has ended, if it is to be exported, and returns its span;
// empty if there is none.
func (c *client) exportDelivery(x subscription.Exchange) (traceID, spanID string) {
	t := c.cfg.Traces
	if x.Caused.IsZero() {
		x.Caused = x.Sent
	}
	began := x.Sent
	shown := x.Outcome == fanout.Rejected || t.Slow > 0 && x.Ended.Sub(x.Caused) >= t.Slow
	for l := x.Fanouts; l != nil; l = l.Others {
		if l.Began.Before(began) {
			began = l.Began
		}
		if l.Span != nil && l.Span.Sampled() && t.Every > 0 && l.Next()%int64(t.Every) == 0 {
			shown = true
		}
	}
	if !shown {
		return "", ""
	}
	return t.Delivered(Delivery{x, c.node, c.group, c.stream, began})
}

// joinFanouts hands the fan-outs that the stream has joined since the last call to their subscriptions.
func (s *stream) joinFanouts(now time.Time) {
	for l := s.watch.TakeFanouts(); l != nil; l = l.Others {
		typeURL, _, _ := cache.SplitCollection(l.Key)
		sub := s.subscription(typeURL)
		if sub == nil {
			l.Done(fanout.NotNeeded, now)
			continue
		}
		sub.TrackFanout(l.Fanout)
	}
}

// leaveFanouts completes all fan-outs of a stream that ends. Its watch must be closed.
func (s *stream) leaveFanouts(now time.Time) {
	s.joinFanouts(now)
	for _, sub := range s.subs {
		sub.CloseFanouts(now)
	}
}
