package envoytest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/envoytest"
)

// enough is how long a scenario on the control plane itself waits for what go-control-plane may never do.
const enough = 5 * time.Second

// An outcome is what a run of a scenario shows. Below a relay all of it fails the test, but for what judge is not asked
// about. On the control plane itself it is only counted: the relay is measured by that.
type outcome struct {
	t      *testing.T
	direct bool // the Envoys connect to the control plane itself

	failed     int      // requests without a response of status 200
	rejected   int64    // updates that Envoys rejected
	unanswered int64    // updates that Envoys went on without
	modified   int64    // clusters and listeners that were modified, though they are the same
	missing    []string // what was awaited and did not come
}

func (o *outcome) String() string {
	return fmt.Sprintf("%d failed requests, %d rejected and %d unanswered updates, %d needless modifications, did not come: %q",
		o.failed, o.rejected, o.unanswered, o.modified, o.missing)
}

// compared runs a scenario in each variant, in parallel with other tests, below a relay and, if asked to, on the control plane itself. What the relay
// adds to the outcome must be nothing, or less.
func compared(t *testing.T, variants []variant, run func(*testing.T, variant, *outcome)) {
	t.Helper()
	t.Parallel()
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			relayed, alone := new(outcome), &outcome{direct: true}
			start := func(o *outcome) func(*testing.T) {
				return func(t *testing.T) {
					o.t = t
					run(t, v, o)
				}
			}
			if !t.Run("relay", start(relayed)) || !*direct {
				return
			}
			t.Run("direct", start(alone))
			t.Logf("\nbelow the relay:      %v\non the control plane: %v", relayed, alone)
			if err := relayed.exceeds(alone); err != nil {
				t.Error(err)
			}
		})
	}
}

// exceeds returns an error if an outcome is worse than that of the Envoys on the control plane itself.
func (o *outcome) exceeds(alone *outcome) error {
	if o.failed > alone.failed || o.rejected > alone.rejected || o.unanswered > alone.unanswered ||
		o.modified > alone.modified || len(o.missing) > len(alone.missing) {
		return fmt.Errorf("the relay adds to the outcome: %v; without it: %v", o, alone)
	}
	return nil
}

// await waits until an Envoy meets a condition.
func (o *outcome) await(e *envoytest.Envoy, what string, met func() error) {
	o.t.Helper()
	if !o.direct {
		e.Await(what, met)
	} else if e.Within(enough, met) != nil {
		o.missing = append(o.missing, what)
	}
}

// answers waits until a load has an answer of a backend that it has not counted yet.
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

// requests counts the failed requests of a load, of which the relay may have none.
func (o *outcome) requests(r envoytest.Report) {
	o.t.Helper()
	if o.failed += len(r.Failures); len(r.Failures) > 0 && !o.direct {
		o.t.Errorf("requests failed: %v", r)
	}
}

// updates counts the updates that an Envoy rejected or went on without.
func (o *outcome) updates(e *envoytest.Envoy) {
	stats := e.Stats(envoytest.Judged)
	o.rejected += stats.Sum("update_rejected")
	o.unanswered += stats.Sum("init_fetch_timeout")
}

// judge counts the failed requests of a load and the faults of its Envoy. Below a relay there may be none.
func (o *outcome) judge(e *envoytest.Envoy, r envoytest.Report) {
	o.t.Helper()
	o.requests(r)
	o.updates(e)
	if !o.direct && faults(e) > 0 {
		o.t.Errorf("Envoy %s: updates rejected or not waited for: %v", e.ID(), e.Stats(envoytest.Judged))
	}
}

// unmodified counts what Envoys took as modified since there were so many modifications. Below a relay it is none.
func (o *outcome) unmodified(before int64, envoys ...*envoytest.Envoy) {
	o.t.Helper()
	now := modified(envoys...) - before
	if o.modified += now; now != 0 && !o.direct {
		o.t.Errorf("clusters and listeners were modified %d times, though they are the same", now)
	}
}

// modified returns how often Envoys took clusters and listeners as changed.
func modified(envoys ...*envoytest.Envoy) (n int64) {
	for _, e := range envoys {
		stats := e.Stats(envoytest.Judged)
		n += stats.Sum("cluster_modified") + stats.Sum("listener_modified")
	}
	return n
}

// faults returns how many updates an Envoy rejected, or did not wait for.
func faults(e *envoytest.Envoy) int64 {
	stats := e.Stats(envoytest.Judged)
	return stats.Sum("update_rejected") + stats.Sum("init_fetch_timeout")
}

// noFault fails the test if a request failed, or if an Envoy below a relay rejected something or went on without an
// answer. It is for scenarios that have no run without the relay.
func noFault(t *testing.T, e *envoytest.Envoy, r envoytest.Report) {
	t.Helper()
	(&outcome{t: t}).judge(e, r)
}

// TestOutcome: the relay may not add anything to what the control plane itself shows.
func TestOutcome(t *testing.T) {
	for _, worse := range []outcome{{failed: 3}, {rejected: 3}, {unanswered: 3}, {modified: 3}, {missing: []string{"a", "b", "c"}}} {
		alone := &outcome{failed: 2, rejected: 2, unanswered: 2, modified: 2, missing: []string{"a", "b"}}
		if worse.exceeds(alone) == nil {
			t.Errorf("%v is no worse than %v", &worse, alone)
		}
		if err := new(outcome).exceeds(&worse); err != nil {
			t.Error(err)
		}
	}
}
