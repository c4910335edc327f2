package downstream

import (
	"net"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/downstream/subscription"
)

// Traces exports spans of deliveries. Its fields are read-only once a server uses it.
type Traces struct {
	// Every exports one of every N deliveries of a sampled change. Zero exports no delivery because of sampling. Those
	// to relays are always exported, since the trace goes on there.
	Every int

	// Slow exports deliveries that take at least this long from the receipt of the change. Zero exports no delivery
	// because of its duration.
	Slow time.Duration

	// Delivered exports a delivery that has ended and returns its span. It must not block, and may be called from any
	// goroutine. Responses that were rejected or abandoned are always exported.
	Delivered func(Delivery) (traceID, spanID string)
}

// A Delivery is a response to a client and its outcome. The cause of a response that no change caused is the time when
// it was sent.
type Delivery struct {
	subscription.Exchange
	Node, Group string
	Shown       string    // the encoded Node of the client, perhaps without its metadata
	Address     net.Addr  // of the client; nil if gRPC does not report it
	Stream      uint64    // number of the stream
	Began       time.Time // when the first tracked change in the response became due
}

// exportDelivery exports a response with its outcome, if it is rejected, abandoned, slow or sampled. It returns the span, or empty
// strings if it exports none.
func (s *stream) exportDelivery(x subscription.Exchange) (traceID, spanID string) {
	propagated := x.Outcome == fanout.Accepted && !x.Caused.IsZero()
	if x.Caused.IsZero() {
		x.Caused = x.Sent
	}
	if !s.exports(&x) {
		return "", ""
	}
	began := x.Sent
	for l := x.Fanouts; l != nil; l = l.Others {
		if l.Began.Before(began) {
			began = l.Began
		}
	}
	d := Delivery{Exchange: x, Node: s.client.node, Group: s.client.group, Stream: s.number, Began: began}
	if s.keptNode != nil {
		d.Shown = s.keptNode.Shown
	}
	if p, ok := peer.FromContext(s.rpc.Context()); ok {
		d.Address = p.Addr
	}
	traceID, spanID = s.cfg.Traces.Delivered(d)
	if propagated {
		s.group.Counts.tally(x.TypeURL, s.number).traced(&Exemplar{traceID, spanID, x.Ended.Sub(x.Caused), x.Ended})
	}
	return traceID, spanID
}

// exports reports whether a response is exported.
func (s *stream) exports(x *subscription.Exchange) bool {
	t := s.cfg.Traces
	exports := x.Outcome != fanout.Accepted || t.Slow > 0 && x.Ended.Sub(x.Caused) >= t.Slow
	for l := x.Fanouts; l != nil; l = l.Others {
		if l.Span != nil && l.Span.Sampled() && (s.tracing || t.Every > 0 && l.Next()%int64(t.Every) == 0) {
			exports = true
		}
	}
	return exports
}

// giveUpDeliveries exports the deliveries that the client has not answered for [fanout.GiveUp]. It returns when to call
// it again, zero if it need not be.
func (s *stream) giveUpDeliveries(now time.Time) (next time.Time) {
	if s.cfg.Traces == nil {
		return next
	}
	for _, sub := range s.subs {
		next = subscription.Earlier(next, sub.GiveUp(now))
	}
	return next
}

// joinFanouts passes the tracked changes that the watch has collected since the last call to the subscriptions that
// they concern.
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

// leaveFanouts ends the tracking of all changes for a stream that ends. The watch must be closed already.
func (s *stream) leaveFanouts(now time.Time) {
	s.joinFanouts(now)
	for _, sub := range s.subs {
		sub.CloseFanouts(now)
	}
}
