package upstream_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// A pair is a mirror of an origin with two addresses, of which the first has failed and
// the second is in use and has answered.
type pair struct {
	*rig
	one, two *relaytest.Origin
}

// inPair runs a test on a pair whose first address is down, on virtual time. Both
// have the clusters a@1 and b@1.
func inPair(t *testing.T, opts relaytest.OriginOptions, test func(t *testing.T, p *pair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts.Memory, opts.Address = true, "one"
		p := &pair{one: relaytest.NewOrigin(t, opts), two: relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: "two"})}
		p.rig = viewSync(t, p.one, upstream.Config{
			Targets: []string{p.one.Target(), p.two.Target()}, DialOptions: relaytest.DialOptions(p.one, p.two),
		})
		for _, o := range []*relaytest.Origin{p.one, p.two} {
			o.Apply(func(tx *relaytest.Tx) { putIn(tx, clusters, "a@1", "b@1") })
		}
		p.watch.SubscribeAll(clusters)
		p.pass(time.Minute)
		p.one.Stop()
		p.pass(time.Minute)
		p.uses("after the first has failed", p.two)
		test(t, p)
	})
}

// uses fails the test unless there are streams to an origin, and to the other one none.
func (p *pair) uses(what string, o *relaytest.Origin) {
	p.t.Helper()
	for i, other := range []*relaytest.Origin{p.one, p.two} {
		if n := len(other.State().Open()); (n > 0) != (other == o) {
			p.t.Errorf("%s: %d streams to address %d", what, n, i+1)
		}
	}
	if !p.view.Generation().First().Connected {
		p.t.Errorf("%s: not connected", what)
	}
}

// Back to the first address after it could be reached for ten minutes, in one step,
// without a word to clients; it is asked for everything, since the versions that are held
// are the other one's.
func TestB40_FailsBackToTheFirst(t *testing.T) {
	inPair(t, relaytest.OriginOptions{}, func(t *testing.T, p *pair) {
		seq := p.view.Generation().Seq
		p.one.Restart()
		p.pass(9*time.Minute + 50*time.Second)
		p.uses("before ten minutes", p.two)
		p.pass(20 * time.Second)
		p.uses("after ten minutes", p.one)
		p.expect("the first request", showRequest(p.one.State().Last().Requests[0].Message), "[Cluster node]")
		p.pass(time.Hour)
		p.uses("an hour later", p.one)
		p.expect("members", p.members(clusters), "a@1 b@1")
		check.Equal(t, "position: nothing has changed", p.view.Generation().Seq, seq)
		p.one.Stop()
		p.pass(time.Minute)
		p.uses("after it failed again", p.two)
	})
}

// An address that comes and goes is not returned to, however often it is there.
func TestB40_FlappingIsNotStable(t *testing.T) {
	inPair(t, relaytest.OriginOptions{}, func(t *testing.T, p *pair) {
		for range 40 {
			p.one.Restart()
			p.pass(50 * time.Second)
			p.one.Stop()
			p.pass(2 * time.Second)
			p.uses("while the first comes and goes", p.two)
		}
		check.Equal(t, "streams to the first", len(p.one.State().Streams), 1)
	})
}

// Servers that end connections without streams are there all the same.
func TestB40_IdleConnectionsMayEnd(t *testing.T) {
	opts := relaytest.OriginOptions{ServerOptions: []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 2 * time.Minute}),
	}}
	inPair(t, opts, func(t *testing.T, p *pair) {
		p.one.Restart()
		before := p.one.State().Connections
		p.pass(11 * time.Minute)
		p.uses("after eleven minutes", p.one)
		if n := p.one.State().Connections - before; n < 4 {
			t.Errorf("%d connections, want one for every two minutes", n)
		}
	})
}

// An address that takes connections and ends streams is left at once, and is not
// returned to before another ten minutes.
func TestB40_FailedFailBack(t *testing.T) {
	inPair(t, relaytest.OriginOptions{}, func(t *testing.T, p *pair) {
		p.one.Change(func(b *relaytest.Behaviour) { b.Manual = true })
		p.one.Accept(t.Context()) // the stream of before
		p.one.Restart()
		p.pass(9 * time.Minute)
		for range 3 {
			since := time.Now()
			for len(p.one.State().Open()) == 0 {
				p.pass(time.Second)
			}
			if d := time.Since(since); d > 11*time.Minute {
				t.Fatalf("returned after %v", d)
			}
			p.one.Accept(t.Context()).Close(unavailable)
			p.one.Accept(t.Context()).Close(unavailable) // one attempt proves nothing
			p.pass(5 * time.Second)
			p.uses("after the return failed", p.two)
			p.pass(9*time.Minute + 40*time.Second)
			p.uses("nine minutes after the return failed", p.two)
		}
		p.expect("members", p.members(clusters), "a@1 b@1")
	})
}

// What another address does not have is not gone at once: it is asked for by name, and a
// mass of it is held back.
func TestB40_B15_OtherAddressWithFewerResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: "one"})
		two := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: "two"})
		r := viewSync(t, one, upstream.Config{
			Targets: []string{one.Target(), two.Target()}, DialOptions: relaytest.DialOptions(one, two), MassDeleteHold: 20 * time.Minute,
		})
		for i := range 40 {
			r.put(clusters, fmt.Sprintf("c%02d@1", i))
		}
		two.Apply(func(tx *relaytest.Tx) { putIn(tx, clusters, "c00@1", "c01@1") })
		r.watch.SubscribeAll(clusters)
		r.pass(time.Minute)
		one.Stop()
		count := func(what string, want int) {
			t.Helper()
			if n := r.view.Generation().Type(clusters).Wildcard.Count(); n != want {
				t.Errorf("%s: %d members, want %d", what, n, want)
			}
		}
		r.pass(9 * time.Minute)
		count("at the other address", 40)
		one.Restart()
		for range 15 { // it is returned to before the hold is over
			r.pass(time.Minute)
			count("until the first is back", 40)
		}
		r.pass(time.Hour)
		count("an hour later", 40)
		if n := len(one.State().Open()); n == 0 {
			t.Error("no stream to the first address")
		}
	})
}
