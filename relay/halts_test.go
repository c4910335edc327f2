package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
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
		origins: []string{"default"}, instance: "own", log: slog.New(slog.DiscardHandler),
		below: haltsBelow{tell: func() {}, encoded: make(map[string][]byte)},
		views: make(map[heardKey]*heardView), listed: make(map[listedHalt]int),
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

// TestB36_OtherNodeGroupsAreNotNamed: a relay below with rules is told neither the reason nor the name of a part that has resources
// which it may not request, also if they are those of another node group, or had no room in the message of a relay above, or if
// only that relay has them. No relay is told of a Secret of another node group.
func TestB36_OtherNodeGroupsAreNotNamed(t *testing.T) {
	clusters := func(names ...string) map[string]map[string]wire.Digest {
		all := make(map[string]wire.Digest)
		for _, name := range names {
			all[name] = wire.Digest{1}
		}
		return map[string]map[string]wire.Digest{wire.ClusterType: all}
	}
	secret := map[string]map[string]wire.Digest{wire.SecretType: {"key": {}}}
	mine, other, shared := rollout.SectionKey{Group: "group"}, rollout.SectionKey{Group: "other"}, rollout.SectionKey{Group: "other", Shared: true}
	for _, tt := range []struct {
		changes rollout.Changes
		grant   downstream.Grant
		want    string
	}{
		{rollout.Changes{mine: clusters("b")}, namesGrant("b"), "cds/b 1: hunter2 cds=1 lds=0"},
		{rollout.Changes{mine: clusters("b"), other: clusters("a")}, nil, "cds/a 1: hunter2 cds=1 lds=0"},
		{rollout.Changes{mine: clusters("b"), other: clusters("a")}, namesGrant("b"), "cds/b 1:  cds=1 lds=0"},
		{rollout.Changes{mine: clusters("b"), shared: clusters("a")}, namesGrant("b"), "cds/b 1:  cds=1 lds=0"},
		{rollout.Changes{mine: clusters("b2"), other: clusters("b1")}, namesGrant("b"), "cds/b2 1: hunter2 cds=1 lds=0"},
		{rollout.Changes{other: clusters("b")}, namesGrant("b"), ""},
		{rollout.Changes{mine: clusters("b"), other: secret}, nil, "cds/b 1:  cds=1 lds=0"},
		{rollout.Changes{mine: clusters("b"), other: secret}, namesGrant("b"), "cds/b 1:  cds=1 lds=0"},
		{rollout.Changes{mine: {wire.SecretType: secret[wire.SecretType], wire.ClusterType: {"z": {1}}}}, nil, "cds/z 1:  cds=1 lds=0"},
		{rollout.Changes{mine: secret}, nil, ""},
	} {
		check.Equal(t, fmt.Sprint(tt.grant, tt.changes), describeTold(t, haltedHere(t, tt.changes).told("group", tt.grant)), tt.want)
	}

	changes := rollout.Changes{{}: clusters("b")}
	h := toldBelow(changes)
	d := &h.views[heardKey{name: "group"}].byTarget["above"].halted[0]
	d.Partial = true
	check.Equal(t, "partial", describeTold(t, h.told("group", namesGrant("b"))), "cds/b 1:  cds=1 lds=0")
	told := h.told("group", nil)
	check.Equal(t, "partial, without rules", describeTold(t, told), "cds/a 1: halted at above: hunter2 cds=1 lds=0")
	check.Equal(t, "further below", decodeTold(t, told).halted[0].Partial, true)

	large := clusters()
	for i := range maxHaltNames + 1 {
		large[wire.ClusterType][fmt.Sprint("b", i)] = wire.Digest{1}
	}
	large[wire.ClusterType]["c"] = wire.Digest{1}
	is := decodeTold(t, haltedHere(t, rollout.Changes{mine: large}).told("group", nil)).halted[0]
	check.Equal(t, "large: partial", is.Partial, true)
	h.views[heardKey{name: "group"}].byTarget["above"].halted[0] = is
	check.Equal(t, "large", describeTold(t, h.told("group", namesGrant("b"))), "cds/b0 1:  cds=2000 lds=0")
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

// decodeTold returns what a relay below reads of a message.
func decodeTold(t *testing.T, told []byte) *heardHalts {
	t.Helper()
	heard, err := decodeHalts(told)
	check.OK(t, err)
	return heard
}

// haltsOf returns halts of the clusters in some range of numbers, the later halted the earlier.
func haltsOf(from, to int) (all []rollout.Decision) {
	for i := from; i < to; i++ {
		all = append(all, rollout.Decision{
			Part: fmt.Sprint("cds/", i), At: time.Unix(int64(1000-i), 0),
			Changes: rollout.Changes{{}: {wire.ClusterType: {fmt.Sprint(i): {1}}}},
		})
	}
	return all
}

// TestB55_HaltsThatDoNotFitHaveNotEnded: a message that has not all halts says so, and so do all further below. It has those of
// the relay first, then those of each target in the order of its message, whatever their times.
func TestB55_HaltsThatDoNotFitHaveNotEnded(t *testing.T) {
	h := toldBelow(nil)
	v := h.views[heardKey{name: "group"}]
	v.byTarget["above"] = &heardHalts{instance: "1", halted: haltsOf(0, maxHalts)}
	heard := decodeTold(t, h.told("group", nil))
	check.Equal(t, "all fit: incomplete", heard.incomplete, false)
	check.Equal(t, "all fit: halts", len(heard.halted), maxHalts)

	invented := haltsOf(1000, 1000+maxHalts)
	for i := range invented {
		invented[i].At = time.Now().Add(time.Hour)
	}
	v.byTarget["beside"] = &heardHalts{instance: "2", halted: invented}
	heard = decodeTold(t, h.told("group", namesGrant("")))
	check.Equal(t, "two targets: incomplete", heard.incomplete, true)
	check.Equal(t, "two targets: halts", len(heard.halted), maxHalts)
	for i, want := range []string{"cds/0", "cds/1000", "cds/1", "cds/1001"} {
		check.Equal(t, fmt.Sprint("part of halt ", i), heard.halted[i].Part, want)
	}

	lower := toldBelow(nil)
	lower.views[heardKey{name: "group"}].byTarget["above"] = &heardHalts{instance: "1", incomplete: true}
	check.Equal(t, "heard of some: incomplete", decodeTold(t, lower.told("group", nil)).incomplete, true)
}

// TestB55_SeveralPartsFollowOneHalt: a relay below is told of the resources of all of them.
func TestB55_SeveralPartsFollowOneHalt(t *testing.T) {
	at := time.Now()
	of := func(name string) rollout.Decision {
		return rollout.Decision{Part: "lds/" + name, At: at, Changes: rollout.Changes{
			{Group: "group"}: {wire.ListenerType: {name: wire.Digest{1}}},
		}}
	}
	all := appendPermitted(appendPermitted(nil, of("a"), "group", nil), of("b"), "group", nil)
	if len(all) != 1 || len(all[0].Changes[rollout.SectionKey{}][wire.ListenerType]) != 2 {
		t.Errorf("halts %+v, want one with both listeners", all)
	}
}

// TestB55_WhatIsNotListedRemains: a message with less than all halts adds to what the same processes have told, within bounds. So
// does one with an invalid halt.
func TestB55_WhatIsNotListedRemains(t *testing.T) {
	h := toldBelow(nil)
	v := h.views[heardKey{name: "group"}]
	hear := func(incomplete bool, instance string, halted []rollout.Decision) int {
		h.hear(v, "above", encodeHalts(admin.PeerRollouts{
			Instance: instance, Incomplete: incomplete, Halted: encodeDecisions("default", halted),
		}))
		return len(v.byTarget["above"].halted)
	}
	check.Equal(t, "all", hear(false, "one", haltsOf(0, 10)), 10)
	check.Equal(t, "some", hear(true, "one", haltsOf(5, 15)), 15)
	check.Equal(t, "many", hear(true, "one", haltsOf(20, 20+maxHalts)), maxHalts)
	check.Equal(t, "some of another process", hear(true, "two", haltsOf(0, 2)), 2)
	h.hear(v, "above", []byte(`{"instance": "two", "halted": [7]}`))
	check.Equal(t, "an invalid one", len(v.byTarget["above"].halted), 2)
	check.Equal(t, "an invalid one: incomplete", v.byTarget["above"].incomplete, true)
	check.Equal(t, "all again", hear(false, "two", haltsOf(0, 1)), 1)
}

// TestB55_OwnHaltsComeFirst: of halts that rollouts have decided here, the newest come first. Clocks of others do not matter.
func TestB55_OwnHaltsComeFirst(t *testing.T) {
	now := time.Unix(1000, 0)
	all := []admin.DecidedChanges{{Part: "old", At: time.Unix(1, 0)}, {Part: "new", At: now}, {Part: "future", At: now.Add(time.Hour)}}
	sortNewest(all, now)
	check.Equal(t, "halts", fmt.Sprint(all[0].Part, " ", all[1].Part, " ", all[2].Part), "new future old")
	h := haltedHere(t, rollout.Changes{{Group: "group"}: {wire.ClusterType: {"own": {1}}}})
	h.views[heardKey{name: "group"}].byTarget["above"] = &heardHalts{instance: "1", halted: haltsOf(0, maxHalts)}
	heard := decodeTold(t, h.told("group", nil))
	check.Equal(t, "first halt", heard.halted[0].Part, "cds/own")
	check.Equal(t, "incomplete", heard.incomplete, true)
}

// haltedHere returns a tierHalts with a rollout of its own that has halted some changes, and a view of a node group.
func haltedHere(t *testing.T, changes rollout.Changes) *tierHalts {
	t.Helper()
	told := make(chan struct{}, 1)
	c := rollout.NewController(rollout.ControllerConfig{
		Config: rollout.Config{Stages: []rollout.Stage{{}}}, Origin: "default", Told: func() { told <- struct{}{} }, Logger: slog.New(slog.DiscardHandler),
		Observed: func() iter.Seq[downstream.Observed] { return func(func(downstream.Observed) bool) {} },
		Frozen:   func() bool { return false }, Decided: func(context.Context) {}, Changed: func(int, *rollout.Status, *rollout.Status) {},
	}, []*rollout.Withdrawn{{Reason: "hunter2", At: time.Unix(1, 0), Cohorts: 1, Changes: changes, Sum: wire.Digest{1}}})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx, false) })
	t.Cleanup(func() { cancel(); running.Wait() })
	<-told
	h := toldBelow(nil)
	h.rollouts = &rollouts{controllers: []*rollout.Controller{c}}
	clear(h.views[heardKey{name: "group"}].byTarget)
	return h
}

