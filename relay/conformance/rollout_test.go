package conformance_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// A change reaches canaries two seconds after the last change, and each further cohort when the stage before it
// ends. Endpoint changes reach all clients at once (I4).
func TestI1_AChangeReachesOneCohortAfterTheOther(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		canary, second, other := all[0], all[1], all[2]
		w.change("cds a@2", "cds c@1", "lds l@2", "eds a@2")
		w.expectResources("eds a@2 b@1", all...)
		w.expectResources("cds a@1 b@1", all...)
		w.sleep(2 * time.Second)
		w.expectResources("cds a@2 b@1 c@1", canary)
		w.expectResources("lds l@2", canary)
		w.expectResources("cds a@1 b@1", second, other)
		w.sleep(10 * time.Minute)
		w.expectResources("cds a@2 b@1 c@1", canary, second)
		w.expectResources("lds l@1", other)
		w.change("eds b@2")
		w.expectResources("eds a@2 b@2", all...)
		w.sleep(10 * time.Minute)
		w.expectResources("cds a@2 b@1 c@1", all...)
		w.expectResources("lds l@2", all...)
	})
}

// Successive changes of several types reach each cohort together.
func TestI2_AnEditionIsWhole(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		expectRevision := func(rev string, clients ...*rolloutClient) {
			t.Helper()
			w.expectResources("cds a@"+rev+" b@1", clients...)
			w.expectResources("lds l@"+rev, clients...)
			w.expectResources("rds routes@"+rev, clients...)
		}
		for _, change := range []string{"cds a@2", "lds l@2", "rds routes@2"} {
			expectRevision("1", all...)
			w.change(change)
			w.sleep(1900 * time.Millisecond)
		}
		expectRevision("1", all...)
		w.sleep(time.Second)
		for reached := range all {
			expectRevision("2", all[:reached+1]...)
			expectRevision("1", all[reached+1:]...)
			w.sleep(10 * time.Minute)
		}
	})
}

// Endpoints that the origin changes and removes during a rollout of an earlier edition of their cluster keep their last
// content until then.
func TestI4_RemovedEndpointsStayAsTheyWereServed(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		w.change("cds a@2")
		w.sleep(3 * time.Second)
		w.expectResources("cds a@2 b@1", all[0])
		w.change("eds a@2")
		w.expectResources("eds a@2 b@1", all...)
		w.change("eds -a")
		for range 2 {
			w.expectResources("eds a@2 b@1", all...)
			w.sleep(10 * time.Minute)
		}
		w.expectResources("cds a@2 b@1", all...)
		w.expectResources("eds a@2 b@1", all[2])
	})
}

// A NACK of a canary halts the edition and returns canaries to the last good state. Other clients never get it,
// and unrelated changes start no rollout (I11); a change of the rejected resource does.
func TestI6_NACKHaltsAndRollsBack(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		canary := w.client(v, "canary", w.rejecting("lds l@2"))
		rest := w.clients(v, "second", "other")
		w.change("cds a@2", "cds c@1", "lds l@2")
		w.sleep(3 * time.Second)
		w.expectResources("cds a@1 b@1", rest...)
		w.expectResources("cds a@2 b@1 c@1", canary)
		w.expectResources("lds l@1", append(rest, canary)...)
		w.change("cds b@2", "eds a@2")
		w.sleep(30 * time.Minute)
		w.expectResources("eds a@2 b@1", append(rest, canary)...)
		w.expectResources("cds a@2 b@2 c@1", append(rest, canary)...)
		w.change("lds l@3")
		w.sleep(5 * time.Second)
		w.expectResources("lds l@3", canary)
		w.expectResources("lds l@1", rest...)
		w.sleep(20 * time.Minute)
		w.expectResources("lds l@3", append(rest, canary)...)
		w.expectResources("cds a@2 b@2 c@1", append(rest, canary)...)
	})
}

