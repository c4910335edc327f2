package upstream_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream/reconcile"
)

// TestB15_RandomHistories runs random histories of two addresses of an origin, of operators, and of restarts of the
// relay against a model. It checks these rules:
//
//  1. Clients lose a resource only if the active address lacks it, and one of these holds: an operator passed the
//     removal, the origin removed it on an established stream, the hold expired, or the loss is small and the set was
//     confirmed.
//  2. Clients receive only resources that an origin has sent. Once the active address has been quiet for a while, they
//     receive exactly its resources, plus those with a pending or dropped removal.
//  3. A pending removal is in the holds and in the status, with a deadline, until the second check starts or the
//     origin disconnects. It leaves the holds only if it is applied, or if the origin has the resource.
//  4. A resource that grows abnormally, or one of too many additions to a known set, reaches clients only when its hold has
//     expired, or an operator passes it (B.51).
//  5. After an hour without events nothing is pending. Clients receive the resources of the origin, plus those with a
//     dropped removal.
func TestB15_RandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := history{
			variant: rapid.SampledFrom([]string{"Delta", "Delta", "SotW"}).Draw(rt, "variant"),
			traits:  rapid.IntRange(0, 7).Draw(rt, "traits"),
			watched: rapid.Bool().Draw(rt, "watched"),
			steps:   rapid.SliceOfN(rapid.Custom(drawStep), 0, 25).Draw(rt, "steps"),
		}
		if failures := runHistory(t, h); failures != "" {
			rt.Fatalf("%s", failures)
		}
	})
}

// runHistory runs a history in a world of its own, and returns the violations of the rules, one on each line.
func runHistory(t *testing.T, h history) (failures string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{TB: t}
		defer func() { failures = strings.Join(w.failures, "\n") }()
		w.run(h)
	})
	return failures
}

// TestB15_ComparisonSurvivesStreamLoss: another replica responds with the same versions and other content, and the
// stream is lost before the comparison is done. The comparison happens on the next stream to the same replica.
func TestB15_ComparisonSurvivesStreamLoss(t *testing.T) {
	h := history{variant: "Delta", traits: 6, watched: true, steps: []step{{"flap", 0, 1, 6}, {"put", 1, 1, 852}, {"restart", 0, 1, 1}}}
	check.Equal(t, "violations", runHistory(t, h), "")
}

// TestB15_NamesThatReturnToANewStream: names return from a branch to the shared stream, which has been opened again meanwhile and lacks
// one of them. What the origin stated on the previous shared stream does not complete the set on this one.
func TestB15_NamesThatReturnToANewStream(t *testing.T) {
	h := history{variant: "Delta", traits: 1, watched: true, steps: []step{{"minutes", 0, 0, 0}, {"cut", 0, 3, 754}, {"cut", 0, 3, 41}}}
	check.Equal(t, "violations", runHistory(t, h), "")
}

// TestB15_NamesAreRestoredAsServed: a name has other content by name than in the wildcard set, since an operator has dropped
// the removals of an origin that lost it. Another relay restores the two as they were served.
func TestB15_NamesAreRestoredAsServed(t *testing.T) {
	h := history{variant: "Delta", traits: 0, watched: false, steps: []step{{"lose", 0, 0, 0}, {"cut", 0, 3, 0}, {"relay", 1, 2, 637}}}
	check.Equal(t, "violations", runHistory(t, h), "")
}

// TestB15_StreamsOfAMovedSetEnd: short streams make the relay divide the subscriptions (B.48), and the set moves back from a
// branch whose stream lives. Its server has the resource, so that the next one, which lacks it, has lacked it for no time.
func TestB15_StreamsOfAMovedSetEnd(t *testing.T) {
	for range 5 { // the order of events differs
		h := history{variant: "Delta", traits: 0, watched: true, steps: []step{{"cut", 0, 3, 254}}}
		check.Equal(t, "violations", runHistory(t, h), "")
	}
}

// A history is the input of one run of a world.
type history struct {
	variant string // Delta or SotW
	traits  int    // of the origins, see behaviour
	watched bool   // holds are checked every second, which wakes the loop; otherwise only its own timers wake it
	steps   []step
}

