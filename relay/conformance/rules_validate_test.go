package conformance_test

import (
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/lint"
	"github.com/xdstender/tender/relay/relaytest"
)

// findingsOf returns the relay's findings as "kind name".
func findingsOf(t *testing.T, r *running) (all []string) {
	t.Helper()
	s := statusOf(t, r)
	if s.Validation == nil {
		return []string{"off"}
	}
	for _, f := range s.Validation.Findings {
		all = append(all, string(f.Kind)+" "+f.Name)
	}
	return all
}

// awaitFindings waits until a relay reports exactly these findings, in a bubble.
func awaitFindings(t *testing.T, r *running, want ...string) {
	t.Helper()
	sleep(10 * time.Second) // longer than a validation takes, and than a reference may be missing
	if got := findingsOf(t, r); strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("findings %q, want %q", got, want)
	}
}

// routed returns a client with an Envoy's subscriptions: all clusters and listeners, and a route configuration.
func routed(r *running, opts relaytest.ClientOptions) *relaytest.Client {
	opts.AutoAck = true
	c := r.Client(opts)
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.ListenerType)
	c.Subscribe(relaytest.RouteType, "r")
	return c
}

// B.46: with TENDER_VALIDATE=warn, the status and metrics report findings. Clients receive the origin's resources
// unchanged.
func TestB46_FindingsOnlyWarn(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"), relaytest.Listener("l", "r"), relaytest.Route("r", []string{"*"}, "a"))
		r := start(t, o, operated)
		c := routed(r, relaytest.ClientOptions{Variant: v})
		c.WaitState(t.Context(), func(s relaytest.State) bool {
			return s.Has(relaytest.ClusterType, "a") && s.Has(relaytest.ListenerType, "l") && s.Has(relaytest.RouteType, "r")
		})
		awaitFindings(t, r)

		broken := relaytest.Route("r", []string{"*"}, "b")
		c.Fence(t.Context(), relaytest.RouteType, "r", func() { o.Put(broken) })
		awaitFindings(t, r, "missing_reference r")
		s := statusOf(t, r)
		if s.Validation.Mode != "warn" ||
			s.Validation.Counts[0] != (admin.FindingCount{Kind: lint.Missing, TypeURL: relaytest.RouteType, Count: 1}) {
			t.Errorf("validation: %+v", s.Validation)
		}
		if _, text := httpGet(t, r.DialAdmin, "/metrics"); !strings.Contains(text,
			`tender_validation_findings{kind="missing_reference",type="rds"} 1`) {
			t.Error("/metrics does not count the finding")
		}

		o.Put(relaytest.Cluster("b"))
		awaitFindings(t, r)
		o.Remove(relaytest.ClusterType, "b")
		awaitFindings(t, r, "removed_reference r")
	})
}

// TENDER_VALIDATE=off validates nothing.
func TestB46_ValidationIsOff(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"), relaytest.Route("r", []string{"*"}, "b"))
		r := start(t, o, operated, "TENDER_VALIDATE=off")
		c := routed(r, relaytest.ClientOptions{})
		c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.RouteType, "r") })
		awaitFindings(t, r, "off")
	})
}
