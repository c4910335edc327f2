package rollout

import (
	"slices"
	"testing"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestStatusHasAwaitedCondition verifies that a status has the condition that the next step waits for, as text and as a
// code.
func TestStatusHasAwaitedCondition(t *testing.T) {
	cfg := Config{Stages: Stages{{Duration: time.Minute}, {Approve: true}}}
	at := time.Unix(1e9, 0)
	for _, tt := range []struct {
		name    string
		machine Machine
		facts   Facts
		want    Await
	}{
		{"current", Machine{}, Facts{}, ""},
		{"gathering", Machine{phase: Gathering}, Facts{Complete: true}, ""},
		{"gathering without a connection", Machine{phase: Gathering}, Facts{}, AwaitOrigin},
		{"hold", Machine{phase: Held, holdSince: at}, Facts{}, AwaitHold},
		{"check before the first stage", Machine{phase: Held, checkSince: at}, Facts{}, AwaitCheck},
		{"stage", Machine{phase: Rolling}, Facts{}, ""},
		{"answers", Machine{phase: Rolling, overdue: true}, Facts{}, AwaitAnswers},
		{"check after a stage", Machine{phase: Rolling, checkSince: at}, Facts{}, AwaitCheck},
		{"approval", Machine{phase: Rolling, cohort: 1}, Facts{}, AwaitApproval},
		{"frozen", Machine{phase: Rolling, cohort: 1}, Facts{Frozen: true}, ""},
	} {
		c := NewController(ControllerConfig{Config: cfg}, nil)
		tt.machine.cfg = cfg
		p := c.newPart()
		p.machine, p.facts = &tt.machine, tt.facts
		c.addPart(p)
		s := c.newStatus()
		if s.Await != tt.want || (s.WaitsFor == "") != (tt.want == "" && !tt.facts.Frozen) {
			t.Errorf("%s: condition %q, text %q; want %q", tt.name, s.Await, s.WaitsFor, tt.want)
		}
	}
}

// TestStatusCountsConnectedClients verifies that a status has the current number of clients, also without a rollout. A
// client with several streams counts once.
func TestStatusCountsConnectedClients(t *testing.T) {
	c := NewController(ControllerConfig{Config: Config{Stages: Stages{{Duration: time.Minute}}}}, nil)
	expect := func(when string, want ...int) {
		t.Helper()
		cohorts := c.Status().Cohorts
		if got := []int{cohorts[0].Clients, cohorts[1].Clients}; !slices.Equal(got, want) {
			t.Errorf("%s: %v clients, want %v", when, got, want)
		}
	}
	before := c.Status()
	var streams []*Observer
	for _, client := range []Client{canary(1), other(1), other(1), other(2)} {
		streams = append(streams, Observe(client, "group", []*Controller{c}))
	}
	expect("a canary and two others", 1, 2)
	streams[0].Ended()
	streams[1].Ended()
	expect("after the stream of the canary and one of two streams of another client ended", 0, 2)
	streams[2].Ended()
	expect("after the second stream ended", 0, 1)
	if before.Cohorts[0].Clients != 0 || before.Cohorts[1].Clients != 0 {
		t.Errorf("an earlier status has changed: %+v", before.Cohorts)
	}
}

// TestB36_APartIsNamedAfterASecretLast: the name of a part, which relays below are told, is that of a Secret only if the part has
// nothing else.
func TestB36_APartIsNamedAfterASecretLast(t *testing.T) {
	of := func(types ...string) string {
		changes := Changes{{}: {}}
		for _, typ := range types {
			changes[SectionKey{}][typ] = map[string]wire.Digest{"x": {1}}
		}
		return changes.Name()
	}
	for _, typ := range schema.ResourceTypes {
		if got := of(wire.SecretType, typ.URL); typ.URL != wire.SecretType && got != of(typ.URL) {
			t.Errorf("a Secret and a %s: %s, want %s", typ.Noun, got, of(typ.URL))
		}
	}
	check.Equal(t, "only a Secret", of(wire.SecretType), "sds/x")
}
