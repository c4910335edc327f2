package rollout

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// teams returns listeners such as "t0@1" of n teams in a version.
func teams(n int, version string) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("t%d@%s", i, version))
	}
	slices.Sort(all)
	return all
}

// changeAll changes listeners such as "t0@1" in all groups.
func (r *testRelay) changeAll(all ...string) {
	for _, text := range all {
		name, version, _ := strings.Cut(text, "@")
		r.change(name, version)
	}
}

// changeCluster changes a cluster in all groups. Without a version, it is removed.
func (r *testRelay) changeCluster(name, version string) {
	for _, g := range r.groups {
		g.control.Edit(r.t.Context(), func(l *pending.List) {
			u := wire.Update{TypeURL: wire.ClusterType, Removed: []string{name}}
			if version != "" {
				content := check.Must(proto.Marshal(&clusterpb.Cluster{Name: name, AltStatName: version}))
				resource := check.Must(wire.NewResource(wire.ClusterType, name, version, content))
				u = wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{resource}}
			}
			l.Apply(cache.Wildcard, u)
		})
	}
}

// expectParts fails the test unless the parts that are open have these names and phases, such as "lds/a halted".
func (r *testRelay) expectParts(want ...string) {
	r.t.Helper()
	synctest.Wait()
	var got []string
	for _, p := range r.Status().Parts {
		if p.Phase != Current {
			got = append(got, fmt.Sprint(p.Part, " ", p.Phase))
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.t.Errorf("the open parts are %q, want %q", got, want)
	}
}

// served returns what a cohort of the first group is served: listeners and clusters.
func (r *testRelay) served(cohort int) []string {
	got := []string{}
	for _, typeURL := range []string{listeners, wire.ClusterType} {
		for e := range r.views["group"].Cohort(r.cfg.ViewOf(cohort)).Generation().Type(typeURL).Wildcard.Since(0) {
			if e.Present() {
				got = append(got, e.Name.String()+"@"+e.Resource.Version)
			}
		}
	}
	slices.Sort(got)
	return got
}

// serves fails the test unless a cohort of the first group is served these listeners; clusters count, too.
func (r *testRelay) serves(cohort int, want ...string) {
	r.t.Helper()
	synctest.Wait()
	if got := r.served(cohort); !slices.Equal(got, want) {
		r.t.Errorf("cohort %d is served %q, want %q", cohort, got, want)
	}
}

// partsBubble runs f with a relay whose first cohort has a canary, in a bubble of synctest.
func partsBubble(t *testing.T, has []string, f func(r *testRelay, canary *proxy)) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRelayAfter(t, "id=canary* 10m", nil)
		r.addGroup("group", has...)
		canary := r.connect("canary", "group")
		r.connect("other", "group")
		time.Sleep(time.Second)
		go r.Run(r.t.Context(), false)
		f(r, canary)
		synctest.Wait() // until clients have answered
	})
}

// must fails the test at an error of a command.
func (r *testRelay) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// TestB53_NineOfTenTeamsPass: of the changes of ten teams, those of the nine pass whose resources the canary accepts. The
// NACK names the bad one.
func TestB53_NineOfTenTeamsPass(t *testing.T) {
	partsBubble(t, teams(10, "one"), func(r *testRelay, canary *proxy) {
		canary.bad.Store("bad")
		canary.detail.Store("Error adding/updating listener(s) t3: it is not valid")
		changed := teams(10, "two")
		changed[3] = "t3@bad"
		r.changeAll(changed...)
		time.Sleep(quietTime + time.Second)
		s := r.Status()
		if s.Part != "lds/t3" || s.Phase != Halted || len(s.Parts) != 10 || s.Waiting != 10 || s.Outcomes.Halted != 1 {
			r.t.Errorf("after the NACK, the status is %+v, want lds/t3 halted, and ten parts", s)
		}
		if age := time.Since(s.Oldest); age < quietTime+900*time.Millisecond {
			r.t.Errorf("the oldest change has waited for %v, want since the origin stated it", age)
		}
		good := slices.Clone(changed)
		good[3] = "t3@one"
		r.serves(0, good...)
		r.serves(1, teams(10, "one")...)
		time.Sleep(11 * time.Minute)
		r.serves(0, good...)
		r.serves(1, good...)
		r.expectParts("lds/t3 halted")
		if o := r.Status().Outcomes; o.Promoted != 9 || o.Halted != 1 {
			r.t.Errorf("the outcomes are %+v, want nine promotions", o)
		}

		r.change("t3", "three") // a newer state of the halted part
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/t3 rolling")
		time.Sleep(11 * time.Minute)
		good[3] = "t3@three"
		r.serves(1, good...)
		r.expectParts()
	})
}

// TestB53_ANACKWithoutANameCountsForAll: a NACK that names no resource counts for all parts whose changes the response
// contained.
func TestB53_ANACKWithoutANameCountsForAll(t *testing.T) {
	partsBubble(t, teams(3, "one"), func(r *testRelay, canary *proxy) {
		canary.rejects.Store(true)
		canary.detail.Store("t22 and xt1 are not names of them")
		r.changeAll(teams(3, "two")...)
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/t0 halted", "lds/t1 halted", "lds/t2 halted")
		r.serves(0, teams(3, "one")...)
	})
}

