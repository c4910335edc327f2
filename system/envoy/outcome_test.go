package envoy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/envoytest"
)

// enough is the timeout of waits in direct runs, where go-control-plane may never meet the condition.
const enough = 5 * time.Second

// An outcome counts the faults of a run of a scenario. In a run with a relay, each counted fault fails the test. In a
// direct run, faults are only counted, for the comparison with the run with a relay.
type outcome struct {
	t      *testing.T
	direct bool // the Envoys connect to the control plane itself

	failed     int      // requests without a response of status 200
	rejected   int64    // updates that Envoys rejected
	unanswered int64    // initial fetches that timed out
	modified   int64    // modifications of clusters and listeners by unchanged resources
	missing    []string // conditions that were not met in time
}

func (o *outcome) String() string {
	return fmt.Sprintf("%d failed requests, %d rejected and %d unanswered updates, %d needless modifications, conditions not met: %q",
		o.failed, o.rejected, o.unanswered, o.modified, o.missing)
}

// compared runs a scenario with each client of the matrix, with a relay and, with -direct, also without one. The
// outcome with the relay must not be worse.
func compared(t *testing.T, variants []variant, run func(*testing.T, client, *outcome)) {
	t.Helper()
	matrix(t, variants, func(t *testing.T, c client) {
		relayed, alone := new(outcome), &outcome{direct: true}
		start := func(o *outcome) func(*testing.T) {
			return func(t *testing.T) {
				o.t = t
				run(t, c, o)
			}
		}
		if !t.Run("relay", start(relayed)) || !*direct {
			return
		}
		t.Run("direct", start(alone))
		t.Logf("\nwith a relay: %v\nwithout:      %v", relayed, alone)
		if err := relayed.exceeds(alone); err != nil {
			t.Error(err)
		}
	})
}

// exceeds returns an error if any count of an outcome is larger than that of the direct run.
func (o *outcome) exceeds(alone *outcome) error {
	if o.failed > alone.failed || o.rejected > alone.rejected || o.unanswered > alone.unanswered ||
		o.modified > alone.modified || len(o.missing) > len(alone.missing) {
		return fmt.Errorf("outcome with the relay: %v; it is worse than without: %v", o, alone)
	}
	return nil
}

// await waits until met returns nil. In a direct run it gives up after enough and counts the condition as missing.
func (o *outcome) await(e *envoytest.Envoy, what string, met func() error) {
	o.t.Helper()
	if !o.direct {
		e.Await(what, met)
	} else if e.Within(enough, met) != nil {
		o.missing = append(o.missing, what)
	}
}

// answers waits until a load has received one more response of a backend. It treats direct runs as await does.
func (o *outcome) answers(l *envoytest.Load, of *envoytest.Backend) {
	o.t.Helper()
	before := l.Report().Answers[of.Name]
	met := func(r envoytest.Report) bool { return r.Answers[of.Name] > before }
	if what := "answers of " + of.Name; !o.direct {
		l.Await(what, met)
	} else if !l.Within(enough, met) {
		o.missing = append(o.missing, what)
	}
}

// requests counts the failed requests of a load. With a relay, any failure fails the test.
func (o *outcome) requests(r envoytest.Report) {
	o.t.Helper()
	if o.failed += len(r.Failures); len(r.Failures) > 0 && !o.direct {
		o.t.Errorf("requests failed: %v", r)
	}
}

// updates counts the rejected updates and the timed-out initial fetches of an Envoy. It never fails the test.
func (o *outcome) updates(e *envoytest.Envoy) {
	stats := e.Stats(envoytest.Judged)
	o.rejected += stats.Sum("update_rejected")
	o.unanswered += stats.Sum("init_fetch_timeout")
}

// judge counts the failed requests of a load and the faults of its Envoy. With a relay, any of them fails the test.
func (o *outcome) judge(e *envoytest.Envoy, r envoytest.Report) {
	o.t.Helper()
	o.requests(r)
	o.updates(e)
	if !o.direct && faults(e) > 0 {
		o.t.Errorf("Envoy %s: updates were rejected or timed out: %v", e.ID(), e.Stats(envoytest.Judged))
	}
}

// unmodified counts the modifications of Envoys beyond the number before. With a relay, any of them fails the test.
func (o *outcome) unmodified(before int64, envoys ...*envoytest.Envoy) {
	o.t.Helper()
	now := modified(envoys...) - before
	if o.modified += now; now != 0 && !o.direct {
		o.t.Errorf("clusters and listeners were modified %d times by unchanged resources, want 0", now)
	}
}

// modified returns the number of modifications of clusters and listeners that Envoys counted.
func modified(envoys ...*envoytest.Envoy) (n int64) {
	for _, e := range envoys {
		stats := e.Stats(envoytest.Judged)
		n += stats.Sum("cluster_modified") + stats.Sum("listener_modified")
	}
	return n
}

// faults returns the number of rejected updates and timed-out initial fetches of an Envoy.
func faults(e *envoytest.Envoy) int64 {
	stats := e.Stats(envoytest.Judged)
	return stats.Sum("update_rejected") + stats.Sum("init_fetch_timeout")
}

// noFault fails the test if a request failed, an Envoy rejected an update, or an initial fetch timed out. It is for
// scenarios without a direct run.
func noFault(t *testing.T, e *envoytest.Envoy, r envoytest.Report) {
	t.Helper()
	(&outcome{t: t}).judge(e, r)
}

// TestOutcome: exceeds returns an error if any count is larger than in the direct run, and none if all are smaller.
func TestOutcome(t *testing.T) {
	for _, worse := range []outcome{{failed: 3}, {rejected: 3}, {unanswered: 3}, {modified: 3}, {missing: []string{"a", "b", "c"}}} {
		alone := &outcome{failed: 2, rejected: 2, unanswered: 2, modified: 2, missing: []string{"a", "b"}}
		if worse.exceeds(alone) == nil {
			t.Errorf("exceeds: nil for %v compared with %v, want an error", &worse, alone)
		}
		if err := new(outcome).exceeds(&worse); err != nil {
			t.Error(err)
		}
	}
}