// After a restart, a halted rollout stays halted: the relay serves the last good state, and the rejected edition
// to no client.
func TestI10_ARestartedRelayStaysHalted(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		canary := w.client(v, "canary", w.rejecting("lds l@2"))
		other := w.clients(v, "other")[0]
		w.change("cds a@2", "lds l@2")
		w.sleep(10 * time.Second)
		w.restartRelay(canary, other)
		late := w.client(v, "canary-2", w.rejecting("lds l@2"))
		w.sleep(30 * time.Minute)
		w.expectResources("lds l@1", canary, other, late)
		w.expectResources("cds a@2 b@1", canary, other, late)
		w.change("lds l@3")
		w.sleep(5 * time.Second)
		w.expectResources("lds l@3", canary, late)
		w.expectResources("lds l@1", other)
	})
}

// After a restart, an edition that was not promoted begins again with the first stage.
func TestI10_ARestartedRelayBeginsWithTheFirstStage(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		w.sleep(10 * time.Second)
		w.change("cds a@2", "eds a@2")
		w.sleep(15 * time.Minute)
		w.expectResources("cds a@2 b@1", all[:2]...)
		w.restartRelay(all...)
		w.sleep(time.Minute) // until the sets are confirmed
		w.expectResources("eds a@2 b@1", all...)
		w.expectResources("cds a@2 b@1", all[0])
		w.expectResources("cds a@1 b@1", all[2])
		w.sleep(21 * time.Minute)
		w.expectResources("cds a@2 b@1", all...)
	})
}

// A relay that is killed a second after a promotion serves the promoted state after its restart.
func TestI10_APromotionIsWrittenSoon(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "other")
		w.change("cds a@2")
		w.sleep(2*time.Second + 20*time.Minute + time.Second)
		w.expectResources("cds a@2 b@1", all...)
		at := slices.IndexFunc(w.env, func(v string) bool { return strings.HasPrefix(v, "TENDER_SNAPSHOT_DIR=") })
		dir, copied := strings.TrimPrefix(w.env[at], "TENDER_SNAPSHOT_DIR="), w.t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		env := slices.Clone(w.env)
		env[at] = "TENDER_SNAPSHOT_DIR=" + copied
		w.expectResources("cds a@2 b@1", w.clientAt(start(w.t, w.origin, env...), v, "other-2", nil))
	})
}

// A client that NACKed an update may have applied a part of it. If it reconnects with its old version, it is sent
// the complete last good state, also after a restart of the relay. Clients that did not get the edition are not.
func TestI6_AHalfAppliedUpdateIsUndone(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		canary, second := w.client(v, "canary", withoutNames(w.rejecting("cds a@2"))), w.client(v, "second", nil)
		w.settle()
		before := len(canary.Responses())
		w.change("cds a@2", "cds b@2")
		w.sleep(3 * time.Second)
		w.expectResources("cds a@1 b@1", canary)
		if got := clustersIn(canary.Responses()[before:]); !slices.Equal(got, []int{2, 2}) {
			t.Errorf("got %v clusters, want the two that it rejects, and the two last good ones", got)
		}
		canary.reconnectExpecting("halted", 2)
		second.reconnectExpecting("halted")
		w.restartRelay()
		canary.reconnectExpecting("after a restart", 2)
		second.reconnectExpecting("after a restart")
		w.sleep(time.Hour)
		canary.reconnectExpecting("still halted", 2)
		w.change("cds a@1", "cds b@1") // back to the initial content
		w.sleep(59 * time.Minute)
		w.restartRelay()
		canary.reconnectExpecting("within the hour", 2)
		w.sleep(2 * time.Minute)
		canary.reconnectExpecting("an hour later")
	})
}

// After a restart, the last good state is resent to clients that got a superseded edition, and to all clients
// after an undo.
func TestI6_LastGoodIsResent(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		canary, other := w.client(v, "canary", w.rejecting("cds a@2")), w.client(v, "other", nil)
		w.settle()
		w.change("cds a@2", "cds b@2")
		w.sleep(3 * time.Second)
		w.change("cds a@3", "cds b@1")
		w.sleep(3 * time.Second)
		w.expectResources("cds a@3 b@1", canary)
		w.change("cds a@1")
		w.sleep(3 * time.Second)
		w.restartRelay()
		canary.reconnectExpecting("superseded", 2)
		other.reconnectExpecting("superseded")

		w.sleep(time.Hour + time.Minute)
		w.change("cds a@4", "cds b@4")
		w.sleep(30 * time.Minute)
		w.expectResources("cds a@4 b@4", canary, other)
		for _, part := range []string{"cds/a", "cds/b"} {
			w.command("undo", admin.RolloutScope{Part: part})
		}
		w.expectResources("cds a@1 b@1", canary, other)
		w.restartRelay()
		canary.reconnectExpecting("undone", 2)
		other.reconnectExpecting("undone", 2)
	}, "TENDER_ROLLOUT_REJECTIONS=1")
}

