package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const listeners = "type.googleapis.com/envoy.config.listener.v3.Listener"

// canary returns a client of cohort 0.
func canary(i int) Client {
	return Client{Node: fmt.Sprint("canary-", i), Peer: fmt.Sprint("10.0.0.", i)}
}

// other returns a client of the rest.
func other(i int) Client {
	return Client{Node: fmt.Sprint("other-", i), Peer: fmt.Sprint("10.0.1.", i), Cohort: 1}
}

// newSignals returns the signals of one stage with the given numbers of clients.
func newSignals(t *testing.T, rejectionLimit, canaries, others int) *Signals {
	s := NewSignals(Config{Stages: parseStages(t, "id=canary-* 1m"), RejectionLimit: rejectionLimit})
	for i := range canaries {
		s.AddClient(canary(i))
	}
	for i := range others {
		s.AddClient(other(i))
	}
	return s
}

// expect fails unless the reason to halt contains want, or is empty if want is.
func (s *Signals) expect(t *testing.T, want string) {
	t.Helper()
	got := s.HaltReason(1, time.Minute)
	if want == "" && got != "" || !strings.Contains(got, want) {
		t.Errorf("reason to halt %q, want %q", got, want)
	}
}

func TestI14_RejectionsAboveLimitHalt(t *testing.T) {
	s := newSignals(t, 1, 3, 0)
	reject := func(c Client) bool {
		return s.AddRejection(Rejection{Client: c, TypeURL: listeners, Detail: "bad filter"})
	}
	if !reject(canary(0)) || reject(canary(0)) {
		t.Error("two NACKs of a client do not count once")
	}
	s.expect(t, "")
	one := newSignals(t, 0, 1, 0)
	one.AddRejection(Rejection{Client: canary(0), TypeURL: listeners, Detail: "bad filter"})
	one.expect(t, "1 client rejected the edition (limit 0): canary-0 rejected "+listeners+": bad filter")
	if !reject(canary(1)) {
		t.Error("the NACK of a second client does not count")
	}
	s.expect(t, "2 clients rejected the edition (limit 1): canary-0 rejected "+listeners+": bad filter")
}

func TestI14_EarlierRejectionsDoNotHalt(t *testing.T) {
	s := newSignals(t, 0, 0, 0)
	s.AddClient(canary(0), listeners)
	if s.AddRejection(Rejection{Client: canary(0), TypeURL: listeners}) {
		t.Error("a NACK of a type that the client rejected before the edition counts")
	}
	s.expect(t, "")
	if !s.AddRejection(Rejection{Client: canary(0), TypeURL: "another"}) {
		t.Error("the NACK of another type does not count")
	}
}

func TestI14_ForgedNodesDoNotHalt(t *testing.T) {
	s := newSignals(t, 0, 2, 0)
	for name, c := range map[string]Client{
		"an unknown Node":               {Node: "canary-9", Peer: "10.0.0.9"},
		"a canary's Node, another peer": {Node: "canary-0", Peer: "10.6.6.6"},
	} {
		if s.AddRejection(Rejection{Client: c, TypeURL: listeners}) {
			t.Errorf("the NACK of %s counts", name)
		}
	}
	s.expect(t, "")
}

// TestI14_ForgedNodeDoesNotMaskCanary verifies that a NACK of a canary counts if a client with a forged Node connected
// first and rejected the type before.
func TestI14_ForgedNodeDoesNotMaskCanary(t *testing.T) {
	s := NewSignals(Config{Stages: parseStages(t, "id=canary-* 1m")})
	s.AddClient(Client{Node: "canary-0", Peer: "10.6.6.6"}, listeners)
	s.AddClient(canary(0))
	if !s.AddRejection(Rejection{Client: canary(0), TypeURL: listeners, Detail: "bad filter"}) {
		t.Error("the NACK of a canary does not count")
	}
	s.expect(t, "canary-0 rejected")
}

func TestI14_PeerCountsOnce(t *testing.T) {
	s := NewSignals(Config{Stages: parseStages(t, "id=canary-* 1m"), RejectionLimit: 1})
	for i := range 5 {
		c := canary(i)
		c.Peer = "10.6.6.6"
		s.AddClient(c)
		s.AddRejection(Rejection{Client: c, TypeURL: listeners})
	}
	if n := s.Rejections(); n != 1 {
		t.Errorf("%d rejections of one peer count, want 1", n)
	}
	s.expect(t, "")
}

func TestI14_DisconnectedCanariesHalt(t *testing.T) {
	for _, c := range []struct {
		canaries, others, canariesLost, othersLost int
		halts                                      bool
	}{
		{10, 10, 1, 0, false}, // fewer than minDisconnected
		{10, 10, 2, 0, true},  // 20% and 0%
		{10, 10, 2, 1, false}, // 20% and 10%: up to twice the share plus 10 points is allowed
		{10, 10, 4, 1, true},
		{10, 10, 10, 10, false}, // in all cohorts
		{4, 10, 4, 0, false},    // too few to compare
		{10, 4, 10, 0, false},
		{5, 5, 2, 0, true},
	} {
		s := newSignals(t, 0, c.canaries, c.others)
		for i := range c.canariesLost {
			s.RecordDisconnect(canary(i))
		}
		for i := range c.othersLost {
			s.RecordDisconnect(other(i))
		}
		if got := s.HaltReason(1, time.Minute); (got != "") != c.halts {
			t.Errorf("%+v: reason to halt %q", c, got)
		}
	}
}

func TestI14_CrashLoopOfCanaryHalts(t *testing.T) {
	s := newSignals(t, 0, 1, 3)
	crash := func(c Client, times int) {
		for range times {
			s.RecordReconnect(c) // does not count, because the client is connected
			s.RecordDisconnect(c)
			s.RecordReconnect(c)
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

// TestDisconnectedByCohort verifies that a disconnected client counts once per stage, by Node and by peer, also after a
// reconnect.
func TestDisconnectedByCohort(t *testing.T) {
	s := newSignals(t, 0, 3, 2)
	s.AddClient(Client{Node: "canary-4", Peer: canary(0).Peer})
	expect := func(when string, want ...int) {
		t.Helper()
		cohorts := make([]Cohort, 2)
		s.countDisconnected(cohorts)
		if got := []int{cohorts[0].Disconnected, cohorts[1].Disconnected}; !slices.Equal(got, want) {
			t.Errorf("%s: %v disconnected clients, want %v", when, got, want)
		}
	}
	expect("at first", 0, 0)
	for _, c := range []Client{
		canary(0), {Node: "canary-4", Peer: canary(0).Peer}, canary(1), other(0), {Node: "unknown"},
	} {
		s.RecordDisconnect(c)
	}
	s.RecordReconnect(canary(1))
	s.RecordDisconnect(canary(1))
	expect("two peers of canaries and one of the rest", 2, 1)
	s.BeginStage()
	expect("in the next stage", 0, 0)
}