// behaviour returns the initial behaviour of the origins.
func (h history) behaviour() relaytest.Behaviour {
	b := relaytest.Behaviour{SotW: h.variant == "SotW", NamedOnly: func(_, name string) bool { return strings.HasPrefix(name, "xdstp:") }}
	b.IgnoreIRV, b.SilentOnMissing, b.Wrap = h.traits&1 != 0, h.traits&2 != 0, h.traits&1 != 0
	// An origin that ignores the reported versions must not keep its identifier: if it has nothing to send either, the
	// relay cannot notice that it lacks resources.
	if h.traits&4 != 0 && !b.IgnoreIRV {
		b.ControlPlane = "a"
	}
	return b
}

// A step is one event. world.step and world.fault define the events and the numbers that each uses.
type step struct {
	what          string // name of the event
	at, amount, n int    // at is the index of an address
}

// String returns the step in the form in which rapid prints a failed history.
func (s step) String() string { return fmt.Sprintf("%s(%d,%d,%d)", s.what, s.at, s.amount, s.n) }

// drawStep draws a random step. Frequent events are listed several times.
func drawStep(t *rapid.T) step {
	return step{
		what: rapid.SampledFrom([]string{
			"put", "put", "grow", "grow", "remove", "remove", "empty", "rename", "refill", "restart", "restart", "restart", "crash", "start", "flap", "cut", "lose", "load", "load all", "repeat", "reject", "reject",
			"pass", "drop", "pass dropped", "freeze", "thaw", "relay", "second", "seconds", "minute", "minutes", "hold",
		}).Draw(t, "what"),
		at:     rapid.IntRange(0, 1).Draw(t, "at"),
		amount: rapid.IntRange(0, 3).Draw(t, "amount"),
		n:      rapid.IntRange(0, 1000).Draw(t, "n"),
	}
}

// The sets that clients receive: a collection, the wildcard sets, and the resources by name.
const (
	modelGlob = "xdstp://a/envoy.config.cluster.v3.Cluster/*"
	members   = "members"
	named     = "named"
)

// errStop is the panic value with which world.Fatalf ends a run.
var errStop = errors.New("stop")

// universe contains the resources of the model: clusters reference assignments, and listeners reference routes.
var universe = func() (ids []id) {
	for i := range 24 {
		ids = append(ids, id{clusters, fmt.Sprintf("c%02d", i)})
	}
	for i := range 6 {
		ids = append(ids, id{listeners, fmt.Sprintf("l%02d", i)}, id{clusters, strings.Replace(modelGlob, "*", fmt.Sprintf("g%02d", i), 1)})
	}
	for i := range 8 {
		ids = append(ids, id{endpoints, fmt.Sprintf("e%02d", i)})
	}
	for i := range 4 {
		ids = append(ids, id{routes, fmt.Sprintf("r%02d", i)})
	}
	return ids
}()

// wanted are the names that clients subscribe to.
var wanted = map[string][]string{clusters: {"c00", "c01"}, endpoints: namesOf(endpoints), routes: namesOf(routes)}

// types are the types that a step chooses from.
var types = []string{clusters, listeners, endpoints, routes}

// reasonIf returns the reason of dropped changes if dropped is set, and otherwise none.
func reasonIf(dropped bool) reconcile.Reason {
	if dropped {
		return reconcile.Dropped
	}
	return ""
}

// operate performs the step of an operator.
func (w *world) operate(s step) {
	command := reconcile.Command{Do: reconcile.Pass, Reason: reasonIf(s.what == "pass dropped")}
	switch {
	case s.amount < 2:
		command.TypeURL = types[s.n%2]
	case s.amount == 2:
		command.Name = universe[s.n%len(universe)].name
	}
	switch ctx := w.Context(); s.what {
	case "pass", "pass dropped":
		for _, h := range w.control.Operate(ctx, command) {
			for _, name := range h.Names {
				w.passed[id{h.TypeURL, name}] = true
			}
		}
		w.markUnsettled(5 * time.Second) // until removals that waited for it are applied
	case "drop":
		w.check(true)
		command.Do = reconcile.Drop
		for _, h := range w.control.Operate(ctx, command) {
			for _, name := range h.Names {
				if len(w.holds[id{h.TypeURL, name}]) == 0 {
					w.Errorf("removal of %s was dropped although it was not pending", name)
				}
			}
		}
	case "freeze":
		if w.control.Freeze(ctx); w.frozen.IsZero() {
			w.frozen = time.Now()
		}
	case "thaw":
		w.control.Thaw(ctx)
		w.thawed = !w.frozen.IsZero()
	default:
		w.Fatalf("unknown step: %v", s)
	}
}