// TestB53_ACorrectionResumesWhatTheSameSignalsHalted: after the origin corrects one of the parts that a NACK without a name has
// halted, the others are tried again, also after a restart; not those that an operator has halted.
func TestB53_ACorrectionResumesWhatTheSameSignalsHalted(t *testing.T) {
	var withdrawn []*Withdrawn
	corrected := func(r *testRelay) {
		r.change("t0", "three")
		time.Sleep(2*quietTime + 2*time.Second)
		r.expectParts("lds/t0 rolling", "lds/t1 rolling", "lds/t2 rolling")
		r.serves(0, "t0@three", "t1@two", "t2@two")
	}
	partsBubble(t, teams(3, "one"), func(r *testRelay, canary *proxy) {
		canary.bad.Store("bad")
		r.changeAll("t0@bad", "t1@two", "t2@two")
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/t0 halted", "lds/t1 halted", "lds/t2 halted")
		withdrawn = r.Withdrawn()
		corrected(r)

		r.change("t1", "bad")
		time.Sleep(2*quietTime + 2*time.Second)
		r.expectParts("lds/t0 rolling", "lds/t1 halted", "lds/t2 rolling")
		r.change("t2", "bad")
		time.Sleep(2*quietTime + 2*time.Second)
		r.expectParts("lds/t0 rolling", "lds/t1 halted", "lds/t2 halted")
		r.change("t2", "three") // it was halted for itself
		time.Sleep(2*quietTime + 2*time.Second)
		r.expectParts("lds/t0 rolling", "lds/t1 halted", "lds/t2 rolling")

		r.must(r.Abort(r.t.Context(), "", "", "test"))
		r.change("t0", "four")
		time.Sleep(2*quietTime + 2*time.Second)
		r.expectParts("lds/t0 rolling", "lds/t1 halted", "lds/t2 halted")
	})
	synctest.Test(t, func(t *testing.T) {
		r := newTestRelayAfter(t, "id=canary* 10m", withdrawn)
		r.addGroup("group", teams(3, "one")...)
		go r.Run(r.t.Context(), false)
		r.changeAll("t0@bad", "t1@two", "t2@two")
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/t0 halted", "lds/t1 halted", "lds/t2 halted")
		corrected(r)
	})
}

// TestB53_AWrongNameLosesNoHalt: if a NACK names a resource of another part than the bad one, the bad one is sent again
// after that one was withdrawn, and its own NACK counts.
func TestB53_AWrongNameLosesNoHalt(t *testing.T) {
	partsBubble(t, teams(3, "one"), func(r *testRelay, canary *proxy) {
		canary.bad.Store("bad")
		canary.detail.Store("the resource refers to t0")
		r.changeAll("t0@two", "t1@bad", "t2@two")
		time.Sleep(quietTime + time.Minute)
		r.serves(1, teams(3, "one")...)
		for _, p := range r.Status().Parts {
			if p.Part == "lds/t1" && p.Phase != Halted {
				r.t.Errorf("part %s is %v, want halted", p.Part, p.Phase)
			}
		}
	})
}

// TestB53_ARecoveringClientCounts: the NACK of a client counts for a part that begins before the client has accepted the last
// good again, after another part was withdrawn from it.
func TestB53_ARecoveringClientCounts(t *testing.T) {
	partsBubble(t, teams(2, "one"), func(r *testRelay, canary *proxy) {
		r.change("t0", "two")
		time.Sleep(quietTime + time.Second)
		canary.silent.Store(true)
		r.must(r.Abort(r.t.Context(), "", "", "test"))
		r.change("t1", "bad")
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/t0 halted", "lds/t1 rolling")
		canary.bad.Store("bad")
		canary.release()
		time.Sleep(time.Second)
		r.expectParts("lds/t0 halted", "lds/t1 halted")
	})
}

// TestB53_ReferencesJoin: changes that refer to one another are one part, and others are not in it. The removal of what
// only served content refers to belongs to the change of that content.
func TestB53_ReferencesJoin(t *testing.T) {
	partsBubble(t, []string{"l@cluster-x", "other@1"}, func(r *testRelay, _ *proxy) {
		r.changeCluster("cluster-x", "1")
		time.Sleep(quietTime)
		r.must(r.PromoteAll(r.t.Context(), "test"))
		r.change("l", "cluster-y")
		r.changeCluster("cluster-x", "")
		r.changeCluster("cluster-y", "1")
		r.change("other", "2")
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/l rolling", "lds/other rolling")
		r.serves(0, "cluster-y@1", "l@cluster-y", "other@2")
		r.must(r.Abort(r.t.Context(), "lds/l", "", "test"))
		r.expectParts("lds/l halted", "lds/other rolling")
		r.serves(0, "cluster-x@1", "l@cluster-x", "other@2")
		time.Sleep(11 * time.Minute)
		r.serves(1, "cluster-x@1", "l@cluster-x", "other@2")
	})
}