// TestB55_MessagesAreBounded: what a relay below is told fits into a message that it accepts, whatever is halted: the first
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
	check.Equal(t, "first halt", heard.halted[0].Part, "cds/0")
	if n := len(heard.halted); n < 2 || n > maxHalts {
		t.Errorf("%d halts, want some, and at most %d", n, maxHalts)
	}
}

// TestB55_ALongNameHidesNoHalt: halts of parts with the longest names that resources have are told, beside others, and remain
// different ones.
func TestB55_ALongNameHidesNoHalt(t *testing.T) {
	h := toldBelow(nil)
	halts := haltsOf(0, 3)
	for i := range 2 {
		halts[i].Part = "cds/" + strings.Repeat("x", maxHaltPart-1) + fmt.Sprint(i)
	}
	h.views[heardKey{name: "group"}].byTarget["above"] = &heardHalts{instance: "1", halted: halts}
	heard := decodeTold(t, h.told("group", nil))
	check.Equal(t, "halts", len(heard.halted), 3)
	check.Equal(t, "incomplete", heard.incomplete, false)
	check.Equal(t, "told again", string(h.told("group", namesGrant(""))), string(h.told("group", nil)))
}

// TestB55_ARemovedNodeGroupIsForgotten: nothing is kept of what a node group was told after its last view, and a group made again
// is told as another one.
func TestB55_ARemovedNodeGroupIsForgotten(t *testing.T) {
	h := toldBelow(nil)
	v := h.views[heardKey{name: "group"}]
	clear(v.byTarget)
	first := h.told("group", nil)
	check.Equal(t, "kept", len(h.below.encoded), 1)
	h.leave(v)
	h.told("group", nil) // to a stream that ends with the group
	check.Equal(t, "kept of a removed group", len(h.below.encoded), 0)
	h.hearOn(upstream.NewControl(false, nil), heardKey{name: "group"}, "")
	if again := h.told("group", nil); bytes.Equal(first, again) {
		t.Errorf("a group made again is told %s, as the one before", again)
	}
}

