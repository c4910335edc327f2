package relay

import (
	"context"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/downstream"
)

// TestB4_StoppedRelayKeepsNoView checks that the timers that remove groups without streams do not keep views in memory
// after Run has returned, whether the last stream was closed before or after that.
func TestB4_StoppedRelayKeepsNoView(t *testing.T) {
	t.Parallel()
	cfg, err := LoadConfig([]string{
		"TENDER_ORIGIN=127.0.0.1:1", "TENDER_LISTEN=127.0.0.1:0", "TENDER_NODE_GROUP_BY=cluster",
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }() // awaited below
	join := func(cluster string) (*group, downstream.Group) {
		joined, err := r.groups.Join(&corepb.Node{Id: "n", Cluster: cluster}, downstream.Caller{Peer: "127.0.0.1"})
		if err != nil {
			t.Fatal(err)
		}
		r.groups.mu.Lock()
		defer r.groups.mu.Unlock()
		return r.groups.byKey[joined.Key], joined
	}
	idle, before := join("idle")
	active, after := join("active")
	before.Leave()
	r.StopNow()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if idle.removal.Stop() {
		t.Error("the timer of a group without streams still runs")
	}
	if after.Leave(); active.removal != nil {
		t.Error("a timer was started for a group whose last stream was closed after the end")
	}
}