// TestB53_WhatBecomesConnectedWaits: a new change that refers to a resource of a halted part waits for its end, and is in
// its next edition. Others pass.
func TestB53_WhatBecomesConnectedWaits(t *testing.T) {
	partsBubble(t, []string{"l@1", "other@1"}, func(r *testRelay, _ *proxy) {
		r.changeCluster("cluster-x", "1")
		time.Sleep(quietTime + time.Second)
		r.must(r.Abort(r.t.Context(), "", "", "test"))
		r.change("l", "cluster-x")
		r.change("other", "2")
		time.Sleep(11 * time.Minute)
		r.expectParts("cds/cluster-x halted")
		r.serves(0, "l@1", "other@2")
		r.serves(1, "l@1", "other@2")
		if s := r.Status(); s.Waiting != 2 || time.Since(s.Oldest) < 11*time.Minute {
			r.t.Errorf("%d resources wait since %v, want the cluster and the listener", s.Waiting, s.Oldest)
		}
		r.changeCluster("cluster-x", "2")
		time.Sleep(2*quietTime + time.Second)
		r.expectParts("lds/l rolling")
		r.serves(0, "cluster-x@2", "l@cluster-x", "other@2")
		time.Sleep(11 * time.Minute)
		r.serves(1, "cluster-x@2", "l@cluster-x", "other@2")
		r.expectParts()
	})
}

// connectParts changes a cluster, and the listeners l and m of two parts so that both refer to it. They become one part.
func (r *testRelay) connectParts() {
	r.t.Helper()
	r.expectParts("lds/l rolling", "lds/m rolling")
	r.changeCluster("cluster-x", "1")
	r.changeAll("l@cluster-x", "m@cluster-x")
	time.Sleep(quietTime + time.Second)
	r.expectParts("lds/l rolling")
}

// TestB53_PartsBecomeOne: if a later change connects two parts, they are one part once both gather changes. Until then,
// the change waits.
func TestB53_PartsBecomeOne(t *testing.T) {
	partsBubble(t, []string{"l@1", "m@1"}, func(r *testRelay, _ *proxy) {
		r.changeAll("l@2", "m@2")
		time.Sleep(quietTime + time.Second)
		r.connectParts()
		r.serves(0, "cluster-x@1", "l@cluster-x", "m@cluster-x")
		r.serves(1, "l@1", "m@1")
		time.Sleep(11 * time.Minute)
		r.serves(1, "cluster-x@1", "l@cluster-x", "m@cluster-x")
	})
}

// TestB53_ABridgeWaitsForBoth: a change that connects a part with a halted one waits for the end of the halted one, and
// then both are one part.
func TestB53_ABridgeWaitsForBoth(t *testing.T) {
	partsBubble(t, []string{"l@1"}, func(r *testRelay, _ *proxy) {
		r.changeCluster("cluster-x", "1")
		time.Sleep(quietTime + time.Second)
		r.must(r.Abort(r.t.Context(), "", "", "test"))
		r.change("l", "2")
		time.Sleep(quietTime + time.Second)
		r.expectParts("cds/cluster-x halted", "lds/l rolling")
		r.change("l", "cluster-x")
		time.Sleep(30 * time.Minute)
		r.expectParts("cds/cluster-x halted", "lds/l gathering")
		r.serves(1, "l@1")
		r.must(r.Resume(r.t.Context(), "cds/cluster-x", "test"))
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/l rolling")
		r.serves(0, "cluster-x@1", "l@cluster-x")
		time.Sleep(11 * time.Minute)
		r.serves(1, "cluster-x@1", "l@cluster-x")
	})
}

// TestB53_UndoOfAPart: Undo of a part leaves another one in its stage, and the promotions of others can still be undone.
func TestB53_UndoOfAPart(t *testing.T) {
	partsBubble(t, teams(3, "one"), func(r *testRelay, _ *proxy) {
		r.changeAll("t0@two", "t1@two")
		time.Sleep(11 * time.Minute)
		r.serves(1, "t0@two", "t1@two", "t2@one")
		r.change("t2", "two")
		time.Sleep(quietTime + time.Second)
		r.must(r.Undo(r.t.Context(), "lds/t0", "", "test"))
		r.expectParts("lds/t0 halted", "lds/t2 rolling")
		r.serves(0, "t0@one", "t1@two", "t2@two")
		r.serves(1, "t0@one", "t1@two", "t2@one")
		time.Sleep(11 * time.Minute)
		r.serves(1, "t0@one", "t1@two", "t2@two")
		r.must(r.Undo(r.t.Context(), "lds/t1", "", "test"))
		r.serves(1, "t0@one", "t1@one", "t2@two")
		r.must(r.Undo(r.t.Context(), "", "", "test")) // the part that was promoted last
		r.serves(1, teams(3, "one")...)
		r.expectParts("lds/t0 halted", "lds/t1 halted", "lds/t2 halted")
	})
}

// TestB53_ARestartedPartStaysHalted: after a restart, a part that was halted stays so, and the others begin again with the
// first stage.
func TestB53_ARestartedPartStaysHalted(t *testing.T) {
	var withdrawn []*Withdrawn
	partsBubble(t, teams(3, "one"), func(r *testRelay, _ *proxy) {
		r.changeAll("t0@two", "t1@two")
		time.Sleep(quietTime + time.Second)
		r.must(r.Abort(r.t.Context(), "lds/t0", "", "test"))
		r.must(r.Abort(r.t.Context(), "lds/t1", "", "test"))
		withdrawn = r.Withdrawn()
	})
	synctest.Test(t, func(t *testing.T) {
		r := newTestRelayAfter(t, "id=canary* 10m", withdrawn)
		r.addGroup("group", teams(3, "one")...)
		go r.Run(r.t.Context(), false)
		r.changeAll("t0@two", "t1@two", "t2@two")
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/t0 halted", "lds/t1 halted", "lds/t2 rolling")
		r.serves(0, "t0@one", "t1@one", "t2@two")
		r.change("t1", "one")
		time.Sleep(11 * time.Minute)
		r.expectParts("lds/t0 halted")
		r.serves(1, "t0@one", "t1@one", "t2@two")
		r.must(r.Resume(r.t.Context(), "lds/t0", "test"))
		time.Sleep(11 * time.Minute)
		r.serves(1, "t0@two", "t1@one", "t2@two")
	})
}

