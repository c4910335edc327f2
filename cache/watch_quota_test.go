package cache

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB35_QuotasCountRandomSubscriptions subscribes and unsubscribes streams of two views at random. The quota of an origin
// counts each name once for each view with a subscriber, but not names that one view copies from the other. OverQuota
// returns names exactly if a limit would be exceeded. In each view, one of the subscribed peers is charged for a name.
func TestB35_QuotasCountRandomSubscriptions(t *testing.T) {
	const most = 6
	sources := func(_, name string) int { return max(0, strings.Index("xyz", name[:min(1, len(name))])) }
	rapid.Check(t, func(t *rapid.T) {
		first := quota.NewNames(quota.NewPool(most, quota.Tenth(most)))
		second := quota.NewNames(quota.NewPool(most, quota.Tenth(most)))
		group, _ := NewRouted(Config{Sources: 3, Route: sources,
			Quotas: []quota.Names{first, second, first.CountedElsewhere()}})
		shared, _ := NewRouted(Config{Sources: 3, Route: sources, Quotas: []quota.Names{first, second, first}})
		watches := []*Watch{group.Watch(), group.Watch(), shared.Watch()}
		for i, peer := range []string{"one", rapid.SampledFrom([]string{"one", "two"}).Draw(t, "peer")} {
			watches[i].SetPeer(peer)
		}
		wants := []map[string]bool{{}, {}, {}}
		// wanted returns the number of subscribed names by source.
		wanted := func(by ...map[string]bool) (n [3]int) {
			all := make(map[string]bool)
			for _, names := range by {
				maps.Copy(all, names)
			}
			for name := range all {
				n[sources("", name)]++
			}
			return n
		}
		names := rapid.SliceOfN(rapid.SampledFrom([]string{"x1", "x2", "x3", "x4", "x5", "y1", "y2", "y3", "z1", "z2",
			"z3"}), 0, 6)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			i := rapid.IntRange(0, len(watches)-1).Draw(t, "watch")
			begins, ceases := names.Draw(t, "begins"), names.Draw(t, "ceases")
			had := wants[i]
			others := []map[string]bool{wants[1-i%2]}
			if i == 2 {
				others = nil
			}
			has := maps.Clone(had)
			for _, name := range ceases {
				delete(has, name)
			}
			for _, name := range begins {
				has[name] = true
			}
			before, after := wanted(append(others, had)...), wanted(append(others, has)...)
			more := func(source int) int { return after[source] - before[source] }
			tooMany := more(0)+more(2) > max(0, most-first.Used()) || more(1) > max(0, most-second.Used())
			over, why := watches[i].OverQuota(acme, begins, ceases)
			if exceeds := len(over) > 0; exceeds != tooMany ||
				exceeds && (why.PerPeer || why.Used <= most || why.Limit != most) {
				t.Fatalf("subscribed %v; if %d subscribes to %q and unsubscribes from %q: over %q (%+v), want some: %t", wants, i,
					begins, ceases, over, why, tooMany)
			}
			begins = slices.DeleteFunc(begins, func(name string) bool { return slices.Contains(over, name) })
			if more, _ := watches[i].OverQuota(acme, begins, ceases); len(more) > 0 {
				t.Fatalf("subscribed %v; if %d subscribes to %q and unsubscribes from %q, without %q: over is %q", wants, i,
					begins, ceases, over, more)
			}
			for _, name := range over {
				if !had[name] {
					delete(has, name)
				}
			}
			watches[i].Subscribe(acme, begins)
			ceases = slices.DeleteFunc(ceases, func(name string) bool { return has[name] || !had[name] })
			watches[i].Unsubscribe(acme, watches[i].Find(acme, sortedSet(ceases)))
			wants[i] = has
			inGroup, inShared := wanted(wants[0], wants[1]), wanted(wants[2])
			if got, want := first.Used(), inGroup[0]+inShared[0]+inShared[2]; got != want {
				t.Fatalf("subscribed %v: quota of the first origin counts %d, want %d", wants, got, want)
			}
			if got, want := second.Used(), inGroup[1]+inShared[1]; got != want {
				t.Fatalf("subscribed %v: quota of the second origin counts %d, want %d", wants, got, want)
			}
			charged := 0
			for _, of := range []quota.Names{first, second} {
				for _, peer := range []string{"one", "two"} {
					used := usedBy(of, peer)
					charged += used
					if used < 0 || used > inGroup[0]+inGroup[1]+inGroup[2] {
						t.Fatalf("subscribed %v: %q is charged for %d", wants, peer, used)
					}
				}
			}
			if want := inGroup[0] + inGroup[1] + inGroup[2]; charged != want {
				t.Fatalf("subscribed %v: peers are charged for %d names, want %d", wants, charged, want)
			}
			if got, want := watches[0].Room(), max(0, most-max(first.Used(), second.Used())); got != want {
				t.Fatalf("subscribed %v: room for %d more, want %d", wants, got, want)
			}
		}
	})
}

