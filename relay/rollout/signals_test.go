package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const listeners = "type.googleapis.com/envoy.config.listener.v3.Listener"

func canary(i int) Client {
	return Client{Node: fmt.Sprint("canary-", i), Peer: fmt.Sprint("10.0.0.", i)}
}

func other(i int) Client {
	return Client{Node: fmt.Sprint("other-", i), Peer: fmt.Sprint("10.0.1.", i), Cohort: 1}
}

// signals are those of one stage with canaries, and of so many others.
func signals(t *testing.T, refusals, canaries, others int) *Signals {
	s := NewSignals(Config{Stages: stages(t, "id=canary-* 1m"), Refusals: refusals})
	for i := range canaries {
		s.AddClient(canary(i))
	}
	for i := range others {
		s.AddClient(other(i))
	}
	return s
}

func (s *Signals) expect(t *testing.T, want string) {
	t.Helper()
	got := s.Halt(1, time.Minute)
	if want == "" && got != "" || !strings.Contains(got, want) {
		t.Errorf("halts by %q, want %q", got, want)
	}
}

func TestI14_RefusalsHalt(t *testing.T) {
	s := signals(t, 1, 3, 0)
	refuse := func(c Client) bool { return s.Refused(Refusal{Client: c, TypeURL: listeners, Words: "bad filter"}) }
	if !refuse(canary(0)) || refuse(canary(0)) {
		t.Error("a client that refuses twice does not count once")
	}
	s.expect(t, "")
	one := signals(t, 0, 1, 0)
	one.Refused(Refusal{Client: canary(0), TypeURL: listeners, Words: "bad filter"})
	one.expect(t, "1 client refused it, at most 0 may: canary-0 refused "+listeners+": bad filter")
	if !refuse(canary(1)) {
		t.Error("the second client does not count")
	}
	s.expect(t, "2 clients refused it, at most 1 may: canary-0 refused "+listeners+": bad filter")
}

func TestI14_OldRefusalsDoNotHalt(t *testing.T) {
	s := signals(t, 0, 0, 0)
	s.AddClient(canary(0), listeners)
	if s.Refused(Refusal{Client: canary(0), TypeURL: listeners}) {
		t.Error("a client counts that refused the type before the edition")
	}
	s.expect(t, "")
	if !s.Refused(Refusal{Client: canary(0), TypeURL: "another"}) {
		t.Error("its refusal of another type does not count")
	}
}

func TestI14_ForgedCanariesDoNotHalt(t *testing.T) {
	s := signals(t, 0, 2, 0)
	for what, c := range map[string]Client{
		"a Node that was not there":     {Node: "canary-9", Peer: "10.0.0.9"},
		"a canary's Node, another peer": {Node: "canary-0", Peer: "10.6.6.6"},
	} {
		if s.Refused(Refusal{Client: c, TypeURL: listeners}) {
			t.Errorf("%s counts", what)
		}
	}
	s.expect(t, "")
}

// TestI14_AForgedNodeSilencesNoCanary: not by being there first, and not by refusing first.
func TestI14_AForgedNodeSilencesNoCanary(t *testing.T) {
	s := NewSignals(Config{Stages: stages(t, "id=canary-* 1m")})
	s.AddClient(Client{Node: "canary-0", Peer: "10.6.6.6"}, listeners)
	s.AddClient(canary(0))
	if !s.Refused(Refusal{Client: canary(0), TypeURL: listeners, Words: "bad filter"}) {
		t.Error("the refusal of a canary does not count because another client had its Node")
	}
	s.expect(t, "canary-0 refused")
}

func TestI14_APeerCountsOnce(t *testing.T) {
	s := NewSignals(Config{Stages: stages(t, "id=canary-* 1m"), Refusals: 1})
	for i := range 5 {
		c := canary(i)
		c.Peer = "10.6.6.6"
		s.AddClient(c)
		s.Refused(Refusal{Client: c, TypeURL: listeners})
	}
	if n := s.Refusals(); n != 1 {
		t.Errorf("%d refusals count of one peer", n)
	}
	s.expect(t, "")
}

func TestI14_LossAmongCanariesHalts(t *testing.T) {
	for _, c := range []struct {
		canaries, others, gone, othersGone int
		halts                              bool
	}{
		{10, 10, 1, 0, false}, // one is none
		{10, 10, 2, 0, true},  // 20% of 0%
		{10, 10, 2, 1, false}, // 20% of 10%: at most 2 times and 10 points are allowed
		{10, 10, 4, 1, true},
		{10, 10, 10, 10, false}, // in all cohorts
		{4, 10, 4, 0, false},    // too few to compare
		{10, 4, 10, 0, false},
		{5, 5, 2, 0, true},
	} {
		s := signals(t, 0, c.canaries, c.others)
		for i := range c.gone {
			s.Disconnected(canary(i))
		}
		for i := range c.othersGone {
			s.Disconnected(other(i))
		}
		if got := s.Halt(1, time.Minute); (got != "") != c.halts {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestI14_ACanaryThatCrashesAgainAndAgainHalts(t *testing.T) {
	s := signals(t, 0, 1, 3)
	crash := func(c Client, times int) {
		for range times {
			s.Reconnected(c) // counts only after it left
			s.Disconnected(c)
			s.Reconnected(c)
		}
	}
	crash(canary(0), 2)
	s.expect(t, "")
	s.BeginStage()
	crash(canary(0), 3)
	s.expect(t, "canary-0 disconnected and reconnected 3 times in 1m0s")
	crash(other(1), 3)
	s.expect(t, "")
}

// TestLeftByCohort holds that a disconnected client counts once per stage, by Node and by peer, also after a reconnect.
func TestLeftByCohort(t *testing.T) {
	s := signals(t, 0, 3, 2)
	s.AddClient(Client{Node: "canary-4", Peer: canary(0).Peer})
	expect := func(when string, want ...int) {
		t.Helper()
		cohorts := make([]Cohort, 2)
		s.countDisconnected(cohorts)
		if got := []int{cohorts[0].Left, cohorts[1].Left}; !slices.Equal(got, want) {
			t.Errorf("%s: %v clients left, want %v", when, got, want)
		}
	}
	expect("at first", 0, 0)
	for _, c := range []Client{canary(0), {Node: "canary-4", Peer: canary(0).Peer}, canary(1), other(0), {Node: "unknown"}} {
		s.Disconnected(c)
	}
	s.Reconnected(canary(1))
	s.Disconnected(canary(1))
	expect("two peers of canaries and one of the rest", 2, 1)
	s.BeginStage()
	expect("in the next stage", 0, 0)
}
