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

// A pair is a view of an origin with two addresses. The first address has failed; the second is active and has
// responded.
type pair struct {
	*rig
	one, two *relaytest.Origin
}

// inPair runs a test with a pair in a synctest bubble. Both addresses have the clusters a@1 and b@1.
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
		p.uses("after the first address has failed", p.two)
		test(t, p)
	})
}

// uses fails the test unless all streams go to an address, and the first one counts as failed if it is the second.
func (p *pair) uses(what string, o *relaytest.Origin) {
	p.t.Helper()
	for i, other := range []*relaytest.Origin{p.one, p.two} {
		if n := len(other.State().Open()); (n > 0) != (other == o) {
			p.t.Errorf("%s: %d streams to address %d, want streams only to the active address", what, n, i+1)
		}
	}
	if !p.view.Generation().First().Connected {
		p.t.Errorf("%s: not connected", what)
	}
	if failed := p.session.Status().Failed; len(failed) > 0 != (o == p.two) || len(failed) > 0 && failed[0].Target != p.one.Target() {
		p.t.Errorf("%s: failed addresses: %+v", what, failed)
	}
}

// TestB40_FailsBackToTheFirst: the relay fails back to the first address once that has been reachable for ten minutes,
// in one step. Clients do not notice. The relay requests everything, since the cached versions are those of the other
// address.
func TestB40_FailsBackToTheFirst(t *testing.T) {
	inPair(t, relaytest.OriginOptions{}, func(t *testing.T, p *pair) {
		seq := p.view.Generation().Seq
		p.one.Restart()
		p.pass(9*time.Minute + 50*time.Second)
		p.uses("before ten minutes", p.two)
		p.pass(20 * time.Second)
		p.uses("after ten minutes", p.one)
		p.expect("the first request", described(p.one.State().Last().Requests[0]), "[cds node]")
		p.pass(longAfter)
		p.uses("long after", p.one)
		p.expect("members", p.members(clusters), "a@1 b@1")
		check.Equal(t, "position of the unchanged view", p.view.Generation().Seq, seq)
		p.one.Stop()
		p.pass(time.Minute)
		p.uses("after the first address has failed again", p.two)
	})
}

// TestB40_FlappingIsNotStable: the relay does not fail back to an address that is reachable only intermittently.
func TestB40_FlappingIsNotStable(t *testing.T) {
	inPair(t, relaytest.OriginOptions{}, func(t *testing.T, p *pair) {
		for range 40 {
			p.one.Restart()
			p.pass(50 * time.Second)
			p.one.Stop()
			p.pass(2 * time.Second)
			p.uses("while the first address flaps", p.two)
		}
		check.Equal(t, "streams to the first address", len(p.one.State().Streams), 1)
	})
}

// TestB40_IdleConnectionsMayEnd: a server that closes idle connections counts as reachable.
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
			t.Errorf("%d connections in eleven minutes, want one every two minutes", n)
		}
	})
}

// TestB40_FailedFailBack: the relay fails over again from an address that accepts connections and ends streams at once.
// It does not fail back to it for another ten minutes.
func TestB40_FailedFailBack(t *testing.T) {
	inPair(t, relaytest.OriginOptions{}, func(t *testing.T, p *pair) {
		p.one.Change(func(b *relaytest.Behaviour) { b.Manual = true })
		p.one.Accept(t.Context()) // the stream from before the failure
		p.one.Restart()
		p.pass(9 * time.Minute)
		for range 3 {
			since := time.Now()
			for len(p.one.State().Open()) == 0 {
				p.pass(time.Second)
			}
			if d := time.Since(since); d > 11*time.Minute {
				t.Fatalf("failed back after %v, want at most 11m", d)
			}
			p.one.Accept(t.Context()).Close(unavailable)
			p.one.Accept(t.Context()).Close(unavailable) // a single failed attempt causes no failover
			p.pass(5 * time.Second)
			p.uses("after the failback has failed", p.two)
			p.pass(9*time.Minute + 40*time.Second)
			p.uses("nine minutes after the failback has failed", p.two)
		}
		p.expect("members", p.members(clusters), "a@1 b@1")
	})
}

// TestB40_B15_OtherAddressWithFewerResources: resources that another address lacks are not removed at once. The relay
// queries them by name, and a large removal stays pending.
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
		for range 15 { // the failback happens before the hold ends
			r.pass(time.Minute)
			count("until the failback", 40)
		}
		r.pass(longAfter)
		count("long after", 40)
		if n := len(one.State().Open()); n == 0 {
			t.Error("no stream to the first address")
		}
	})
}