// A client that NACKed an edition is resent the last good state, even if that edition only reverted the one
// before: the client had the earlier edition.
func TestI6_LastGoodIsResentAfterANACK(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		clusters, listeners := w.client(v, "canary-1", w.rejecting("cds a@2")),
			w.client(v, "canary-2", w.rejecting("lds l@2"))
		other := w.client(v, "other", nil)
		w.settle()
		for _, wait := range []time.Duration{3 * time.Second, 90 * time.Minute} {
			w.change("cds b@2", "cds c@1", "eds c@1", "lds m@1")
			w.sleep(3 * time.Second)
			w.expectResources("cds a@1 b@2 c@1", clusters, listeners)
			w.expectResources("lds l@1 m@1", clusters, listeners)
			w.change("cds a@2", "cds b@1", "cds -c", "eds -c", "lds l@2", "lds -m")
			w.sleep(wait)
			w.expectResources("cds a@1 b@1", clusters, listeners, other)
			w.expectResources("lds l@1", clusters, listeners, other)
			w.expectPhase(rollout.Halted, 0)
			before := len(clusters.Responses()) + len(listeners.Responses())
			w.change("cds a@1", "lds l@1")
			w.sleep(30 * time.Minute)
			if after := len(clusters.Responses()) + len(listeners.Responses()); after != before {
				t.Errorf("got %d responses, want none, since the clients have the last good state", after-before)
			}
		}
	})
}

// reconnectExpecting reconnects the client, and fails the test unless it gets responses with these numbers of
// clusters.
func (c *rolloutClient) reconnectExpecting(when string, clusters ...int) {
	c.w.t.Helper()
	before := len(c.Responses())
	c.Reconnect(c.w.relay.Conn())
	c.w.sleep(5 * time.Second)
	if got := clustersIn(c.Responses()[before:]); !slices.Equal(got, clusters) {
		c.w.t.Errorf("%s: %s reconnected and got %v clusters, want %v", when, c.node, got, clusters)
	}
}

// clustersIn returns the number of clusters in each response of clusters.
func clustersIn(responses []*relaytest.Response) (counts []int) {
	for _, r := range responses {
		if r.TypeURL == relaytest.ClusterType {
			counts = append(counts, len(r.Resources))
		}
	}
	return counts
}

// Metadata that selects the canaries causes no warning that nodes of a group differ.
func TestCanaryLabelsCauseNoWarning(t *testing.T) {
	t.Parallel()
	for stages, warns := range map[string]bool{"metadata.canary=true 10m": false, "id=canary* 10m": true} {
		t.Run(stages, func(t *testing.T) {
			env := []string{"TENDER_ROLLOUT=" + stages, "TENDER_DELTA_VERSIONS=content", "TENDER_SNAPSHOT_DIR=" + t.TempDir()}
			worldBubble(t, env, func(w *world) {
				w.change("cds a@1")
				for _, canary := range []string{"true", "false"} {
					node := relaytest.EnvoyNode("edge")
					node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"canary": structpb.NewStringValue(canary)}}
					w.dial(relaytest.ClientOptions{Node: node, AutoAck: true}).subscribe("cds", "")
				}
				w.settle()
				if got := strings.Contains(w.relay.Log.String(),
					"differ in Node fields"); got != warns {
					t.Errorf("warned: %v, want %v", got, warns)
				}
			})
		})
	}
}

// A change that the origin reverts during a rollout reaches no further client.
func TestRolloutIsReverted(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "other")
		w.change("cds a@2", "cds c@1")
		w.sleep(time.Minute)
		w.expectResources("cds a@2 b@1 c@1", all[0])
		w.change("cds a@1", "cds -c")
		w.sleep(time.Second)
		w.expectResources("cds a@1 b@1", all...)
	})
}
