package downstream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A propagationTest has a server of one view, whose changes and counters a test controls.
type propagationTest struct {
	*testing.T
	server  *Server
	view    *cache.View
	w       *cache.Writer
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
	p.w.SetCause(cache.Cause{Received: time.Now().Add(-100 * time.Millisecond)})
	p.w.Apply(kind, u)
	p.w.SetCause(cache.Cause{})
	synctest.Wait()
}

// client returns a client that subscribed to names and was sent their resources.
func (p *propagationTest) client(names ...string) *scriptedClient {
	c := serveScripted(p.T, p.server)
	c.request(wire.Request{Node: []byte{}, Subscribe: names})
	return c
}

// took returns the number of counted responses by the upper bound of their bucket; -1 is the last bucket.
func (p *propagationTest) took() map[time.Duration]int64 {
	counted := make(map[time.Duration]int64)
	spread := p.group.counts.Types()[wire.ClusterType].Propagation
	for i, n := range spread.Buckets {
		switch {
		case n == 0:
		case i < len(Bounds):
			counted[Bounds[i]] = n
		default:
			counted[-1] = n
		}
	}
	return counted
}

// want checks the counted propagation times.
func (p *propagationTest) want(when string, want map[time.Duration]int64) {
	p.Helper()
	if diff := cmp.Diff(want, p.took()); diff != "" {
		p.Errorf("%s, propagation times (-want +got):\n%s", when, diff)
	}
}

// TestB43_PropagationIsFromReceiptToAck checks that propagation is measured from the receipt of the origin's message to
// the ACK. It counts the oldest of several changes, and no responses to requests.
func TestB43_PropagationIsFromReceiptToAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagationTest(t)
		c := p.client("*")
		time.Sleep(time.Second)
		c.answer("")
		p.want("after the first response", map[time.Duration]int64{})

		p.change(cache.Wildcard, "2", 0)
		time.Sleep(20 * time.Millisecond)
		c.answer("")
		p.want("120 ms after a change was received", map[time.Duration]int64{250 * time.Millisecond: 1})

		p.change(cache.Wildcard, "3", 0)
		p.change(cache.Wildcard, "4", 0, 1) // waits for the ACK
		time.Sleep(time.Second)
		p.change(cache.Wildcard, "5", 2) // also waits
		c.answer("")
		time.Sleep(2 * time.Second)
		c.answer("")
		p.want("after two responses, with oldest changes of 1.1 s and 3.1 s", map[time.Duration]int64{
			250 * time.Millisecond: 1, 2500 * time.Millisecond: 1, 5 * time.Second: 1,
		})

		p.change(cache.Wildcard, "6", 0)
		c.answer("no")
		c.request(wire.Request{Subscribe: []string{"*"}}) // subscribes again: it is sent all resources
		c.answer("")
		if got := p.group.counts.Types()[wire.ClusterType]; got.Propagation.Count() != 3 || got.Acks != 5 || got.Nacks != 1 {
			t.Errorf("after a NACK and a response to a request: %+v, want neither counted", got)
		}
	})
}

// TestB43_PropagationOfWhatWasFrozenIsFromTheThaw checks that the time of a freeze does not count, because an operator
// caused it.
func TestB43_PropagationOfWhatWasFrozenIsFromTheThaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagationTest(t)
		c := p.client("*")
		c.answer("")
		p.w.Freeze()
		p.change(cache.Wildcard, "2", 0)
		time.Sleep(time.Hour)
		p.w.Thaw()
		synctest.Wait()
		time.Sleep(20 * time.Millisecond)
		c.answer("")
		p.want("20 ms after the thaw", map[time.Duration]int64{25 * time.Millisecond: 1})
		p.wantEnded("then", "1 streams: 1 accepted in 20ms")
	})
}

// TestB43_PropagationOfNamesIsOfTheirOwnChanges checks that changes of other resources do not affect the propagation
// and lag of a client that subscribed to names.
func TestB43_PropagationOfNamesIsOfTheirOwnChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagationTest(t)
		c, other := p.client(benchName(7)), p.client(benchName(8))
		p.w.TakeDemand()
		p.change(cache.ByName, "1", 7, 8)
		c.answer("")
		other.answer("")
		before := p.group.counts.Types()[wire.ClusterType].Propagation.Count()

		p.change(cache.ByName, "2", 8)
		p.change(cache.Wildcard, "2", 0)
		time.Sleep(time.Minute)
		other.answer("")
		p.change(cache.ByName, "3", 7)
		for status := range p.server.Clients() {
			if lag := status.Types[0].Lag; lag > 100*time.Millisecond {
				t.Errorf("lag of client %d is %v, want at most 100ms, the age of its own change", status.Number, lag)
			}
		}
		c.answer("")
		if before != 0 {
			t.Errorf("%d first responses were counted, want none", before)
		}
		p.want("after two changes", map[time.Duration]int64{100 * time.Millisecond: 1, -1: 1})
	})
}
