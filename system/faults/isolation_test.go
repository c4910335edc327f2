package faults_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
)

// TestB48_SubscriptionsOfOneClient: a client of a relay process subscribes to types for which go-control-plane ends the
// stream, and later also to a new name. Other clients receive changes and removals, new ones are served, and operators
// see the subscriptions in the status, the metrics and the log until the client leaves.
func TestB48_SubscriptionsOfOneClient(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{controlplane.Linear, controlplane.LinearSotW} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			o := controlplane.New(t, kind, nil, relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Listener("l", "r"))
			r := serve(t, "TENDER_ORIGIN="+o.Target())
			c := r.client(relaytest.Delta, "good")
			c.Subscribe(relaytest.ClusterType)
			o.Follow(c, relaytest.ClusterType)
			odd := r.client(relaytest.SotW, "odd")
			odd.Subscribe(relaytest.RuntimeType, "a")
			odd.Subscribe(relaytest.SecretType, "b")
			odd.Subscribe("type.googleapis.com/acme.v1.Invented")
			r.AwaitLine(0, "subscription ends upstream streams")
			for i := range 3 {
				o.Put(relaytest.Cluster("a", fmt.Sprint("changed ", i)))
				o.Remove(relaytest.ClusterType, "b")
				o.Follow(c, relaytest.ClusterType)
				o.Put(relaytest.Cluster("b"))
				o.Follow(c, relaytest.ClusterType)
			}
			late := r.client(relaytest.SotW, "late")
			late.Subscribe(relaytest.ListenerType)
			late.Subscribe(relaytest.ClusterType)
			o.Follow(late, relaytest.ListenerType)
			o.Follow(late, relaytest.ClusterType)

			isolated := func() (names string) {
				var s admin.Status
				if err := json.Unmarshal(r.page("/api/v1/status"), &s); err != nil {
					t.Fatal(err)
				}
				for _, v := range s.Views {
					for _, i := range v.Isolated {
						names += " " + relaytest.ShortType(i.TypeURL) + strings.Join(i.Names, ",")
						if !strings.Contains(i.Error, "no cache defined") {
							t.Errorf("isolated: %+v, want the error of the control plane", i)
						}
					}
				}
				return names
			}
			await(t, "the isolated subscriptions in the status", func() bool {
				names := isolated()
				return strings.Contains(names, "Runtimea") && strings.Contains(names, "Invented*") && strings.Count(names, " ") == 2
			})
			if metrics := string(r.page("/metrics")); !strings.Contains(metrics, `tender_origin_isolated{origin="default"} 2`) {
				t.Error("the metrics do not count two isolated subscriptions")
			}
			odd.Close()
			await(t, "the end of the isolated subscriptions", func() bool { return isolated() == "" })
		})
	}
}

// await polls until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 1200 {
		if holds() {
			return
		}
		wait(t, 50*time.Millisecond)
	}
	t.Fatalf("no sign of %s", what)
}
