package downstream

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/subscription"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB43_AnswersAreCountedOnce checks that each response has at most one answer in the counters. A client may change
// its names under the nonce of a response that it has answered, or send any nonce.
func TestB43_AnswersAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagationTest(t)
		c := p.client("*")
		counts := func(when string, responses, acks, nacks int64) {
			t.Helper()
			got := p.group.counts.Types()[wire.ClusterType]
			if got.Responses != responses || got.Acks != acks || got.Nacks != nacks {
				t.Errorf("%s: %d responses, %d ACKs, %d NACKs, want %d, %d, %d", when,
					got.Responses, got.Acks, got.Nacks, responses, acks, nacks)
			}
		}
		first := c.sent()[0]
		for i := range 4 { // the names do not exist, so that they cause no response
			c.request(wire.Request{Nonce: first, Subscribe: []string{fmt.Sprint("none-", i)}})
		}
		counts("names change under one nonce", 1, 1, 0)
		c.request(wire.Request{Nonce: first, Rejected: true, ErrorMessage: "no"})
		c.request(wire.Request{Nonce: "invented", Rejected: true, ErrorMessage: "no"})
		counts("NACKs of an accepted response and of none", 1, 1, 0)

		p.change(cache.Wildcard, "2", 0)
		c.answer("no")
		c.answer("no")
		c.answer("")
		counts("a NACK, again, and an ACK of the same response", 2, 1, 1)
		if got := p.group.counts.Types()[wire.ClusterType].Propagation.Count(); got != 0 {
			t.Errorf("%d changes were accepted, want none", got)
		}

		for i := range 3 { // the client answers none in time
			p.change(cache.Wildcard, fmt.Sprint(3+i), 0)
			time.Sleep(5 * time.Second)
			synctest.Wait()
		}
		nonces := c.sent()[2:]
		check.Equal(t, "responses", len(nonces), 3)
		for range 2 {
			c.request(wire.Request{Nonce: nonces[1], Rejected: true, ErrorMessage: "no"}) // answers the first, too
		}
		c.request(wire.Request{Nonce: nonces[1]})
		counts("late NACKs", 5, 1, 2)
		for range 2 {
			c.request(wire.Request{Nonce: nonces[2]})
		}
		counts("all", 5, 2, 2)
	})
}

// A deliveryTest is a propagationTest that records the spans of deliveries. Deliveries of a second are slow.
type deliveryTest struct {
	*propagationTest
	mu    sync.Mutex
	spans []string // guarded by mu
}

func newDeliveryTest(t *testing.T) *deliveryTest {
	t.Helper()
	d := &deliveryTest{propagationTest: newPropagationTest(t)}
	server, err := New(Config{Views: d.group, Traces: &Traces{Slow: time.Second, Delivered: func(x Delivery) (string, string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.spans = append(d.spans, fmt.Sprintf("%s %v in %v", x.Nonce, x.Outcome, x.Ended.Sub(x.Sent)))
		return "trace", "span " + x.Nonce
	}}})
	check.OK(t, err)
	d.server = server
	return d
}

// take returns the spans since the last call.
func (d *deliveryTest) take() (spans []string) {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	spans, d.spans = d.spans, nil
	return spans
}

// want checks the spans since the last check.
func (d *deliveryTest) want(when string, want ...string) {
	d.Helper()
	if diff := cmp.Diff(want, d.take()); diff != "" {
		d.Errorf("%s, spans of deliveries (-want +got):\n%s", when, diff)
	}
}

// TestB43_EachAbandonedDeliveryHasASpan checks that each delivery that is slow, rejected or abandoned has one span, with
// its duration and its end.
func TestB43_EachAbandonedDeliveryHasASpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeliveryTest(t)
		c := d.client("*")
		c.answer("")
		d.want("a fast answer")

		// The client takes longer than TENDER_ACK_WAIT, 5 s, for each response.
		d.change(cache.Wildcard, "2", 0)
		time.Sleep(time.Second)
		d.change(cache.Wildcard, "3", 0)
		time.Sleep(7 * time.Second)
		c.request(wire.Request{Nonce: "2"})
		d.want("a late ACK", "2 accepted in 8s")
		d.wantEnded("a late ACK", "1 streams: 1 accepted in 8.1s")
		c.request(wire.Request{Nonce: "3"})
		d.want("the next ACK", "3 accepted in 3s")
		d.wantEnded("the next ACK", "1 streams: 1 accepted in 7.1s")

		d.change(cache.Wildcard, "4", 0)
		time.Sleep(time.Second)
		d.change(cache.Wildcard, "5", 0)
		time.Sleep(5 * time.Second)
		c.request(wire.Request{Nonce: "4", Rejected: true, ErrorMessage: "no"})
		d.want("a late NACK", "4 rejected in 6s")
		d.wantEnded("a late NACK", "1 streams: 1 rejected in 6.1s")
		if r := rejectionOf(d.server); r == nil || r.SpanID != "span 4" {
			t.Errorf("the rejection is %+v, want it with its span", r)
		}
		c.request(wire.Request{Nonce: "5"})
		d.want("an ACK in time", "5 accepted in 1s")
		d.wantEnded("an ACK in time", "1 streams: 1 accepted in 5.1s")

		d.change(cache.Wildcard, "6", 0)
		time.Sleep(6 * time.Second)
		d.change(cache.Wildcard, "7", 0)
		time.Sleep(time.Millisecond)
		c.answer("")
		d.want("the client answers the newest alone", "6 superseded in 6.001s")
		d.wantEnded("the client answers the newest alone", "1 streams: 1 accepted in 6.101s", "1 streams: 1 accepted in 101ms")
		c.request(wire.Request{Nonce: "6"})
		d.want("an answer to a superseded response")
	})
}

