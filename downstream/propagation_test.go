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

// A propagating has a view whose changes a test makes, and what they are counted in.
type propagating struct {
	*testing.T
	server *Server
	view   *cache.View
	w      *cache.Writer
	group  *countedGroup
	over   []*fanout.Fanout // in the order in which they ended
}

// newPropagating returns a view of some clusters; what its tests do not name, all follow.
func newPropagating(t *testing.T) *propagating {
	t.Helper()
	p := &propagating{T: t, group: new(countedGroup)}
	p.view, p.w = cache.New(cache.Config{Fanout: func(f *fanout.Fanout) {
		p.over = append(p.over, f)
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

// change has the origin say some resources, in a message that was received 100 ms ago.
func (p *propagating) change(kind cache.Kind, version string, resources ...int) {
	u := wire.Update{TypeURL: wire.ClusterType}
	for _, i := range resources {
		u.Resources = append(u.Resources, benchResource(p, wire.ClusterType, i, version))
	}
	p.w.SetCause(cache.Cause{Received: time.Now().Add(-100 * time.Millisecond)})
	p.w.Apply(kind, u)
	p.w.SetCause(cache.Cause{})
	synctest.Wait()
}

// client returns a client that has subscribed and has what there is.
func (p *propagating) client(names ...string) *scriptedClient {
	c := serveScripted(p.T, p.server)
	c.ask(wire.Request{Node: []byte{}, Subscribe: names})
	return c
}

// took returns of how many responses it was counted how long they took, by the bound of their class.
func (p *propagating) took() map[time.Duration]int64 {
	out := make(map[time.Duration]int64)
	spread := p.group.counts.Types()[wire.ClusterType].Propagation
	for i, n := range spread.Buckets {
		switch {
		case n == 0:
		case i < len(Bounds):
			out[Bounds[i]] = n
		default:
			out[-1] = n
		}
	}
	return out
}

func (p *propagating) want(when string, want map[time.Duration]int64) {
	p.Helper()
	if diff := cmp.Diff(want, p.took()); diff != "" {
		p.Errorf("%s, propagation took (-want +got):\n%s", when, diff)
	}
}

// TestB43_PropagationIsFromReceiptToAck: a change counts from when the origin's message came in to
// the client's ACK; the oldest of several does; and what a client asked for does not.
func TestB43_PropagationIsFromReceiptToAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagating(t)
		c := p.client("*")
		time.Sleep(time.Second)
		c.answer("")
		p.want("after the first response", map[time.Duration]int64{})

		p.change(cache.Wildcard, "2", 0)
		time.Sleep(20 * time.Millisecond)
		c.answer("")
		p.want("120 ms after a change was received", map[time.Duration]int64{250 * time.Millisecond: 1})

		p.change(cache.Wildcard, "3", 0)
		p.change(cache.Wildcard, "4", 0, 1) // waits for the answer
		time.Sleep(time.Second)
		p.change(cache.Wildcard, "5", 2) // likewise
		c.answer("")
		time.Sleep(2 * time.Second)
		c.answer("")
		p.want("after two responses, of 1.1 s, and of 3.1 s for the oldest change in it", map[time.Duration]int64{
			250 * time.Millisecond: 1, 2500 * time.Millisecond: 1, 5 * time.Second: 1,
		})

		p.change(cache.Wildcard, "6", 0)
		c.answer("no")
		c.ask(wire.Request{Subscribe: []string{"*"}}) // once more: it is sent all
		c.answer("")
		if got := p.group.counts.Types()[wire.ClusterType]; got.Propagation.Count() != 3 || got.Acks != 5 || got.Nacks != 1 {
			t.Errorf("a refusal and what was asked for: %+v, want neither to count", got)
		}
	})
}

// TestB43_PropagationOfWhatWasFrozenIsFromTheThaw: what an operator holds back is late by their decision, and does not count.
func TestB43_PropagationOfWhatWasFrozenIsFromTheThaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagating(t)
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

// TestB43_PropagationOfNamesIsOfTheirOwnChanges: to who names resources, changes of others are nothing, however
// long they have not been looked at; nor is his lag theirs.
func TestB43_PropagationOfNamesIsOfTheirOwnChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagating(t)
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
				t.Errorf("client %d lags by %v, want at most the 100 ms that its own change took to be applied", status.Number, lag)
			}
		}
		c.answer("")
		if before != 0 {
			t.Errorf("%d first answers were counted", before)
		}
		p.want("after two changes", map[time.Duration]int64{100 * time.Millisecond: 1, -1: 1})
	})
}
