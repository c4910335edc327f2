package downstream

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A propagationTest has a server of one view, whose changes and counters a test controls.
type propagationTest struct {
	*testing.T
	server  *Server
	view    *cache.View
	w       *cache.Writer
	list    *pending.List // in front of w
	group   *countedGroup
	fanouts []*fanout.Fanout // in the order in which they ended
}

// newPropagationTest returns a server of a view with three clusters.
func newPropagationTest(t *testing.T) *propagationTest {
	t.Helper()
	p := &propagationTest{T: t, group: new(countedGroup)}
	p.view, p.w = cache.New(cache.Config{Fanout: func(f *fanout.Fanout) {
		p.fanouts = append(p.fanouts, f)
		p.group.counts.Followed(f)
	}})
	p.group.view = p.view
	server := check.Must(New(Config{Views: p.group}))
	p.server = server
	p.w.SetConnected(true)
	p.list = pending.New(p.w, nil)
	p.change(cache.Wildcard, "1", 0, 1, 2)
	p.w.SetPhase(wire.ClusterType, cache.Confirmed)
	return p
}

// change applies an update of the origin that was received 100 ms ago.
func (p *propagationTest) change(kind cache.Kind, version string, resources ...int) {
	u := wire.Update{TypeURL: wire.ClusterType}
	for _, i := range resources {
		u.Resources = append(u.Resources, benchResource(p, wire.ClusterType, i, version))
	}
	p.list.SetCause(cache.Cause{Received: time.Now().Add(-100 * time.Millisecond)})
	p.list.Apply(kind, u)
	p.list.SetCause(cache.Cause{})
	synctest.Wait()
}

// client returns a client that subscribed to names and was sent their resources.
func (p *propagationTest) client(names ...string) *scriptedClient {
	c := serveScripted(p.T, p.server)
	c.request(wire.Request{Node: []byte{}, Subscribe: names})
	return c
}

// TestB43_PropagationOfWhatWasFrozenIsFromTheThaw checks that the time of a freeze does not count, because an operator
// caused it.
func TestB43_PropagationOfWhatWasFrozenIsFromTheThaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagationTest(t)
		c := p.client("*")
		c.answer("")
		p.list.Freeze()
		p.change(cache.Wildcard, "2", 0)
		time.Sleep(time.Hour)
		p.list.Thaw()
		synctest.Wait()
		time.Sleep(20 * time.Millisecond)
		c.answer("")
		if got := p.group.counts.Types()[wire.ClusterType].Propagation; got.Count() != 1 || got.Sum != 20*time.Millisecond {
			t.Errorf("20 ms after the thaw: propagation times are %+v, want one of 20ms", got)
		}
		p.wantEnded("then", "1 streams: 1 accepted in 20ms")
	})
}

// A sampledSpan is the span of a fan-out in a trace with an ID.
type sampledSpan string

func (s sampledSpan) Sampled() bool                 { return s != "" }
func (s sampledSpan) Context() string               { return string(s) }
func (s sampledSpan) IDs() (traceID, spanID string) { return string(s), "fanout" }

// TestB43_NewestFanoutWithASpanIsTheExemplar checks that a fan-out without a span, or without an answer, is none.
func TestB43_NewestFanoutWithASpanIsTheExemplar(t *testing.T) {
	var c Counts
	received := time.Now()
	ended := func(span fanout.Span, o fanout.Outcome, took time.Duration) *Exemplar {
		f := fanout.New(wire.ClusterType, 1, c.Followed)
		f.Received, f.Span = received, span
		var stream atomic.Pointer[fanout.List]
		f.Join(&stream)
		f.Done(o, received.Add(took))
		f.Release()
		return c.Types()[wire.ClusterType].Fanout.Newest
	}
	if got := ended(nil, fanout.Accepted, time.Second); got != nil {
		t.Errorf("without a trace, the exemplar is %+v", got)
	}
	want := Exemplar{"one", "fanout", 2 * time.Second, received.Add(2 * time.Second)}
	if got := ended(sampledSpan("one"), fanout.Accepted, 2*time.Second); got == nil || *got != want {
		t.Errorf("got the exemplar %+v, want %+v", got, want)
	}
	for _, o := range []fanout.Outcome{fanout.NotNeeded, fanout.StreamClosed} {
		if got := ended(sampledSpan("none"), o, time.Second); *got != want {
			t.Errorf("after a fan-out that was %v, the exemplar is %+v, want %+v", o, got, want)
		}
	}
	if got := ended(sampledSpan(""), fanout.Accepted, time.Second); *got != want {
		t.Errorf("after a change that is not sampled, the exemplar is %+v, want %+v", got, want)
	}
	if got := ended(sampledSpan("two"), fanout.Rejected, time.Second); got.TraceID != "two" || got.Took != time.Second {
		t.Errorf("got the exemplar %+v, want that of the newest fan-out", got)
	}
}

// TestExemplarsOfASum checks that a sum has the newer exemplar.
func TestExemplarsOfASum(t *testing.T) {
	older, newer := Distribution{Newest: &Exemplar{Ended: time.Unix(1, 0)}}, Distribution{Newest: &Exemplar{Ended: time.Unix(2, 0)}}
	for _, got := range []Distribution{older.Plus(newer), newer.Plus(older), newer.Plus(Distribution{}), Distribution{}.Plus(newer)} {
		if got.Newest != newer.Newest {
			t.Errorf("got the exemplar %+v, want %+v", got.Newest, newer.Newest)
		}
	}
}