// TestB53_PartsAreBounded: what exceeds the bound of open parts is in the last one.
func TestB53_PartsAreBounded(t *testing.T) {
	const n = maxOpenParts + 6
	partsBubble(t, teams(n, "one"), func(r *testRelay, _ *proxy) {
		r.changeAll(teams(n, "two")...)
		time.Sleep(quietTime + time.Second)
		const full = "64 parts are open, the maximum; lds/t66 has the changes of 7 parts"
		if s := r.Status(); s.Full != full {
			r.t.Errorf("the status says %q, want %q", s.Full, full)
		}
		parts := r.Status().Parts
		sizes := make(map[int]int)
		for _, p := range parts {
			sizes[p.Resources]++
		}
		if len(parts) != maxOpenParts || sizes[1] != maxOpenParts-1 || sizes[7] != 1 {
			r.t.Errorf("%d parts, by size %v; want %d, of which the last one has 7 resources", len(parts), sizes, maxOpenParts)
		}
		r.change("t66", "three") // replaces the edition
		time.Sleep(quietTime + time.Second)
		if s := r.Status(); s.Full != full {
			r.t.Errorf("after a change of the last part, the status says %q, want %q", s.Full, full)
		}
		r.change("t66", "two")
		time.Sleep(12 * time.Minute)
		r.serves(1, teams(n, "two")...)
		if s := r.Status(); s.Full != "" {
			r.t.Errorf("after the end of all parts, the status says %q", s.Full)
		}
		if n := len(r.Status().Parts); n > maxOpenParts {
			r.t.Errorf("%d promoted parts are kept, want at most %d", n, maxOpenParts)
		}
	})
}

// TestB53_MoreThanTheMaximumIsOpen: an undo opens all parts again that were promoted at one time, beside others. Further changes
// wait for the end of a part.
func TestB53_MoreThanTheMaximumIsOpen(t *testing.T) {
	partsBubble(t, teams(maxOpenParts+2, "one"), func(r *testRelay, _ *proxy) {
		r.changeAll(teams(maxOpenParts, "two")...)
		time.Sleep(11*time.Minute + quietTime)
		r.change("t64", "two")
		time.Sleep(quietTime + time.Second)
		r.must(r.Undo(r.t.Context(), "", "", "test"))
		r.change("t65", "two")
		time.Sleep(3 * quietTime)
		if s := r.Status(); s.Phase != Halted || s.Full == "" {
			r.t.Errorf("the state is %v, full %q, want halted, and that a change waits", s.Phase, s.Full)
		}
		r.serves(1, teams(maxOpenParts+2, "one")...)
		r.must(r.PromoteAll(r.t.Context(), "test"))
		time.Sleep(time.Second)
		r.serves(1, teams(maxOpenParts+2, "two")...)
	})
}

// TestB53_JoinedPartsKeepTheEndOfAHalt: the time in which one of the parts was halted does not count as if the edition of both could
// not be replaced any more.
func TestB53_JoinedPartsKeepTheEndOfAHalt(t *testing.T) {
	now := time.Now()
	m, other := &Machine{pendingSince: now.Add(-time.Minute)}, &Machine{pendingSince: now.Add(-24 * time.Hour), haltEnded: now}
	m.absorb(other)
	if !m.haltEnded.Equal(now) || !m.pendingSince.Equal(now.Add(-24*time.Hour)) {
		t.Errorf("the joint machine has the pending time %v and the end of a halt %v", m.pendingSince, m.haltEnded)
	}
}

// TestB53_ALargeRemovalIsOnePart: the removals of a type are one part if they are large.
func TestB53_ALargeRemovalIsOnePart(t *testing.T) {
	partsBubble(t, teams(5, "one"), func(r *testRelay, _ *proxy) {
		for i := range 4 {
			r.change(fmt.Sprint("t", i), "")
		}
		r.change("t4", "two")
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/t0 rolling", "lds/t4 rolling")
		for _, p := range r.Status().Parts {
			if p.Large != (p.Part == "lds/t0") {
				r.t.Errorf("part %s is large: %t", p.Part, p.Large)
			}
		}
	})
}

// TestB53_PartsSpanGroups: the same name in several node groups is in one part, also if it is connected only in one.
func TestB53_PartsSpanGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRelay(t, "id=canary* 10m", "first", "second")
		go r.Run(r.t.Context(), false)
		r.change("b", "1")
		time.Sleep(quietTime)
		r.must(r.PromoteAll(r.t.Context(), "test"))
		r.change("a", "2")
		r.groups[0].control.Edit(r.t.Context(), func(*pending.List) { r.groups[0].put(t, "b", "a") }) // refers to a
		r.groups[1].control.Edit(r.t.Context(), func(*pending.List) { r.groups[1].put(t, "b", "2") })
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/a rolling", "lds/b rolling") // a listener does not refer to listeners
		r.must(r.PromoteAll(r.t.Context(), "test"))
		r.change("a", "cluster-x")
		r.groups[0].control.Edit(r.t.Context(), func(*pending.List) { r.groups[0].put(t, "b", "cluster-x") })
		r.groups[1].control.Edit(r.t.Context(), func(*pending.List) { r.groups[1].put(t, "b", "3") })
		r.changeCluster("cluster-x", "1")
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/a rolling")
		if s := r.Status(); s.Resources != 6 {
			r.t.Errorf("the part has %d resources, want three of both groups", s.Resources)
		}
	})
}

