package envoy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// awaitShown waits until the output of commands at a relay contains texts.
func awaitShown(t *testing.T, r *envoytest.RelayProcess, commands []string, texts ...string) {
	t.Helper()
	for _, command := range commands {
		r.Await(fmt.Sprintf("%q in tender %s", texts, command), func() error {
			got := r.Tender(command)
			for _, text := range texts {
				if !strings.Contains(got, text) {
					return fmt.Errorf("tender %s prints\n%s", command, got)
				}
			}
			return nil
		})
	}
}

// relaysBelow returns the clients of a relay that are relays.
func relaysBelow(t *testing.T, r *envoytest.RelayProcess) []admin.Client {
	t.Helper()
	var all admin.Clients
	if err := json.Unmarshal(r.Get("/api/v1/clients?relays=true"), &all); err != nil {
		t.Fatal(err)
	}
	return all.Clients
}

// TestB49_TheUpperRelayShowsEnvoysBelow: of two relays in a chain, the upper one shows that an Envoy below the lower one
// rejects a listener, with its name and its error, until that is corrected. When the machine of the lower relay fails, the
// upper one does not show its Envoy in sync with a later change, and drops it when no ping is answered. It is in sync again
// once the Envoy of the restarted relay has the change.
func TestB49_TheUpperRelayShowsEnvoysBelow(t *testing.T) {
	both := []string{"clients", "status"}
	matrix(t, ads, func(t *testing.T, c client) {
		origin := envoytest.NewControlPlane(t)
		origin.Put(web("one", envoytest.NewBackend(t, "one"))...)
		upper := envoytest.StartRelay(t, origin.Addr, "TENDER_NODE_ID=upper")
		link := proxy.New(t, upper.Addr)
		below := []string{
			"TENDER_NODE_ID=lower", "TENDER_LISTEN=" + proxy.FreeAddress(t), "TENDER_ORIGIN_PROTOCOL=" + c.name,
			"TENDER_SNAPSHOT_DIR=" + t.TempDir(),
		}
		lower := envoytest.StartRelay(t, link.Addr(), below...)
		e := envoytest.Start(t, c.options(lower.Addr, "edge-1"))
		e.Listener("web")
		const inSync = "below 1 relay: 1 client: 0 rejecting, 0 behind, 0 unknown, 1 in sync"
		awaitShown(t, upper, both, inSync)

		origin.Put(invalid("broken"))
		awaitShown(t, upper, both, "below 1 relay: 1 client: 1 rejecting", "edge-1 lds: REJECTED: ", rejection)

		origin.Put(relaytest.Listener("broken", "web"))
		awaitShown(t, upper, both, inSync)

		link.Set(proxy.Link{Refuse: true})
		link.Strand() // the upper relay does not learn of the end of the lower one
		lower.Kill()
		origin.Put(relaytest.Listener("late", "web"))
		upper.Await("the lower relay behind", func() error {
			if relays := relaysBelow(t, upper); len(relays) == 1 && relays[0].Sync != admin.Behind {
				return fmt.Errorf("it is %+v", relays[0])
			}
			return nil
		})
		upper.Await("end of the stream of the lower relay", func() error {
			relays := relaysBelow(t, upper)
			for _, r := range relays {
				if r.Sync == admin.InSync || r.Below.InSync > 0 {
					t.Fatalf("the killed relay is shown in sync: %+v, below %+v", r, r.Below)
				}
			}
			if len(relays) > 0 {
				return fmt.Errorf("%d relays below", len(relays))
			}
			return nil
		})
		awaitShown(t, upper, both, "0 clients")

		link.Set(proxy.Link{})
		lower = envoytest.StartRelay(t, link.Addr(), below...)
		awaitShown(t, upper, both, inSync)
		if got := e.Config()["dynamic_listeners/late"]; !strings.Contains(got, "active_state") {
			t.Errorf("the Envoy is shown in sync without the change: %s", got)
		}
		lower.Kill()
		awaitShown(t, upper, both, "0 clients")
	})
}
