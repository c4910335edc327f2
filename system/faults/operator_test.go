package faults_test

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// operate runs a tender command, such as freeze, on the relay.
func (r *relayProcess) operate(args ...string) {
	r.tb.Helper()
	_ = r.output(args...)
}

// output is operate, and returns what the command prints.
func (r met) output(args ...string) string {
	r.tb.Helper()
	out, err := exec.Command(envoytest.Command(r.tb), append(args, "--admin", r.admin)...).CombinedOutput()
	if err != nil {
		r.tb.Fatalf("tender %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestB15_OperatorsDecide: an origin returns without most of its resources. Clients receive no removal, and new
// clients still receive all resources. An explicit removal by the origin passes at once. An operator then releases
// the held removals, and freezes and thaws the relay. While it is frozen, no client receives changes, not even a new
// one.
func TestB15_OperatorsDecide(t *testing.T) {
	t.Parallel()
	const all, lost = 40, 30
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{Behaviour: relaytest.Behaviour{IgnoreIRV: true}})
	put := func(first int) {
		for i := first; i < all; i++ {
			name := fmt.Sprintf("c%02d", i)
			origin.Set(relaytest.ClusterType, name, relaytest.Cluster(name), "1")
		}
	}
	put(0)
	r := serve(t, "TENDER_ORIGIN="+origin.Addr(), "TENDER_NODE_GROUP_BY=none")
	var clients []*relaytest.Client
	join := func() {
		for _, v := range variants {
			c := r.client(v, fmt.Sprint("client ", len(clients)))
			c.Subscribe(relaytest.ClusterType)
			clients = append(clients, c)
		}
	}
	everybody := func(is func(relaytest.State) bool) {
		t.Helper()
		for _, c := range clients {
			c.WaitState(t.Context(), is)
		}
	}
	have := func(n int) func(relaytest.State) bool {
		return func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) == n }
	}
	join()
	everybody(have(all))
	var before []int
	for _, c := range clients {
		before = append(before, len(c.Responses()))
	}

	mark := r.Mark()
	origin.Stop()
	origin.Clear()
	put(lost)
	origin.Restart()
	r.AwaitLine(mark, "removals held: origin may have lost resources")
	for i, c := range clients {
		if more := c.Responses()[before[i]:]; len(more) > 0 {
			t.Errorf("%v received responses while removals were held back: %v", c, more)
		}
	}
	join()
	everybody(have(all))
	r.counts(`tender_pending_changes{.*reason="large-removal"} 30`, `tender_origin_deletions_held_total{.*} 30`, `tender_origin_deletions_applied_total{.*} 0`)
	origin.Remove(relaytest.ClusterType, "c39")
	everybody(have(all - 1))

	r.operate("pass", "--type", "cds")
	everybody(have(all - 1 - lost))
	r.counts(`tender_pending_changes{.*reason="large-removal"} 0`, `tender_origin_deletions_applied_total{.*} 30`)

	r.operate("freeze")
	mark = len(clients[0].Responses())
	acks := clusterAcks(origin.State())
	origin.Apply(func(tx *relaytest.Tx) {
		tx.Set(relaytest.ClusterType, "c38", relaytest.Cluster("c38", "other"), "2")
		tx.Remove(relaytest.ClusterType, "c37")
	})
	origin.WaitFor(t.Context(), "an ACK of a change during the freeze", func(s *relaytest.OriginState) bool { return clusterAcks(s) > acks })
	r.counts(`tender_origin_frozen{.*} 1`, `tender_pending_changes{.*reason="frozen"} 2`)
	join()
	everybody(func(s relaytest.State) bool {
		return have(all-1-lost)(s) && s.Digest(relaytest.ClusterType, "c38") == relaytest.DigestOf(relaytest.Cluster("c38"))
	})
	if more := clients[0].Responses()[mark:]; len(more) > 0 {
		t.Errorf("%v received changes while the relay was frozen: %v", clients[0], more)
	}
	r.operate("thaw")
	everybody(func(s relaytest.State) bool {
		return have(all-2-lost)(s) && s.Digest(relaytest.ClusterType, "c38") == relaytest.DigestOf(relaytest.Cluster("c38", "other"))
	})
	r.counts(`tender_origin_frozen{.*} 0`, `tender_pending_changes{.*reason="frozen"} 0`)
	for _, c := range clients {
		if c.Ended() {
			t.Errorf("%v: the stream ended", c)
		}
	}
}

// clusterAcks returns the number of ACKs for clusters that an origin has received.
func clusterAcks(s *relaytest.OriginState) (acks int) {
	for _, stream := range s.Streams {
		if clusters := stream.Types[relaytest.ClusterType]; clusters != nil {
			acks += clusters.ACKs
		}
	}
	return acks
}