// TestB53_CommandsNameParts: a command for a part that does not exist has an error with the names of all.
func TestB53_CommandsNameParts(t *testing.T) {
	partsBubble(t, teams(2, "one"), func(r *testRelay, _ *proxy) {
		r.changeAll(teams(2, "two")...)
		time.Sleep(quietTime + time.Second)
		for _, command := range []func(context.Context) error{
			func(ctx context.Context) error { return r.Promote(ctx, "lds/none", "test") },
			func(ctx context.Context) error { return r.Abort(ctx, "lds/none", "", "test") },
			func(ctx context.Context) error { return r.Resume(ctx, "lds/none", "test") },
			func(ctx context.Context) error { return r.Undo(ctx, "lds/none", "", "test") },
		} {
			const want = `no rollout is open: there is no part "lds/none"; the parts are ["lds/t0" "lds/t1"]`
			if err := command(r.t.Context()); err == nil || err.Error() != want {
				r.t.Errorf("error %v, want %s", err, want)
			}
		}
		r.must(r.Promote(r.t.Context(), r.Status().Parts[0].Edition, "test")) // the id of an edition is a name, too
		r.expectParts("lds/t1 rolling")
	})
}

// TestB53_NamesInErrors: a text names a resource only if the name is not a part of a longer one.
func TestB53_NamesInErrors(t *testing.T) {
	for _, tt := range []struct {
		text, name string
		want       bool
	}{
		{"Error adding/updating listener(s) a: bad", "a", true}, {"a", "a", true}, {"cluster 'a' is bad", "a", true},
		{"it is a.", "a", true}, {"ab", "a", false}, {"ba", "a", false}, {"x/a", "a", false}, {"a.b is bad", "a", false},
		{"a-b a", "a", true}, {"a:b", "a", false}, {"line 11", "1", false}, {"a.: b", "a.", true}, {"a.: b", "a", false}, {"x: a b", "a b", true}, {"x: a bc", "a b", false},
		{"é is bad", "é", true}, {"éa is bad", "a", false}, {"on *: bad", "*", true}, {"xdstp://x/T/a is bad", "xdstp://x/T/a", true},
		{"ooo", "oo", false}, {"aa a", "a", true}, {"", "a", false}, {"any text", "", false},
	} {
		if got := mentions(tt.text, tt.name); got != tt.want {
			t.Errorf("mentions(%q, %q) = %t", tt.text, tt.name, got)
		}
		if got := newNameSet(map[string]wire.Digest{tt.name: {}}).isMentioned(tt.text, wordsOf(tt.text)); got != tt.want {
			t.Errorf("%q mentions a set with %q: %t", tt.text, tt.name, got)
		}
	}
	changes := []downstream.Change{
		{Key: listeners, Names: []string{"a", "b", "on *"}}, {Key: listeners, Names: []string{"c"}},
		{Key: wire.ClusterType, Names: []string{"d"}},
	}
	if got := Mentioned("listener(s) a: bad, c: on *, d: bad", listeners, changes); !slices.Equal(got, []string{"a", "on *", "c"}) {
		t.Errorf("Mentioned returned %q", got)
	}
}

// TestB53_NamesAreFoundByWords: the search in a set of names finds what the search for each name finds.
func TestB53_NamesAreFoundByWords(t *testing.T) {
	var texts func(n int) []string // all with at most n characters
	texts = func(n int) []string {
		all := []string{""}
		if n > 0 {
			for _, shorter := range texts(n - 1) {
				for _, char := range "a.: -" {
					all = append(all, string(char)+shorter)
				}
			}
		}
		return all
	}
	for _, name := range texts(3) {
		set := newNameSet(map[string]wire.Digest{name: {}})
		for _, text := range texts(5) {
			if want, got := mentions(text, name), set.isMentioned(text, wordsOf(text)); got != want {
				t.Fatalf("%q mentions %q: %t, want %t", text, name, got, want)
			}
			of := []downstream.Change{{Key: listeners, Names: []string{name}}}
			if want, got := mentions(text, name), len(Mentioned(text, listeners, of)) > 0; got != want {
				t.Fatalf("names that %q mentions have %q: %t, want %t", text, name, got, want)
			}
		}
	}
}

// TestB53_LaterChangesAreOneEdition: later changes of resources of a promoted part are in its next edition, also if they are
// not connected any longer. Neither waits for the other.
func TestB53_LaterChangesAreOneEdition(t *testing.T) {
	partsBubble(t, teams(3, "one"), func(r *testRelay, _ *proxy) {
		r.changeAll("t0@two", "t1@two")
		synctest.Wait()
		r.must(r.PromoteAll(r.t.Context(), "test"))
		r.changeAll("t0@three", "t1@three", "t2@three")
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/t0 rolling", "lds/t2 rolling")
		r.serves(0, "t0@three", "t1@three", "t2@three")
	})
}

