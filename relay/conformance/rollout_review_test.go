package conformance_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// Content that returns to the last good state every second is in no edition, and reaches no client.
func TestI1_AnOriginThatFlapsReachesNobody(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		before := len(all[0].Responses())
		for i := range 60 {
			w.change(fmt.Sprint("lds l@", 2-i%2))
			w.sleep(time.Second)
		}
		w.expectResources("lds l@1", all...)
		if n := len(all[0].Responses()) - before; n > 0 {
			t.Errorf("the canary got %d responses of an origin that flaps", n)
		}
	})
}

// An undo while an edition of another part is open returns all clients to the state before the promotion, also after a
// restart. The other part goes on.
func TestI6_UndoWhileAnEditionIsOpen(t *testing.T) {
	t.Parallel()
	for what, refuse := range map[string]bool{"rolling": false, "halted": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
				var reject func(*relaytest.Response) error
				if refuse {
					reject = w.rejecting("lds l@2")
				}
				canary := w.client(v, "canary", reject)
				all := append(w.clients(v, "second", "other"), canary)
				w.change("cds a@2")
				w.sleep(21 * time.Minute)
				w.expectResources("cds a@2 b@1", all...)
				w.change("lds l@2")
				w.sleep(5 * time.Second)
				w.command("undo", admin.RolloutScope{Why: admin.Why{Reason: "a is bad"}})
				w.expectPhase(rollout.Halted, 0)
				w.expectResources("cds a@1 b@1", all...)
				w.expectResources("lds l@1", all[:2]...)
				w.sleep(10 * time.Second) // until snapshots contain it
				w.restartRelay(all...)
				w.sleep(30 * time.Minute)
				halted := w.expectPhase(rollout.Halted, 0).Parts
				if !slices.ContainsFunc(halted, func(p *rollout.Status) bool {
					return p.Part == "cds/a" && p.Halted != nil && p.Halted.Reason == "undo by pipe: a is bad"
				}) {
					t.Errorf("after the restart the rollout has the parts %+v, want cds/a halted by the undo", halted)
				}
				w.expectResources("cds a@1 b@1", all...)
				w.expectResources(map[bool]string{false: "lds l@2", true: "lds l@1"}[refuse], all...)
			})
		})
	}
}

// A client that rejects an edition twice, the second time after a resume, is sent the complete last good state
// both times.
func TestI6_AnEditionIsRejectedTwice(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		canary := w.client(v, "canary", withoutNames(w.rejecting("cds a@2")))
		w.clients(v, "other")
		w.change("cds a@2", "cds b@2")
		w.sleep(3 * time.Second)
		for range 2 {
			before := len(canary.Responses())
			w.command("resume", admin.RolloutScope{})
			w.sleep(5 * time.Second)
			w.expectPhase(rollout.Halted, 0)
			w.expectResources("cds a@1 b@1", canary)
			if sent := clustersIn(canary.Responses()[before:]); !slices.Equal(sent, []int{2, 2}) {
				t.Errorf("got %v clusters, want the two that it rejects, and the two last good ones", sent)
			}
			before = len(canary.Responses())
			canary.Reconnect(w.relay.Conn())
			synctest.Wait()
			if sent := clustersIn(canary.Responses()[before:]); !slices.Equal(sent, []int{2}) {
				t.Errorf("after reconnecting with its old versions, it got %v clusters, want both", sent)
			}
		}
	})
}

// The command promote takes effect while the relay is frozen, on what the origin had stated before. The thaw adds what does not
// wait for a stage, and begins the next edition.
func TestI13_PromoteWhileFrozen(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		w.change("cds a@2")
		w.sleep(5 * time.Second)
		w.relay.freeze(admin.FreezeScope{})
		w.change("cds b@2", "eds a@2")
		w.sleep(30 * time.Minute)
		w.expectResources("cds a@1 b@1", all[1:]...)
		w.command("promote", admin.RolloutScope{All: true})
		w.expectResources("cds a@2 b@1", all...)
		w.expectResources("eds a@1 b@1", all...)
		w.relay.thaw()
		w.sleep(5 * time.Second)
		w.expectPhase(rollout.Rolling, 1)
		w.expectResources("cds a@2 b@2", all[0])
		w.expectResources("cds a@2 b@1", all[1:]...)
		w.expectResources("eds a@2 b@1", all...)
	})
}

// A relay that is killed after an undo does not restore undone content as the last good state from older
// snapshots.
func TestI10_UndoSurvivesAKill(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "other")
		w.change("cds a@2")
		w.sleep(21 * time.Minute)
		w.expectResources("cds a@2 b@1", all...)
		w.command("undo", admin.RolloutScope{})
		at := slices.IndexFunc(w.env, func(setting string) bool { return strings.HasPrefix(setting, "TENDER_SNAPSHOT_DIR=") })
		_, dir, _ := strings.Cut(w.env[at], "=")
		if err := os.CopyFS(dir+"-then", os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		w.env[at] += "-then"
		w.restartRelay(all...)
		w.sleep(30 * time.Minute)
		w.expectPhase(rollout.Halted, 0)
		w.expectResources("cds a@1 b@1", all...)
	})
}
