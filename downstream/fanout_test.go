package downstream

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
)

// endedFanouts returns the outcomes of each fan-out that ended since the last call.
func (p *propagationTest) endedFanouts() (lines []string) {
	for _, f := range p.fanouts {
		line := fmt.Sprintf("%d streams:", f.Streams())
		for _, o := range []fanout.Outcome{fanout.Accepted, fanout.Rejected, fanout.NotNeeded, fanout.StreamClosed} {
			if n := f.Count(o); n > 0 {
				line += fmt.Sprintf(" %d %v", n, o)
			}
		}
		if f.Unanswered() > 0 {
			line += fmt.Sprintf(" %d unanswered", f.Unanswered())
		}
		if f.Unfollowed {
			line = "unfollowed"
		}
		lines = append(lines, fmt.Sprintf("%s in %v", line, f.Took()))
	}
	p.fanouts = nil
	return lines
}

// wantEnded checks the fan-outs that ended since the last check.
func (p *propagationTest) wantEnded(when string, want ...string) {
	p.Helper()
	if diff := cmp.Diff(want, p.endedFanouts()); diff != "" {
		p.Errorf("%s, ended fan-outs (-want +got):\n%s", when, diff)
	}
}

// TestB43_FanoutEndsWithTheLastAnswer checks that a change is tracked from the receipt of the origin's message until
// each stream that it concerns has accepted or rejected it, no longer needs it, or has ended. Streams that it does not
// concern are not tracked.
func TestB43_FanoutEndsWithTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagationTest(t)
		fast, slow, rejecting, twice := p.client("*"), p.client("*"), p.client("*"), p.client("*", benchName(0))
		all := []*scriptedClient{fast, slow, rejecting, twice}
		named := p.client(benchName(7))
		p.w.TakeDemand()
		for _, c := range all {
			c.answer("")
		}
		p.wantEnded("before a change")

		p.change(cache.Wildcard, "2", 0)
		fast.answer("")
		twice.answer("")
		time.Sleep(time.Second)
		rejecting.answer("no")
		p.wantEnded("while one has not answered")
		time.Sleep(time.Second)
		slow.answer("")
		p.wantEnded("after all have answered", "4 streams: 3 accepted 1 rejected in 2.1s")

		p.change(cache.ByName, "1", 7)
		named.answer("")
		p.wantEnded("after a change of a name", "1 streams: 1 accepted in 100ms")

		p.change(cache.Wildcard, "3", 1) // slow was sent this
		p.change(cache.Wildcard, "4", 1) // slow was not sent this yet
		fast.answer("")
		rejecting.answer("")
		twice.answer("")
		p.w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Removed: []string{benchName(2)}})
		synctest.Wait()
		for _, c := range []*scriptedClient{fast, rejecting, twice, fast, rejecting, twice} {
			c.answer("")
		}
		p.wantEnded("while a slow client has not answered")
		time.Sleep(3 * time.Second)
		slow.answer("")
		slow.answer("")
		slow.answer("")
		p.wantEnded("after all its answers", "4 streams: 4 accepted in 3.1s", "4 streams: 4 accepted in 3.1s",
			"4 streams: 4 accepted in 3s")

		spread := p.group.counts.Types()[wire.ClusterType]
		if got := spread.Fanout; got.Count() != 5 || got.Sum != 11400*time.Millisecond ||
			spread.GivenUp+spread.Unfollowed != 0 {
			t.Errorf("counters are %+v, want 5 fan-outs that took 11.4s", spread)
		}
	})
}

// TestB43_FanoutsEndWithoutAnswers checks the fan-outs of streams that end, unsubscribe or do not answer in time. While
// sixteen changes of a type are tracked, no more are tracked.
func TestB43_FanoutsEndWithoutAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagationTest(t)
		c := p.client("*")
		c.answer("")
		ending := &scriptedClient{ctx: t.Context(), requests: make(chan wire.Request)}
		done := make(chan error, 1)
		go func() { done <- p.server.serveStream(ending, "", true) }()
		ending.request(wire.Request{Node: []byte{}, Subscribe: []string{"*"}})
		ending.answer("")

		p.change(cache.Wildcard, "2", 0)
		p.change(cache.Wildcard, "3", 0)
		close(ending.requests)
		<-done
		c.answer("")
		p.wantEnded("after one stream ended and the other was sent the second change",
			"2 streams: 1 accepted 1 disconnected in 100ms")
		c.answer("")
		p.wantEnded("after it has answered the second change", "2 streams: 1 accepted 1 disconnected in 100ms")

		p.change(cache.Wildcard, "4", 0)
		nonces := c.sent()
		c.request(wire.Request{Nonce: nonces[len(nonces)-1], Unsubscribe: []string{"*"}})
		p.wantEnded("after an answer that unsubscribes", "1 streams: 1 accepted in 100ms")
		c.request(wire.Request{Subscribe: []string{"*"}})
		c.answer("")

		for i := range 18 {
			p.change(cache.Wildcard, fmt.Sprint(5+i), 1)
		}
		p.wantEnded("while the client does not answer", "unfollowed in 0s", "unfollowed in 0s")
		time.Sleep(time.Minute)
		synctest.Wait()
		p.w.Trim(time.Now())
		if lines := p.endedFanouts(); len(lines) != 16 || lines[0] != "1 streams: 1 unanswered in 1m0.1s" {
			t.Errorf("after a minute, ended fan-outs are %q, want 16 without an answer", lines)
		}
		c.answer("")
		c.answer("")
		p.change(cache.Wildcard, "30", 1)
		c.answer("")
		if lines := p.endedFanouts(); len(lines) != 1 || lines[0] != "1 streams: 1 accepted in 100ms" {
			t.Errorf("after the next change, ended fan-outs are %q, want one accepted", lines)
		}
		if got := p.group.counts.Types()[wire.ClusterType]; got.GivenUp != 16 || got.Unfollowed != 2 ||
			got.Fanout.Count() != 4 {
			t.Errorf("counters are %+v, want 16 given up, 2 not tracked, and 4 others", got)
		}
	})
}