// TestPromotionOfAllLogsItsDuration: an operator promotes a halted part with all others, as a new part. The log says how long
// the oldest change had waited.
func TestPromotionOfAllLogsItsDuration(t *testing.T) {
	partsBubble(t, teams(1, "one"), func(r *testRelay, _ *proxy) {
		r.change("t0", "two")
		time.Sleep(time.Minute)
		r.must(r.Abort(r.t.Context(), "", "bad", "test"))
		time.Sleep(time.Minute)
		r.must(r.PromoteAll(r.t.Context(), "test"))
		synctest.Wait()
		_, took, _ := strings.Cut(r.logs.String(), " took=")
		if waited, err := time.ParseDuration(strings.TrimSpace(took)); err != nil || (waited-2*time.Minute).Abs() > time.Second {
			t.Errorf("the log does not end with a promotion that took 2m0s:\n%s", r.logs.String())
		}
	})
}

// TestB53_ARollbackKeepsHalts: a rollback of some resources leaves a part halted that changes others.
func TestB53_ARollbackKeepsHalts(t *testing.T) {
	partsBubble(t, teams(2, "one"), func(r *testRelay, _ *proxy) {
		was := r.views["group"].Generation().Type(listeners).Wildcard
		var former *wire.Resource
		for e := range was.Since(0) {
			if e.Name.String() == "t0" {
				former = e.Resource
			}
		}
		r.change("t0", "two")
		synctest.Wait()
		r.must(r.PromoteAll(r.t.Context(), "test"))
		r.change("t1", "two")
		time.Sleep(quietTime + time.Second)
		r.must(r.Abort(r.t.Context(), "", "bad", "test"))
		told := r.Decisions().Halted
		_, err := r.RollBack(r.t.Context(), map[SectionKey]func(*pending.List) *pending.Edition{
			{Group: "group"}: func(l *pending.List) *pending.Edition {
				return l.PinStates([]cache.Former{{Key: listeners, Kind: cache.Wildcard, Name: "t0", Resource: former}})
			},
		}, "", "test")
		r.must(err)
		r.expectParts("lds/t0 halted", "lds/t1 halted")
		if is := r.Decisions().Halted; len(told) != 1 || len(is) != 2 || !is[0].At.Equal(told[0].At) {
			r.t.Errorf("peers are told of %+v, want also what was halted before: %+v", is, told)
		}
		time.Sleep(time.Minute)
		r.serves(0, "t0@one", "t1@one")
		r.serves(1, "t0@one", "t1@one")
		r.expectParts("lds/t0 halted", "lds/t1 halted")
	})
}

// TestB53_AnEndedWaitIsForgotten: a change that waited for the end of a part, and that the origin reverted, is not the oldest
// one afterwards.
func TestB53_AnEndedWaitIsForgotten(t *testing.T) {
	partsBubble(t, []string{"l@1"}, func(r *testRelay, _ *proxy) {
		r.changeCluster("cluster-x", "1")
		time.Sleep(quietTime + time.Second)
		r.expectParts("cds/cluster-x rolling")
		r.change("l", "cluster-x")
		time.Sleep(quietTime + time.Second)
		r.change("l", "1")
		time.Sleep(11 * time.Minute)
		r.expectParts()
		if s := r.Status(); s.Waiting != 0 || !s.Oldest.IsZero() {
			r.t.Errorf("%d resources wait since %v, want none", s.Waiting, s.Oldest)
		}
	})
}

// TestB53_AChangeDuringTheCutWaitsForNothing: a change that arrives while parts are made of others is in a part of its own.
func TestB53_AChangeDuringTheCutWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRelay(t, "id=canary* 10m", "group")
		armed, edits := false, 0
		r.groups[0].before = func() { // only the goroutine of the group calls this
			if edits++; armed && edits == 2 { // the first edit has read what waits
				armed = false
				r.groups[0].put(t, "b", "2")
			}
		}
		go r.Run(t.Context(), false)
		r.changeCluster("cluster-x", "1")
		time.Sleep(quietTime + time.Second)
		r.must(r.Abort(t.Context(), "", "", "test"))
		r.change("l", "cluster-x") // waits for the halted part
		r.groups[0].control.Edit(t.Context(), func(*pending.List) { armed, edits = true, 0 })
		time.Sleep(3 * quietTime)
		r.groups[0].control.Edit(t.Context(), func(*pending.List) {
			if armed {
				t.Error("no parts were made")
			}
		})
		r.expectParts("cds/cluster-x halted", "lds/b rolling")
	})
}

// TestB53_AReturningGroupWaitsForNothing: what waited in a node group without a confirmed state, while parts were made of the
// others, is in a part as soon as the origin has confirmed it.
func TestB53_AReturningGroupWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRelay(t, "id=canary* 10m", "first", "second")
		first, second := r.groups[0], r.groups[1]
		r.connect("other", "second")
		synctest.Wait()
		go r.Run(t.Context(), false)
		r.groups = r.groups[:1]
		r.changeCluster("cluster-x", "1")
		time.Sleep(quietTime + time.Second)
		r.must(r.Abort(t.Context(), "", "", "test"))
		second.control.Edit(t.Context(), func(*pending.List) {
			second.put(t, "b", "2")
			second.w.SetConnected(false)
		})
		time.Sleep(unavailableAfter)
		first.control.Edit(t.Context(), func(*pending.List) { first.put(t, "l", "cluster-x") }) // waits for the halted part
		time.Sleep(maxGathering)
		r.expectParts("cds/cluster-x halted")
		second.control.Edit(t.Context(), func(*pending.List) { second.w.SetConnected(true) })
		time.Sleep(2 * quietTime)
		r.expectParts("cds/cluster-x halted", "lds/b rolling")
	})
}

