package upstream_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream"
)

// phase returns the phase of the wildcard set of a type or collection.
func (r *rig) phase(typeURL string) cache.Phase { return r.view.Generation().Type(typeURL).Phase }

// TestB15_NoVersionsReportedToAnotherTarget: the relay does not report versions to another target, where they may mean
// other content.
func TestB15_NoVersionsReportedToAnotherTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		old := viewSync(t, o, upstream.Config{})
		old.put(clusters, "a@1")
		old.watch.SubscribeAll(clusters)
		old.pass(10 * time.Second)
		old.stop()
		s, _ := old.w.Snapshot(true)
		if s.Target != o.Target() {
			t.Errorf("target of the snapshot: %q, want %q", s.Target, o.Target())
		}
		s.Target = "passthrough:///another"
		r := restored(t, o, upstream.Config{}, s)
		r.pass(10 * time.Second)
		r.expect("requests", r.conversation(1), "[cds node] [cds ACK 1]")
		if s, _ := r.w.Snapshot(true); s.Target != o.Target() {
			t.Errorf("target of the snapshot after a resend: %q, want %q", s.Target, o.Target())
		}
	})
}
