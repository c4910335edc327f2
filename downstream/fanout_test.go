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

// ended returns what became of the fan-outs that ended since the last call, each in a line.
func (p *propagating) ended() (lines []string) {
	for _, f := range p.over {
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
	p.over = nil
	return lines
}

func (p *propagating) wantEnded(when string, want ...string) {
	p.Helper()
	if diff := cmp.Diff(want, p.ended()); diff != "" {
		p.Errorf("%s, there ended (-want +got):\n%s", when, diff)
	}
}

// TestB43_FanoutEndsWithTheLastAnswer: a change is followed from the receipt of the origin's message until each
// stream that it concerns has accepted or refused it, needed nothing, or ended; and only to these.
func TestB43_FanoutEndsWithTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagating(t)
		fast, slow, refuses, twice := p.client("*"), p.client("*"), p.client("*"), p.client("*", benchName(0))
		all := []*scriptedClient{fast, slow, refuses, twice}
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
		refuses.answer("no")
		p.wantEnded("while one has not answered")
		time.Sleep(time.Second)
		slow.answer("")
		p.wantEnded("after all have answered", "4 streams: 3 accepted 1 refused in 2.1s")

		p.change(cache.ByName, "1", 7)
		named.answer("")
		p.wantEnded("after a change of a name", "1 streams: 1 accepted in 100ms")

		p.change(cache.Wildcard, "3", 1) // slow answers to this
		p.change(cache.Wildcard, "4", 1) // and is told of this
		fast.answer("")
		refuses.answer("")
		twice.answer("")
		p.w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Removed: []string{benchName(2)}})
		synctest.Wait()
		for _, c := range []*scriptedClient{fast, refuses, twice, fast, refuses, twice} {
			c.answer("")
		}
		p.wantEnded("while a slow one has still to be told")
		time.Sleep(3 * time.Second)
		slow.answer("")
		slow.answer("")
		slow.answer("")
		p.wantEnded("after it has answered for all", "4 streams: 4 accepted in 3.1s", "4 streams: 4 accepted in 3.1s",
			"4 streams: 4 accepted in 3s")

		spread := p.group.counts.Types()[wire.ClusterType]
		if got := spread.Fanout; got.Count() != 5 || got.Sum != 11400*time.Millisecond ||
			spread.GivenUp+spread.Unfollowed != 0 {
			t.Errorf("counted were %+v, want 5 that took 11.4s", spread)
		}
	})
}

// TestB43_FanoutsEndWithoutAnswers: those whose streams end, or want nothing any more, and those that are not answered
// in time; and while sixteen changes of a type wait, no more are followed.
func TestB43_FanoutsEndWithoutAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPropagating(t)
		c := p.client("*")
		c.answer("")
		gone := &scriptedClient{ctx: t.Context(), requests: make(chan wire.Request)}
		done := make(chan error, 1)
		go func() { done <- p.server.serveStream(gone, "", true) }()
		gone.ask(wire.Request{Node: []byte{}, Subscribe: []string{"*"}})
		gone.answer("")

		p.change(cache.Wildcard, "2", 0)
		p.change(cache.Wildcard, "3", 0)
		close(gone.requests)
		<-done
		c.answer("")
		p.wantEnded("after one has left and the other was told of the second change",
			"2 streams: 1 accepted 1 departed in 100ms")
		c.answer("")
		p.wantEnded("after it has answered that too", "2 streams: 1 accepted 1 departed in 100ms")

		p.change(cache.Wildcard, "4", 0)
		nonces := c.sent()
		c.ask(wire.Request{Nonce: nonces[len(nonces)-1], Unsubscribe: []string{"*"}})
		p.wantEnded("after an answer that unsubscribes", "1 streams: 1 accepted in 100ms")
		c.ask(wire.Request{Subscribe: []string{"*"}})
		c.answer("")

		for i := range 18 {
			p.change(cache.Wildcard, fmt.Sprint(5+i), 1)
		}
		p.wantEnded("while one does not answer", "unfollowed in 0s", "unfollowed in 0s")
		time.Sleep(time.Minute)
		synctest.Wait()
		p.w.Trim(time.Now())
		if lines := p.ended(); len(lines) != 16 || lines[0] != "1 streams: 1 unanswered in 0s" {
			t.Errorf("after a minute, there ended %q, want 16 without an answer", lines)
		}
		c.answer("")
		c.answer("")
		p.change(cache.Wildcard, "30", 1)
		c.answer("")
		if lines := p.ended(); len(lines) != 1 || lines[0] != "1 streams: 1 accepted in 100ms" {
			t.Errorf("of the next change, there ended %q", lines)
		}
		if got := p.group.counts.Types()[wire.ClusterType]; got.GivenUp != 16 || got.Unfollowed != 2 ||
			got.Fanout.Count() != 4 {
			t.Errorf("counted were %+v, want 16 given up, 2 not followed, and 4 others", got)
		}
	})
}