// TestB53_WhatExceedsTheBoundKeepsItsAge: a change that waits because all parts are open has waited since the origin stated it.
func TestB53_WhatExceedsTheBoundKeepsItsAge(t *testing.T) {
	partsBubble(t, teams(maxOpenParts+1, "one"), func(r *testRelay, _ *proxy) {
		r.changeAll(teams(maxOpenParts, "two")...)
		time.Sleep(quietTime + time.Second)
		r.must(r.Abort(r.t.Context(), "", "", "test"))
		last := fmt.Sprint("t", maxOpenParts)
		r.change(last, "two")
		time.Sleep(time.Hour)
		const full = "64 parts are open, the maximum; changes of 1 more wait for the end of one"
		if s := r.Status(); s.Full != full {
			r.t.Errorf("the status says %q, want %q", s.Full, full)
		}
		r.change(last, "one")
		time.Sleep(time.Minute)
		if s := r.Status(); s.Full != "" {
			r.t.Errorf("after the change that waited was reverted, the status says %q", s.Full)
		}
		r.change(last, "two")
		time.Sleep(time.Hour)
		r.must(r.Resume(r.t.Context(), "lds/t0", "test"))
		time.Sleep(11 * time.Minute)
		for _, p := range r.Status().Parts {
			if p.Part == "lds/"+last && p.Phase == Rolling && time.Since(p.Oldest) > time.Hour {
				return
			}
		}
		r.t.Errorf("the parts are %+v, want %s in its first stage, pending for more than an hour", r.Status().Parts, last)
	})
}

// TestB53_SignalsEnd: the signals of an edition, which have all clients, are dropped once no client is served the edition, or was
// a moment ago.
func TestB53_SignalsEnd(t *testing.T) {
	partsBubble(t, teams(3, "one"), func(r *testRelay, _ *proxy) {
		signals := func() (n int) {
			synctest.Wait()
			r.tracker.mu.Lock()
			defer r.tracker.mu.Unlock()
			for _, p := range r.tracker.parts {
				if p.signals != nil {
					n++
				}
			}
			return n
		}
		r.changeAll(teams(3, "two")...)
		time.Sleep(quietTime + time.Second)
		r.must(r.Abort(r.t.Context(), "lds/t0", "", "test"))
		if n := signals(); n != 3 {
			r.t.Errorf("signals of %d parts, want three: one was halted just now", n)
		}
		time.Sleep(12 * time.Minute)
		r.Poke()
		time.Sleep(time.Second)
		r.expectParts("lds/t0 halted")
		if n := signals(); n != 0 {
			r.t.Errorf("signals of %d parts, want none", n)
		}
		r.must(r.Resume(r.t.Context(), "lds/t0", "test"))
		time.Sleep(quietTime + time.Second)
		if n := signals(); n != 1 {
			r.t.Errorf("signals of %d parts, want one", n)
		}
	})
}

// TestB53_EditionsAreMadeTogether: if the origin changes all parts at once, one look at what waits makes all of their editions.
func TestB53_EditionsAreMadeTogether(t *testing.T) {
	partsBubble(t, teams(maxOpenParts, "one"), func(r *testRelay, _ *proxy) {
		r.changeAll(teams(maxOpenParts, "two")...)
		time.Sleep(quietTime + time.Second)
		r.changeAll(teams(maxOpenParts, "three")...)
		edits := 0
		r.groups[0].control.Edit(r.t.Context(), func(*pending.List) { r.groups[0].before = func() { edits++ } })
		time.Sleep(quietTime + time.Second)
		r.serves(0, teams(maxOpenParts, "three")...)
		r.groups[0].control.Edit(r.t.Context(), func(*pending.List) {
			if edits > maxOpenParts/2 {
				r.t.Errorf("%d edits of the list, want a few", edits)
			}
		})
	})
}

// TestB53_EndsOfPartsAreTold: each part that began is told to have ended, also one that is reverted by the origin, or that
// becomes a part of another one. Otherwise its trace would never end.
func TestB53_EndsOfPartsAreTold(t *testing.T) {
	partsBubble(t, teams(3, "one"), func(r *testRelay, _ *proxy) {
		phases := make(map[int]Phase) // by part
		r.must(r.execute(r.t.Context(), func(context.Context) error {
			r.cfg.Changed = func(part int, _, is *Status) { phases[part] = is.Phase }
			return nil
		}))
		want := func(when string, open int) {
			r.t.Helper()
			synctest.Wait()
			n := 0
			r.must(r.execute(r.t.Context(), func(context.Context) error {
				for _, phase := range phases {
					if phase.hasEdition() {
						n++
					}
				}
				return nil
			}))
			if n != open {
				r.t.Errorf("%s: %d parts were told to be open, want %d", when, n, open)
			}
		}
		r.changeAll(teams(3, "two")...)
		time.Sleep(quietTime + time.Second)
		want("in the first stage", 3)
		r.change("t0", "one")
		time.Sleep(time.Second)
		want("one reverted", 2)
		r.must(r.PromoteAll(r.t.Context(), "test"))
		time.Sleep(time.Second)
		want("promoted as one", 0)
	})
}

