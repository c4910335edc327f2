package conformance_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// B.43: whatever a change waits for, it is one trace: the response that stated it, the wait with its reason, and then the fan-out and
// the delivery.
func TestB43_PendingChanges(t *testing.T) {
	t.Parallel()
	const shared = "127.0.0.1:8080"
	clusters := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprint("c", i))
		}
		return all
	}
	for _, tt := range []struct {
		reason, env string
		sotw        bool          // of the origin
		of          string        // type of the change
		waits       time.Duration // at least
		change      func(o *relaytest.Origin, r *tracedRelay)
		passes      func(o *relaytest.Origin, r *tracedRelay)
	}{
		{
			reason: "interval", env: "TENDER_MIN_PUSH_INTERVAL=cds=10s", of: relaytest.ClusterType, waits: 9 * time.Second,
			change: func(o *relaytest.Origin, r *tracedRelay) {
				o.Put(relaytest.Cluster("c0", "first"))
				sleep(time.Second)
				r.spans.Reset()
				o.Put(relaytest.Cluster("c0", "second"))
			},
		},
		{
			reason: "frozen", of: relaytest.ClusterType, waits: time.Minute,
			change: func(o *relaytest.Origin, r *tracedRelay) {
				r.freeze(admin.FreezeScope{})
				o.Put(relaytest.Cluster("c0", "later"))
			},
			passes: func(_ *relaytest.Origin, r *tracedRelay) { r.thaw() },
		},
		{
			reason: "suspect", sotw: true, of: relaytest.ClusterType, waits: 4 * time.Second,
			change: func(o *relaytest.Origin, _ *tracedRelay) {
				o.Stop()
				o.Remove(relaytest.ClusterType, "c0")
				o.Restart()
			},
		},
		{
			reason: "large-removal", sotw: true, of: relaytest.ClusterType, waits: 10 * time.Minute,
			change: func(o *relaytest.Origin, _ *tracedRelay) {
				o.Stop()
				for _, name := range clusters(11) {
					o.Remove(relaytest.ClusterType, name)
				}
				o.Restart()
			},
		},
		{
			reason: "breaking", env: holdBroken, of: relaytest.RouteType, waits: time.Minute,
			change: func(o *relaytest.Origin, _ *tracedRelay) { o.Put(relaytest.Route("r", []string{"*"}, "missing")) },
			passes: func(o *relaytest.Origin, _ *tracedRelay) { o.Put(relaytest.Cluster("missing")) },
		},
		{
			reason: "replacement", of: relaytest.ListenerType, waits: 4 * time.Second,
			change: func(o *relaytest.Origin, _ *tracedRelay) { o.Put(relaytest.ListenerAt("n", "r", shared)) },
		},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Change(func(b *relaytest.Behaviour) { b.SotW = tt.sotw })
				for _, name := range clusters(12) {
					o.Put(relaytest.Cluster(name))
				}
				o.Put(relaytest.ListenerAt("l", "r", shared), relaytest.Route("r", []string{"*"}, "c11"))
				env := []string{operated, "TENDER_TRACE_DELIVERIES=1"}
				if tt.env != "" {
					env = append(env, tt.env)
				}
				r := startTraced(t, o, env...)
				routed(r.running, relaytest.ClientOptions{})
				sleep(time.Minute)
				r.spans.Reset()
				tt.change(o, r)
				sleep(time.Minute)
				if tt.passes != nil {
					tt.passes(o, r)
				}
				sleep(20 * time.Minute)
				synctest.Wait()
				r.wantPending(tt.reason, tt.of, tt.waits)
				r.wantNoEmptyAttributes()
			})
		})
	}
}

// wantPending fails the test unless the relay has one trace with a span pending, which has waited for a reason, and the spans before
// and after it.
func (r *tracedRelay) wantPending(reason, typeURL string, atLeast time.Duration) {
	r.t.Helper()
	pending := r.await("pending", 1)[0]
	var last tracetest.SpanStub
	for _, name := range []string{"origin.receive", "pending", "cache.apply", "fanout", "deliver"} {
		i := slices.IndexFunc(r.spans.GetSpans(), func(s tracetest.SpanStub) bool {
			changes := name != "cache.apply" || valueOf(s, "tender.followed") == "true"
			return s.Name == name && changes && s.SpanContext.TraceID() == pending.SpanContext.TraceID()
		})
		if i < 0 {
			r.t.Fatalf("the trace of the change has no span %s", name)
		}
		s := r.spans.GetSpans()[i]
		if name != "pending" && valueOf(s, "tender.type_url") != typeURL {
			r.t.Errorf("span %s has the type %s, want %s", name, valueOf(s, "tender.type_url"), typeURL)
		}
		if s.StartTime.Before(last.StartTime) {
			r.t.Errorf("span %s began %v before span %s", name, last.StartTime.Sub(s.StartTime), last.Name)
		}
		last = s
	}
	if waited := pending.EndTime.Sub(pending.StartTime); valueOf(pending, "tender.reason") != reason || waited < atLeast {
		r.t.Errorf("the change waited %v with the attributes %v, want %s for %v or more", waited, pending.Attributes, reason, atLeast)
	}
	if got := attributes(last, "outcome"); got != "outcome=accepted" {
		r.t.Errorf("the delivery has %s, want it accepted", got)
	}
}
