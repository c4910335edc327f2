package rollout

import (
	"slices"
	"testing"
	"time"
)

// TestStatusNamesAwaitedCondition holds that a status has the condition that the next step waits for, as text and as a
// code.
func TestStatusNamesAwaitedCondition(t *testing.T) {
	cfg := Config{Stages: Stages{{Lasts: time.Minute}, {Approve: true}}}
	at := time.Unix(1e9, 0)
	for _, tt := range []struct {
		name    string
		machine Machine
		facts   Facts
		want    Await
	}{
		{"nothing is on its way", Machine{}, Facts{}, ""},
		{"changes are gathered", Machine{phase: Gathering}, Facts{Complete: true}, ""},
		{"the origin is not connected", Machine{phase: Gathering}, Facts{}, AwaitOrigin},
		{"much is removed", Machine{phase: Held, holdSince: at}, Facts{}, AwaitHold},
		{"the check before the first stage", Machine{phase: Held, checkSince: at}, Facts{}, AwaitCheck},
		{"a stage", Machine{phase: Rolling}, Facts{}, ""},
		{"answers", Machine{phase: Rolling, overdue: true}, Facts{}, AwaitAnswers},
		{"the check after a stage", Machine{phase: Rolling, checkSince: at}, Facts{}, AwaitCheck},
		{"approval", Machine{phase: Rolling, cohort: 1}, Facts{}, AwaitApproval},
		{"frozen", Machine{phase: Rolling, cohort: 1}, Facts{Frozen: true}, ""},
	} {
		c := NewController(ControllerConfig{Config: cfg}, nil)
		tt.machine.cfg = cfg
		c.machine = &tt.machine
		is := c.newStatus(time.Time{}, tt.facts)
		if is.Await != tt.want || (is.For == "") != (tt.want == "" && !tt.facts.Frozen) {
			t.Errorf("%s: it waits for %q, in words %q; want %q", tt.name, is.Await, is.For, tt.want)
		}
	}
}

// TestStatusCountsConnectedClients holds that a status has the current number of clients, also without a rollout. A
// client with several streams counts once.
func TestStatusCountsConnectedClients(t *testing.T) {
	c := NewController(ControllerConfig{Config: Config{Stages: Stages{{Lasts: time.Minute}}}}, nil)
	expect := func(when string, want ...int) {
		t.Helper()
		is := c.Status().Cohorts
		if got := []int{is[0].Clients, is[1].Clients}; !slices.Equal(got, want) {
			t.Errorf("%s: %v clients, want %v", when, got, want)
		}
	}
	before := c.Status()
	var streams []*Observer
	for _, of := range []Client{canary(1), other(1), other(1), other(2)} {
		streams = append(streams, Observe(of, "group", []*Controller{c}))
	}
	expect("a canary and two others", 1, 2)
	streams[0].Ended()
	streams[1].Ended()
	expect("the canary has left, and one of two streams of another", 0, 2)
	streams[2].Ended()
	expect("so has the other", 0, 1)
	if before.Cohorts[0].Clients != 0 || before.Cohorts[1].Clients != 0 {
		t.Errorf("a status that was returned before has changed: %+v", before.Cohorts)
	}
}