// TestB53_ALateNACKCountsForItsPart: a NACK that names a resource of a part that was withdrawn meanwhile, because another client
// rejected it, does not count for the other parts of the response. They are sent to the client again.
func TestB53_ALateNACKCountsForItsPart(t *testing.T) {
	partsBubble(t, teams(3, "one"), func(r *testRelay, canary *proxy) {
		second := r.connect("canary2", "group")
		time.Sleep(time.Second)
		for _, c := range []*proxy{canary, second} {
			c.bad.Store("bad")
			c.detail.Store("Error adding/updating listener(s) t0: it is not valid")
		}
		second.silent.Store(true)
		r.change("t2", "two")
		time.Sleep(quietTime + 100*time.Millisecond)
		canary.silent.Store(true)
		r.change("t0", "bad") // the second client has not answered yet, so it will receive this with the next part
		time.Sleep(quietTime + 100*time.Millisecond)
		r.change("t1", "two")
		time.Sleep(quietTime + 100*time.Millisecond)
		r.expectParts("lds/t0 rolling", "lds/t1 rolling", "lds/t2 rolling")
		second.requests <- <-second.held
		synctest.Wait()
		canary.release()
		time.Sleep(time.Second)
		r.expectParts("lds/t0 halted", "lds/t1 rolling", "lds/t2 rolling")
		received := second.received.Load()
		second.release()
		time.Sleep(time.Second)
		r.expectParts("lds/t0 halted", "lds/t1 rolling", "lds/t2 rolling")
		if second.received.Load() < received+2 {
			r.t.Error("the client is not sent what it rejected with the bad part again")
		}
		time.Sleep(11 * time.Minute)
		r.serves(1, "t0@one", "t1@two", "t2@two")
	})
}

// TestB53_PendingNamesThePartToWaitFor: a change that waits for the end of an open part is listed with the name of that part.
func TestB53_PendingNamesThePartToWaitFor(t *testing.T) {
	partsBubble(t, []string{"l@1", "m@1"}, func(r *testRelay, _ *proxy) {
		r.changeCluster("cluster-x", "1")
		time.Sleep(quietTime + time.Second)
		r.must(r.Abort(r.t.Context(), "", "", "test"))
		r.change("l", "cluster-x")
		time.Sleep(2 * quietTime)
		r.change("m", "2")
		synctest.Wait()
		var got []string
		for _, d := range check.Must(r.Pending(r.t.Context())) {
			got = append(got, fmt.Sprintf("%s of %q", d.Name, d.Part))
		}
		slices.Sort(got)
		if want := []string{`cluster-x of "cds/cluster-x"`, `l of "cds/cluster-x"`, `m of ""`}; !slices.Equal(got, want) {
			r.t.Errorf("pending are %q, want %q", got, want)
		}
	})
}

// TestB53_JoinedPartsKeepTheOldestAge: a part that becomes one with a younger part has waited since its own oldest change.
func TestB53_JoinedPartsKeepTheOldestAge(t *testing.T) {
	partsBubble(t, []string{"l@1", "m@1"}, func(r *testRelay, _ *proxy) {
		r.change("l", "2")
		time.Sleep(11 * time.Minute) // its part, which continues with the next change, is the first one
		began := time.Now()
		r.change("m", "2")
		time.Sleep(5 * time.Minute)
		r.change("l", "3")
		time.Sleep(quietTime + time.Second)
		r.connectParts()
		s := r.Status()
		if part := s.Parts[0]; part.Oldest.After(began.Add(time.Second)) || !part.Oldest.Equal(s.Oldest) {
			r.t.Errorf("the part waits since %v, and all since %v, want since %v", part.Oldest, s.Oldest, began)
		}
	})
}

// TestB53_ARemovalWaitsForTheEndOfTheReference: the removal of a cluster waits for the part that ends the last reference to it, also
// while that is halted.
func TestB53_ARemovalWaitsForTheEndOfTheReference(t *testing.T) {
	partsBubble(t, []string{"l@cluster-x"}, func(r *testRelay, _ *proxy) {
		r.changeCluster("cluster-x", "1")
		time.Sleep(quietTime)
		r.must(r.PromoteAll(r.t.Context(), "test"))
		r.change("l", "2")
		time.Sleep(quietTime + time.Second)
		r.changeCluster("cluster-x", "")
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/l rolling")
		r.serves(0, "cluster-x@1", "l@2")
		r.must(r.Abort(r.t.Context(), "", "", "test"))
		time.Sleep(time.Hour)
		r.serves(0, "cluster-x@1", "l@cluster-x")
		r.serves(1, "cluster-x@1", "l@cluster-x")
		r.must(r.Resume(r.t.Context(), "", "test"))
		time.Sleep(25 * time.Minute)
		r.serves(1, "l@2")
		r.must(r.Undo(r.t.Context(), "", "", "test"))
		time.Sleep(time.Second)
		r.serves(1, "cluster-x@1", "l@cluster-x")
	})
}
