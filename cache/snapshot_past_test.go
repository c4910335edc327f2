package cache

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// changedSets returns an origin whose clusters have histories: a changed, b returned to its first content, c was
// removed, and d was added and removed again. The named a changed too.
func changedSets(t tester, cohorts int) *origin {
	o := newOrigin(t, Config{Cohorts: cohorts, Waits: func(string) bool { return false }})
	o.typeURL = wire.ClusterType
	o.SetPhase(o.typeURL, Confirmed)
	o.subscribe(o.view.Watch(), "n")
	for _, put := range []struct{ name, content string }{
		{"a", "1"}, {"b", "1"}, {"c", "1"}, {"n", "1"}, {"a", "2"}, {"n", "2"}, {"d", "1"}, {"b", "2"}, {"b", "1"},
	} {
		kind := Wildcard
		if put.name == "n" {
			kind = ByName
		}
		o.put(kind, put.name, put.content, cluster(put.content))
	}
	o.remove(Wildcard, "c", "d")
	return o
}

// cluster is an encoded Cluster whose name is the content.
func cluster(content string) string { return "\n\x01" + content }

// reverted returns the names of the present entries of the wildcard set and then of the names that count as reverted.
func (o *origin) reverted(at *View) (names []string) {
	typ := at.Generation().Type(o.typeURL)
	for _, set := range []*Set{&typ.Wildcard, &typ.ByName} {
		for e := range set.Since(0) {
			if e.Present() && !e.Reverted().IsZero() {
				names = append(names, e.Name.String())
			}
		}
	}
	slices.Sort(names)
	return names
}

// TestB3_ARestoredViewRemembersFormerContents: what was reverted before the restart, and what is reverted after it, is
// known to be reverted until RevertMemory is over. The same holds for removals, and for the whole set. The views of
// cohorts remember the same.
func TestB3_ARestoredViewRemembersFormerContents(t *testing.T) {
	for cohorts := range 2 {
		synctest.Test(t, func(t *testing.T) {
			o := changedSets(t, cohorts)
			time.Sleep(RevertMemory / 2)
			before := o.typ().Wildcard.sum
			o.put(Wildcard, "a", "3", cluster("3"))
			o = o.restart(true, time.Now())
			views := []*View{o.view}
			for i := range cohorts {
				views = append(views, o.view.Cohort(i))
			}
			check := func(when string, reverted, removed []string, set bool) {
				t.Helper()
				for _, v := range views {
					wildcard := &v.Generation().Type(o.typeURL).Wildcard
					if got := o.reverted(v); !slices.Equal(got, reverted) {
						t.Errorf("%d cohorts, %s: reverted are %q, want %q", cohorts, when, got, reverted)
					}
					if got := wildcard.RecentRemovals(); !slices.Equal(got, removed) {
						t.Errorf("%d cohorts, %s: recent removals are %q, want %q", cohorts, when, got, removed)
					}
					if got := wildcard.Reverted() != 0; got != set {
						t.Errorf("%d cohorts, %s: the set counts as reverted: %v, want %v", cohorts, when, got, set)
					}
				}
			}
			check("restored", []string{"b"}, []string{"c", "d"}, false)
			o.put(Wildcard, "a", "2", cluster("2"))
			if got := o.typ().Wildcard.sum; got != before {
				t.Fatalf("the set has the sum %v, want %v as before", got, before)
			}
			check("a is reverted", []string{"a", "b"}, []string{"c", "d"}, true)
			o.put(ByName, "n", "1", cluster("1"))
			o.put(Wildcard, "c", "1", cluster("1"))
			check("c returns", []string{"a", "b", "c", "n"}, []string{"c", "d"}, true)
			time.Sleep(RevertMemory/2 + time.Second)
			check("later", []string{"a", "c", "n"}, nil, true)
			o = o.restart(true, time.Now().Add(RevertMemory+time.Second)) // that long without a relay
			views = []*View{o.view}
			check("after an hour without a relay", nil, nil, false)
		})
	}
}

// TestB3_AnEmptySetThatWasRevertedIsRemembered, although no position of it has a change.
func TestB3_AnEmptySetThatWasRevertedIsRemembered(t *testing.T) {
	o := newClusterOrigin(t)
	o.put(Wildcard, "a", "1", aCluster)
	o.remove(Wildcard, "a")
	if is := &o.restart(true, time.Now()).typ().Wildcard; is.Reverted() == 0 || len(is.RecentRemovals()) != 1 {
		t.Errorf("reverted at %d, removed %q; want a position and one name", is.Reverted(), is.RecentRemovals())
	}
}

// TestB42_FormerContentsAreSmall: the former contents of a resource that changed often take less than 60 bytes.
func TestB42_FormerContentsAreSmall(t *testing.T) {
	size := func(changes int) int {
		o := newClusterOrigin(t)
		for i := range changes + 1 {
			o.put(Wildcard, "a", fmt.Sprint((i+1)%2), fmt.Sprint("\n\x02", 10+(changes-i)%80))
		}
		s, _ := o.Snapshot(true)
		s.Types[0].Wildcard.history = setHistory{}
		return len(encodeSnapshot(t, s))
	}
	if once, often := size(0), size(60); often-once > 60 {
		t.Errorf("a snapshot has %d bytes, and %d after 60 changes", once, often)
	}
}