// TestB43_DeliveriesEndWithoutAnswers checks the spans of deliveries that nobody answers: after 60 s, at the end of the
// stream, and if more responses are unanswered than the relay remembers.
func TestB43_DeliveriesEndWithoutAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeliveryTest(t)
		c := &scriptedClient{ctx: t.Context(), requests: make(chan wire.Request)}
		done := make(chan error, 1)
		go func() { done <- d.server.serveStream(c, "", true) }() // awaited below
		c.request(wire.Request{Node: []byte{}, Subscribe: []string{"*"}})
		time.Sleep(time.Minute - time.Nanosecond)
		d.want("a nanosecond before")
		time.Sleep(time.Hour)
		d.want("after 60 s", "1 unanswered in 1m0s")
		c.answer("")
		d.want("an answer after that")

		d.change(cache.Wildcard, "2", 0)
		time.Sleep(70 * time.Second)
		synctest.Wait()
		d.w.Trim(time.Now()) // every few seconds in a relay
		d.wantEnded("after 60 s", "1 streams: 1 unanswered in 1m0.1s")
		c.answer("no")
		d.want("a NACK after 70 s", "2 unanswered in 1m0s", "2 rejected in 1m10s")

		for i := range 18 {
			d.change(cache.Wildcard, fmt.Sprint(3+i), 0)
			time.Sleep(5 * time.Second / 2)
			d.change(cache.ByName, fmt.Sprint(3+i), 0)
			time.Sleep(5 * time.Second / 2)
			synctest.Wait()
		}
		if spans := d.take(); len(spans) < 6 {
			t.Errorf("%d spans in 90 s, want one for each response of the first 30 s: %q", len(spans), spans)
		}
		close(c.requests)
		if err := <-done; err != nil {
			t.Error(err)
		}
		spans := d.take()
		for _, s := range spans {
			var nonce int
			var took string
			if n, _ := fmt.Sscanf(s, "%d disconnected in %s", &nonce, &took); n != 2 {
				t.Errorf("at the end of the stream: %q, want it to have left", s)
			}
		}
		if len(spans) == 0 || len(spans) > 13 {
			t.Errorf("%d spans at the end of the stream, want those of the last 60 s: %q", len(spans), spans)
		}
	})
}

// rejectionOf returns the newest rejection of clusters of the first stream.
func rejectionOf(s *Server) *Rejection {
	for c := range s.Clients() {
		return c.Types[0].Rejection
	}
	return nil
}

// TestB43_NewestDeliveryWithASpanIsTheExemplar checks that a fast delivery, which has no span, is none, and neither are a
// rejected one and one that no change caused.
func TestB43_NewestDeliveryWithASpanIsTheExemplar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeliveryTest(t)
		c := d.client("*")
		exemplar := func(when, want string) {
			t.Helper()
			synctest.Wait()
			got := "none"
			if e := d.group.counts.Types()[wire.ClusterType].Propagation.Newest; e != nil {
				got = fmt.Sprintf("%s, %s: %v, %v ago", e.TraceID, e.SpanID, e.Took, time.Since(e.Ended))
			}
			if got != want {
				t.Errorf("%s, the exemplar is %q, want %q", when, got, want)
			}
		}
		time.Sleep(2 * time.Second)
		c.answer("")
		exemplar("after a slow first response", "none")
		d.change(cache.Wildcard, "2", 0)
		c.answer("")
		exemplar("after a fast delivery", "none")
		d.change(cache.Wildcard, "3", 0)
		time.Sleep(2 * time.Second)
		c.answer("")
		exemplar("after a slow delivery", "trace, span 3: 2.1s, 0s ago")
		d.change(cache.Wildcard, "4", 0)
		time.Sleep(2 * time.Second)
		c.answer("no")
		exemplar("after a NACK", "trace, span 3: 2.1s, 2s ago")
	})
}

// TestNoAllocationsWithoutASpan checks that a delivery that is traced, but not exported, allocates nothing for that.
func TestNoAllocationsWithoutASpan(t *testing.T) {
	s := &stream{cfg: &Config{Traces: &Traces{Every: 2, Slow: time.Minute}}, group: Group{Counts: new(Counts)}}
	f := fanout.New(wire.ClusterType, 1, func(*fanout.Fanout) {})
	f.Span = sampledSpan("")
	var stream atomic.Pointer[fanout.List]
	f.Join(&stream)
	now := time.Now()
	x := subscription.Exchange{TypeURL: wire.ClusterType, Caused: now, Sent: now, Ended: now, Fanouts: stream.Load()}
	if got := testing.AllocsPerRun(100, func() { s.exportDelivery(x) }); got > 0 {
		t.Errorf("%v allocations for each delivery without a span, want none", got)
	}
}
