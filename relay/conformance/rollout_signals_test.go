package conformance_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// manyClients returns six canaries and six clients of other stages.
func (w *rolloutWorld) manyClients(v relaytest.Variant) (canaries, others []*rolloutClient) {
	var nodes []string
	for i := range 6 {
		nodes = append(nodes, fmt.Sprint("canary-", i), fmt.Sprint("other-", i))
	}
	for i, c := range w.clients(v, nodes...) {
		if i%2 == 0 {
			canaries = append(canaries, c)
		} else {
			others = append(others, c)
		}
	}
	return canaries, others
}

// An edition is halted if canaries disconnect, but not if clients of all cohorts do.
func TestI14_DisconnectingCanariesHalt(t *testing.T) {
	t.Parallel()
	for _, everywhere := range []bool{false, true} {
		t.Run(fmt.Sprintf("everywhere %v", everywhere), func(t *testing.T) {
			rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
				canaries, others := w.manyClients(v)
				w.change("cds a@2")
				w.sleep(10 * time.Second)
				w.expectResources("cds a@2 b@1", canaries...)
				for i := range 3 {
					canaries[i].Close()
					if everywhere {
						others[i].Close()
					}
				}
				w.sleep(5 * time.Second)
				want := "cds a@1 b@1"
				if everywhere {
					want = "cds a@2 b@1"
				}
				w.expectResources(want, canaries[3:]...)
				w.expectResources("cds a@1 b@1", others[3:]...)
			})
		})
	}
}

// An edition is halted if a single canary keeps reconnecting and no other client does.
func TestI14_OneCanaryThatCrashLoopsHalts(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary-1", "canary-2", "other")
		w.change("cds a@2")
		w.sleep(10 * time.Second)
		for range 3 {
			w.expectResources("cds a@2 b@1", all[1])
			all[0].Close()
			w.sleep(5 * time.Second)
			all[0].Reconnect(w.relay.Conn())
			w.sleep(5 * time.Second)
		}
		w.expectResources("cds a@1 b@1", all...)
	})
}

// A client that has never ACKed the last good state cannot halt an edition: neither one with a forged Node, nor
// one that NACKed the type before.
func TestI14_ClientsWithoutTheLastGoodHaltNothing(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		rejecting := w.client(v, "canary-rejects", func(r *relaytest.Response) error {
			if r.TypeURL == relaytest.ListenerType {
				return errors.New("it takes no listener")
			}
			return nil
		})
		all := w.clients(v, "canary", "other")
		w.change("lds l@2", "cds a@2")
		w.sleep(10 * time.Second)
		w.client(v, "canary-invented", func(*relaytest.Response) error { return errors.New("it rejects everything") })
		w.sleep(30 * time.Second)
		w.expectResources("lds l@2", all[0])
		w.expectResources("cds a@2 b@1", all[0], rejecting)
		w.sleep(20 * time.Minute)
		w.expectResources("lds l@2", all...)
	})
}

// If the only client of a stage has a forged Node and ACKs nothing, the stage is extended once by its duration,
// and the edition counts as unobserved.
func TestI14_ForgedCanaryHaltsNothing(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		other := w.clients(v, "other")[0]
		w.client(v, "canary-invented", func(*relaytest.Response) error { return errors.New("it rejects everything") })
		w.change("cds a@2")
		w.sleep(20*time.Minute + time.Second)
		w.expectResources("cds a@1 b@1", other)
		w.expectPhase(rollout.Rolling, 1)
		w.sleep(time.Minute)
		w.expectPhase(rollout.Rolling, 2)
		w.sleep(20 * time.Minute)
		w.expectResources("cds a@2 b@1", other)
		if s := w.expectPhase(rollout.Current, 0); !s.Unobserved {
			w.t.Error("the edition is reported as observed, although no known client has ACKed it")
		}
	})
}

// A client that had an unanswered response when the edition began, or was disconnected, can halt it if it ACKs the
// last good state before its cohort gets the edition.
func TestI14_LateACKsCount(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("away %v", away), func(t *testing.T) {
			rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
				all := w.clients(v, "canary", "other")
				connect := func() *rolloutClient { return w.connect(w.relay, v, "second", w.rejecting("cds a@2")) }
				var late *rolloutClient
				if !away {
					late = connect()
					late.Pause() // stops reading
					late.follow()
				}
				w.change("cds a@2")
				w.sleep(time.Minute)
				w.expectResources("cds a@2 b@1", all[0])
				if away {
					late = connect()
					late.follow()
				}
				late.Resume()
				w.sleep(10 * time.Minute)
				w.expectResources("cds a@1 b@1", append(all, late)...)
				if s := w.expectPhase(rollout.Halted, 0); len(s.Rejections) != 1 || s.Rejections[0].Node != "second" {
					w.t.Errorf("got the rejections %+v, want that of the client", s.Rejections)
				}
			})
		})
	}
}

// Clients that reconnect within seconds of a relay's restart have ACKed the last good state before they get an
// edition, so they can halt it.
func TestI14_NACKAfterARestartHalts(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		canary, other := w.client(v, "canary", w.rejecting("cds a@2")), w.client(v, "other", nil)
		w.settle()
		w.relay.Stop()
		w.change("cds a@2")
		w.relay = w.restart()
		w.sleep(10 * time.Second)
		canary.Reconnect(w.relay.Conn())
		other.Reconnect(w.relay.Conn())
		w.sleep(time.Minute)
		if s := w.expectPhase(rollout.Halted, 0); len(s.Rejections) != 1 {
			w.t.Errorf("got the rejections %+v, want that of the canary", s.Rejections)
		}
		w.expectResources("cds a@1 b@1", canary, other)
	})
}

// The external check decides: an edition waits while the check fails to answer, is rolled back if it rejects it,
// and is promoted if it allows it.
func TestI12_TheCheckDecides(t *testing.T) {
	t.Parallel()
	var answer atomic.Int32
	check := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		http.Error(rw, "the budget is spent", int(answer.Load()))
	}))
	check.Config.SetKeepAlivesEnabled(false) // an idle connection would stop virtual time
	t.Cleanup(check.Close)
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "other")
		answer.Store(http.StatusTeapot)
		w.change("cds a@2")
		w.sleep(30 * time.Minute)
		w.expectResources("cds a@1 b@1", all...)
		answer.Store(http.StatusNoContent)
		w.sleep(20 * time.Second)
		w.expectResources("cds a@2 b@1", all[0])
		answer.Store(http.StatusTeapot)
		w.sleep(30 * time.Minute)
		w.expectResources("cds a@1 b@1", all[1])
		w.expectResources("cds a@2 b@1", all[0])
		answer.Store(http.StatusConflict)
		w.sleep(20 * time.Second)
		w.expectResources("cds a@1 b@1", all...)
		answer.Store(http.StatusOK)
		w.change("cds a@3")
		w.sleep(21 * time.Minute)
		w.expectResources("cds a@3 b@1", all...)
	}, "TENDER_ROLLOUT_CHECK="+check.URL)
}