// TestB55_AHaltIsLoggedOnce: the log has each halt of a target once, however many node groups have its content, and its end once.
func TestB55_AHaltIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	h := toldBelow(nil)
	clear(h.views[heardKey{name: "group"}].byTarget) // which it has not heard
	h.log = slog.New(slog.NewTextHandler(&log, nil))
	var views []*heardView
	for i := range 3 {
		views = append(views, h.hearOn(upstream.NewControl(false, nil), heardKey{name: fmt.Sprint("group", i)}, ""))
	}
	tell := func(want string, halts []rollout.Decision) {
		t.Helper()
		log.Reset()
		for _, v := range views {
			h.hear(v, "above", encodeHalts(admin.PeerRollouts{Instance: "one", Halted: encodeDecisions("default", halts)}))
		}
		check.Equal(t, want, strings.Count(log.String(), want), 1)
		check.Equal(t, "lines", strings.Count(log.String(), "\n"), 1)
	}
	tell("a relay above has halted changes", haltsOf(0, 1))
	tell("a relay above has ended a halt", nil)
	tell("a relay above has halted changes", haltsOf(0, 1))
	renamed := haltsOf(0, 1) // after other rules (B.57)
	renamed[0].Part = "cds/other"
	log.Reset()
	for _, v := range views {
		h.hear(v, "above", encodeHalts(admin.PeerRollouts{Instance: "one", Halted: encodeDecisions("default", renamed)}))
	}
	check.Equal(t, "log after another name", log.String(), "")
	for _, v := range views {
		h.leave(v)
	}
	check.Equal(t, "halts listed without views", len(h.listed), 0)
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