// usedBy returns the number of names that a peer is charged for.
func usedBy(names quota.Names, peer string) int {
	share := names.Open(peer)
	defer share.Close()
	return share.Used()
}

// TestB35_NamesOfAPeer: when half of the quota is used, a peer may not exceed its share, so that other peers can
// subscribe to other names. Existing resources are not refused. When a peer unsubscribes, it is no longer charged, and
// another subscriber is charged instead.
func TestB35_NamesOfAPeer(t *testing.T) {
	names := quota.NewNames(quota.NewPool(20, 4))
	view, w := NewRouted(Config{Quotas: []quota.Names{names}})
	watch := func(peer string) *Watch {
		watch := view.Watch()
		watch.SetPeer(peer)
		return watch
	}
	texts := func(prefix string, n int) (out []string) {
		for i := range n {
			out = append(out, prefix+string(rune('a'+i)))
		}
		return out
	}
	greedy, also, other := watch("greedy"), watch("greedy"), watch("other")
	held := other.Subscribe(acme, []string{"held"})
	w[0].TakeDemand()
	w[0].Apply(ByName, updateOf(acme, newResource(t, acme, "held", "1", "content")))
	other.Unsubscribe(acme, held)

	over, why := greedy.OverQuota(acme, texts("g", 15), nil)
	if len(over) != 5 || !why.PerPeer || why.Limit != 4 || why.Total != 20 || why.Used != 15 {
		t.Errorf("15 names of one peer: over quota %q (%+v), want 5 of them, by its share of 4", over, why)
	}
	all := greedy.Subscribe(acme, texts("g", 10))
	if over, _ := also.OverQuota(acme, []string{"gz", "ga", "held"}, nil); !slices.Equal(over, []string{"gz"}) {
		t.Errorf("same peer: over quota %q, want only the name without subscribers and without a resource", over)
	}
	if over, _ := other.OverQuota(acme, texts("o", 5), nil); len(over) != 1 {
		t.Errorf("5 names of another peer: over quota %q, want 1", over)
	}
	other.Subscribe(acme, texts("g", 3))
	greedy.Unsubscribe(acme, all)
	if g, o := usedBy(names, "greedy"), usedBy(names, "other"); g != 0 || o != 3 || names.Used() != 3 {
		t.Errorf("peers are charged for %d and %d of %d names, want none and 3", g, o, names.Used())
	}
	if room := also.Room(); room != 7 {
		t.Errorf("room for %d names, want the remainder of half", room)
	}
}

// B.35: names and globs that the node group has are known, whoever subscribed to them, and so is the wildcard.
func TestB35_UnknownNames(t *testing.T) {
	const typeURL, glob = wire.ClusterType, "xdstp://a/envoy.config.cluster.v3.Cluster/%d/*"
	view, _ := New(Config{})
	ask := []string{wire.Wildcard, "a", "b", fmt.Sprintf(glob, 1), fmt.Sprintf(glob, 2)}
	check.Equal(t, "unknown names of an unknown type", view.Unknown(typeURL, ask), 4)
	w := view.Watch()
	w.Subscribe(typeURL, []string{"a"})
	w.SubscribeAll(Collection(typeURL, fmt.Sprintf(glob, 1)))
	check.Equal(t, "unknown names", view.Unknown(typeURL, ask), 2)
	check.Equal(t, "unknown names of another type", view.Unknown(wire.EndpointType, ask), 4)
}
