package envoy_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// teams is the number of teams of TestB53_EnvoysReceiveTheGoodParts. Each has a listener, a route and a cluster.
const teams = 10

// team returns the name of the resources of a team.
func team(i int) string { return fmt.Sprint("team-", i) }

// teamChange returns a change of a team that leads its requests to another backend: even teams change their route, to the
// cluster of that name, and odd ones their cluster.
func teamChange(i int, to *envoytest.Backend) proto.Message {
	if i%2 == 0 {
		return relaytest.Route(team(i), []string{"*"}, to.Name)
	}
	return relaytest.StaticCluster(team(i), to.Addr)
}

// A teamEnvoy is an Envoy with a load on the listener of each team.
type teamEnvoy struct {
	*stagedEnvoy
	loads []*envoytest.Load
}

// startTeams starts an Envoy and its loads.
func startTeams(t *testing.T, o envoytest.Options) teamEnvoy {
	t.Helper()
	e := teamEnvoy{stagedEnvoy: &stagedEnvoy{Envoy: envoytest.Start(t, o)}}
	for i := range teams {
		e.loads = append(e.loads, envoytest.StartLoad(t, e.Listener(team(i)), fleetInterval))
	}
	return e
}

// TestB53_EnvoysReceiveTheGoodParts: of ten changes that arrive at once, Envoy rejects one. The others pass the stage of a
// canary and reach the other Envoy. The rejected one is halted and never reaches that, and passes once the control plane has
// corrected it. No request through either Envoy fails.
func TestB53_EnvoysReceiveTheGoodParts(t *testing.T) {
	matrix(t, ads, func(t *testing.T, c client) {
		const bad = teams - 1 // an odd one: its cluster changes
		origin, before, after := envoytest.NewControlPlane(t), envoytest.NewBackend(t, "before"), envoytest.NewBackend(t, "after")
		world := []proto.Message{relaytest.StaticCluster(after.Name, after.Addr)}
		for i := range teams {
			world = append(world, relaytest.Listener(team(i), team(i)), relaytest.Route(team(i), []string{"*"}, team(i)),
				relaytest.StaticCluster(team(i), before.Addr))
		}
		origin.Put(world...)
		r := envoytest.NewRelay(t, origin.Addr, "TENDER_ROLLOUT=metadata.canary=true 1s", "TENDER_DELTA_VERSIONS=content",
			"TENDER_COLD_WAIT=1s", "TENDER_SNAPSHOT_DIR="+filepath.Join(t.TempDir(), "snapshots"))
		o := c.options(r.Addr, "canary")
		o.Node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"canary": structpb.NewBoolValue(true)}}
		canary, other := startTeams(t, o), startTeams(t, c.options(r.Addr, "other"))
		canary.Await("confirmed sets", func() error { return incomplete(r) })
		good := judgedRollout(t, r.Get("/api/v1/rollouts"))
		onlyGood(t, other.stagedEnvoy)

		changes := []proto.Message{relaytest.StaticCluster(team(bad), "bad-address:80")}
		for i := range bad {
			changes = append(changes, teamChange(i, after))
		}
		origin.Put(changes...)
		for i := range bad {
			other.answers(i, after)
			canary.answers(i, after)
		}
		halted := awaitRollout(t, other.Envoy, r, "nine promotions and a halt", func(s *rollout.Status) bool {
			return s.Phase == rollout.Halted && s.Outcomes.Promoted == good.Outcomes.Promoted+bad
		})
		part, reason := "cds/"+team(bad), halted.Halted.Reason
		if halted.Part != part || halted.Outcomes.Halted != 1 || !strings.Contains(reason, "bad-address") {
			t.Errorf("halted: part %q, outcomes %+v, reason %q; want only %q", halted.Part, halted.Outcomes, reason, part)
		}
		if page := r.Tender("rollout", "status"); !strings.Contains(page, part) || !strings.Contains(page, "bad-address") {
			t.Errorf("tender rollout status without the halted part and its reason:\n%s", page)
		}
		awaitSum(canary.Envoy, "update_rejected", 1)
		for _, e := range []teamEnvoy{canary, other} {
			e.loads[bad].Continue(10)
			if n := e.loads[bad].Report().Answers[after.Name]; n > 0 {
				t.Errorf("Envoy %s: %d answers of a backend that only the corrected change has", e.ID(), n)
			}
		}
		if err := canary.Differs(other.Config()); err != nil {
			t.Errorf("the canary differs from the other Envoy after the halt: %v", err)
		}

		origin.Put(teamChange(bad, after))
		for _, e := range []teamEnvoy{canary, other} {
			e.answers(bad, after)
			for _, load := range e.loads {
				if report := load.Stop(); len(report.Failures) > 0 {
					t.Errorf("Envoy %s: %v", e.ID(), report)
				}
			}
		}
		awaitRollout(t, other.Envoy, r, "promotion of the corrected change", func(s *rollout.Status) bool {
			return s.Phase == rollout.Current && s.Outcomes.Promoted == good.Outcomes.Promoted+teams
		})
		if n := faults(other.Envoy); n > 0 {
			t.Errorf("the other Envoy rejected %d updates", n)
		}
	})
}

// answers waits until a backend answers the requests to a team.
func (e teamEnvoy) answers(i int, of *envoytest.Backend) {
	e.loads[i].Await("answers of "+of.Name, func(r envoytest.Report) bool { return r.Answers[of.Name] > 0 })
}
