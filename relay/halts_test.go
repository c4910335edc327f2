package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream"
)

// A namesGrant permits clusters with a prefix.
type namesGrant string

var _ downstream.Grant = namesGrant("")

func (g namesGrant) Identity() string { return string(g) }

func (g namesGrant) Type(typeURL string) error {
	if typeURL != wire.ClusterType {
		return errors.New("denied")
	}
	return nil
}

func (g namesGrant) RestrictsNames(string) bool { return true }

func (g namesGrant) Name(_, name string) error {
	if !strings.HasPrefix(name, string(g)) {
		return errors.New("denied")
	}
	return nil
}

// toldBelow returns a tierHalts with a view of a node group that has heard of one halt.
func toldBelow(changes rollout.Changes) *tierHalts {
	h := &tierHalts{
		origins: []string{"default"}, instance: "own", log: slog.New(slog.DiscardHandler), tell: func() {},
		views: make(map[heardKey]*heardView),
	}
	v := h.hearOn(upstream.NewControl(false, nil), heardKey{name: "group"}, "")
	v.byTarget["above"] = &heardHalts{instance: "1", halted: []rollout.Decision{
		{Part: "cds/a", At: time.Unix(1, 0), Reason: "hunter2", Stage: 1, Changes: changes},
	}}
	return h
}

// TestB36_ARelayIsToldOfWhatItMayRequest: a relay below is told of no resource that it may not request, of no Secret, and of no
// reason that may be about one.
func TestB36_ARelayIsToldOfWhatItMayRequest(t *testing.T) {
	changes := rollout.Changes{{}: {wire.ClusterType: {"a": {1}, "b": {2}}, wire.ListenerType: {"b-listener": {3}}}}
	for _, tt := range []struct {
		grant downstream.Grant
		want  string
	}{
		{nil, "cds/a 1: halted at above: hunter2 cds=2 lds=1"},
		{namesGrant("b"), "cds/b 1:  cds=1 lds=0"},
		{namesGrant("c"), ""},
	} {
		check.Equal(t, fmt.Sprint(tt.grant), describeTold(t, toldBelow(changes).told("group", tt.grant)), tt.want)
	}
	check.Equal(t, "another node group", describeTold(t, toldBelow(changes).told("other", nil)), "")
	changes[rollout.SectionKey{}][wire.SecretType] = map[string]wire.Digest{"secret": {4}}
	told := toldBelow(changes).told("group", nil)
	check.Equal(t, "with a Secret", describeTold(t, told), "lds/b-listener 1:  cds=2 lds=1")
	if strings.Contains(string(told), "secret") || strings.Contains(string(told), "hunter2") {
		t.Errorf("told of a Secret: %s", told)
	}
}

// describeTold returns a message about one halt, or none, as text.
func describeTold(t *testing.T, told []byte) string {
	t.Helper()
	heard, err := decodeHalts(told)
	check.OK(t, err)
	if len(heard.halted) == 0 {
		return ""
	}
	d := heard.halted[0]
	types := d.Changes[rollout.SectionKey{}]
	if types[wire.SecretType] != nil {
		t.Errorf("told of Secrets: %s", told)
	}
	return fmt.Sprintf("%s %d: %s cds=%d lds=%d", d.Part, d.Stage, d.Reason, len(types[wire.ClusterType]), len(types[wire.ListenerType]))
}

// TestB55_MessagesAreBounded: what a relay below is told fits into a message that it accepts, whatever is halted: the newest
// halts, and some resources of each.
func TestB55_MessagesAreBounded(t *testing.T) {
	long := strings.Repeat("<", maxHaltPart-100)
	h := toldBelow(nil)
	v := h.views[heardKey{name: "group"}]
	var all []rollout.Decision
	for i := range 2 * maxHalts {
		names := make(map[string]wire.Digest)
		for j := range 100 {
			names[fmt.Sprint(long, j)] = wire.Digest{1}
		}
		all = append(all, rollout.Decision{
			Part: fmt.Sprint("cds/", i), At: time.Unix(int64(i+1), 0), Reason: long, Changes: rollout.Changes{{}: {wire.ClusterType: names}},
		})
	}
	v.byTarget["above"] = &heardHalts{instance: "1", halted: all}
	heard, err := decodeHalts(h.told("group", nil))
	check.OK(t, err)
	check.Equal(t, "first halt", heard.halted[0].Part, fmt.Sprint("cds/", len(all)-1))
	if n := len(heard.halted); n < 2 || n > maxHalts {
		t.Errorf("%d halts, want some, and at most %d", n, maxHalts)
	}
}

// TestB55_AHaltEndsWithTheProcessesThatToldIt: the instance changes with each process on the way, and with each view.
func TestB55_AHaltEndsWithTheProcessesThatToldIt(t *testing.T) {
	h := toldBelow(rollout.Changes{{}: {wire.ClusterType: {"a": {1}}}})
	v := h.views[heardKey{name: "group"}]
	seen := make(map[string]string)
	look := func(when string) {
		t.Helper()
		heard, err := decodeHalts(h.told("group", namesGrant("")))
		check.OK(t, err)
		if other, ok := seen[heard.instance]; ok {
			t.Errorf("%s: the same instance as %s", when, other)
		}
		seen[heard.instance] = when
	}
	look("at first")
	h.hear(v, "above", []byte(`{"instance": "2"}`))
	look("with another process above")
	h.hear(v, "beside", []byte(`{"instance": "3"}`))
	look("with a further target")
	h.hear(v, "beside", nil)
	h.leave(v)
	h.hear(v, "above", []byte(`{"instance": "4"}`)) // too late
	look("without a view")
	v = h.hearOn(upstream.NewControl(false, nil), heardKey{name: "group"}, "")
	h.hear(v, "above", []byte(`{"instance": "2"}`))
	look("with another view")
	h.instance = "another"
	look("in another process")
}
