package upstream_test

import (
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// silentWarning is part of the log line about an origin that does not respond.
const silentWarning = "sends no response"

// TestB4_SilentOriginIsReported: an origin that accepts the first request and sends no response for 10s is logged once,
// with the node and the variables that configure it.
func TestB4_SilentOriginIsReported(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		r.pass(9 * time.Second)
		check.Equal(t, "warnings after 9s", r.log.count(silentWarning), 0)
		r.pass(longAfter)
		check.Equal(t, "warnings long after", r.log.count(silentWarning), 1)
		for _, text := range []string{"TENDER_NODE_GROUP_BY", "node_id=relay", "WARN"} {
			if r.log.count(text) == 0 {
				t.Errorf("no log line contains %q", text)
			}
		}
		r.Accept(t.Context()).Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: clusters})
		r.pass(time.Second)
		check.Equal(t, "lines about the end of the silence", r.log.count("origin sends responses again"), 1)
	})
}

// TestB4_QuietOriginIsNotReported: an origin that responds in time, or need not respond since the relay reported
// versions, is not logged.
func TestB4_QuietOriginIsNotReported(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Delay: 9 * time.Second}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1")
		r.watch.SubscribeAll(clusters)
		r.pass(time.Minute)
		r.Restart()
		r.pass(longAfter)
		r.expect("second stream", r.conversation(1), "[cds node a=1]")
		check.Equal(t, "warnings", r.log.count(silentWarning), 0)
	})
}

// TestB6_C29_LingeringIsBounded: if lingering names exceed the limit on their number or size, the relay unsubscribes
// from those that have lingered longest. It never unsubscribes from a name in use.
func TestB6_C29_LingeringIsBounded(t *testing.T) {
	tests := []struct {
		name string
		cfg  upstream.Config
	}{
		{"by number", upstream.Config{MaxLingering: 2}},
		{"by bytes", upstream.Config{MaxLingeringBytes: 1200}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{}, tt.cfg, func(t *testing.T, r *rig) {
				names := []string{"a", "b", "c", "d", "held"}
				for _, name := range names {
					r.Set(endpoints, name, relaytest.Opaque(endpoints, name, make([]byte, 400)), "1")
				}
				subs := r.watch.Subscribe(endpoints, names)
				r.pass(soon)
				for i := range 4 { // a first, d last
					r.watch.Unsubscribe(endpoints, subs[i:i+1])
					r.pass(soon)
				}
				r.expect("subscribed", strings.Join(r.State().Names(endpoints), " "), "c d held")
				r.expect("named", r.named(endpoints), "c@1 d@1 held@1")
				// The relay has unsubscribed from b and requests it again. c lingers and needs no request.
				requests := len(r.State().Requests(endpoints))
				r.watch.Subscribe(endpoints, []string{"b", "c"})
				r.pass(soon)
				if got := r.State().Requests(endpoints)[requests:]; described(got[0]) != "[eds +b]" || len(got) != 2 {
					t.Errorf("requests for b and c: %v, want one for b and an ACK", got)
				}
				r.expect("named", r.named(endpoints), "b@1 c@1 d@1 held@1")
			})
		})
	}
}
