package reconcile

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestMain runs each property with 100 random inputs, times -rounds.
func TestMain(m *testing.M) { check.MainOfRapid(m, 100) }

// textResource returns a resource whose content is words: the names of clusters, "?" for bytes that cannot be decoded,
// and "on-demand".
func textResource(typeURL, name, content string) *wire.Resource {
	r, err := wire.NewResource(typeURL, name, content, append([]byte{0x0a, byte(len(name))}, name+content...))
	if err != nil {
		panic(err)
	}
	return r
}

// contentOf returns the words of a textResource.
func contentOf(r *wire.Resource) string { return string(r.Value()[2+len(r.Name):]) }

// checkText is the Checker of textResource.
func checkText(r *wire.Resource) (facts Facts) {
	words := strings.Fields(contentOf(r))
	if slices.Contains(words, "?") {
		return Facts{Undecodable: "not of its type"}
	}
	facts.OnDemand = slices.Contains(words, "on-demand")
	words = slices.DeleteFunc(words, func(w string) bool { return w == "on-demand" })
	if r.TypeURL != wire.ClusterType && len(words) > 0 {
		facts.Clusters = slices.Values(words)
	}
	return facts
}

// A checkedGroup is the sets of an origin that states clusters and routes. Changes that would break clients are held.
type checkedGroup struct {
	clusters, routes *fakeSet
	group            *Group
	now              time.Time
}

func newCheckedGroup(clusters ...string) *checkedGroup {
	g := NewGroup(Config{
		HoldTime: time.Hour, ColdWait: 10 * time.Second, Check: checkText,
		Counts: new(Counts), Logger: slog.New(slog.DiscardHandler),
	})
	h := &checkedGroup{
		group: g, now: epoch,
		clusters: newFakeSetIn(g, wire.ClusterType, wire.Wildcard), routes: newFakeSetIn(g, wire.RouteType, ""),
	}
	h.clusters.confirmed, h.routes.confirmed = true, true
	h.cluster(clusters...)
	return h
}

// cluster applies a response with clusters, each written "name", "name=content", or "-name" for a removal.
func (h *checkedGroup) cluster(items ...string) { h.take(h.clusters, items...) }

// route applies a response with route configurations, each written "name=clusters", or "-name" for a removal.
func (h *checkedGroup) route(items ...string) { h.take(h.routes, items...) }

func (h *checkedGroup) take(of *fakeSet, items ...string) {
	u := wire.Update{TypeURL: of.TypeURL}
	for _, item := range items {
		if name, removed := strings.CutPrefix(item, "-"); removed {
			u.Removed = append(u.Removed, name)
			continue
		}
		name, content, _ := strings.Cut(item, "=")
		u.Resources = append(u.Resources, textResource(of.TypeURL, name, content))
	}
	of.Take(u, h.now)
	h.group.Decide(h.now)
}

// holds returns the changes that would break clients.
func (h *checkedGroup) holds() []Hold { return h.group.Operate(Command{Reason: Breaking}, h.now) }

// wantServed fails the test unless the group serves these resources, and holds these changes.
func (h *checkedGroup) wantServed(t *testing.T, when, served string, held ...string) {
	t.Helper()
	if got := h.served(); got != served {
		t.Errorf("%s: served %q, want %q", when, got, served)
	}
	var got []string
	for _, hold := range h.holds() {
		if len(hold.Names) != len(hold.Details) || hold.Since.IsZero() {
			t.Errorf("%s: %d names, %d reasons, since %v", when, len(hold.Names), len(hold.Details), hold.Since)
		}
		for i, name := range hold.Names {
			got = append(got, name+": "+hold.Details[i])
		}
	}
	if !slices.Equal(got, held) {
		t.Errorf("%s: held %q, want %q", when, got, held)
	}
}

// served returns the served resources, such as "a b | r=a": clusters before the bar, routes after it.
func (h *checkedGroup) served() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(h.clusters.resources)) {
		all = append(all, strings.TrimSpace(name+" "+contentOf(h.clusters.resources[name])))
	}
	all = append(all, "|")
	for _, name := range slices.Sorted(maps.Keys(h.routes.resources)) {
		all = append(all, name+"="+contentOf(h.routes.resources[name]))
	}
	return strings.Join(all, " ")
}

const (
	missingB = `names cluster "b", which does not exist`
	inUse    = "served resources name it"
)

// TestB46_UpdateNamesMissingCluster checks that such an update is held until the cluster exists, the origin replaces
// the update, or the resource is removed.
func TestB46_UpdateNamesMissingCluster(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(h *checkedGroup)
		want string
		held []string
	}{
		{"no further response", func(*checkedGroup) {}, "a | r=a", []string{"r: " + missingB}},
		{"the cluster is added", func(h *checkedGroup) { h.cluster("b") }, "a b | r=a b", nil},
		{"another cluster is added", func(h *checkedGroup) { h.cluster("c") }, "a c | r=a", []string{"r: " + missingB}},
		{"the origin repeats the update", func(h *checkedGroup) { h.route("r=a b") }, "a | r=a", []string{"r: " + missingB}},
		{"the origin reverts the update", func(h *checkedGroup) { h.route("r=a") }, "a | r=a", nil},
		{"the origin corrects the update", func(h *checkedGroup) { h.route("r=a a") }, "a | r=a a", nil},
		{"the route is removed", func(h *checkedGroup) { h.route("-r"); h.cluster("b") }, "a b |", nil},
		{"clients fetch clusters on demand", func(h *checkedGroup) { h.route("s=on-demand") }, "a | r=a b s=on-demand", nil},
		{"a new stream starts", func(h *checkedGroup) {
			h.routes.beginStream(h.now, "r")
			h.group.Decide(h.now)
			h.cluster("b")
		}, "a b | r=a", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newCheckedGroup("a")
			h.route("r=a")
			h.route("r=a b")
			tt.then(h)
			h.wantServed(t, tt.name, tt.want, tt.held...)
		})
	}
}

// TestB46_UpdateIsNotHeld checks updates that are served although a cluster is missing. They are the first version of a
// resource, an update of a resource with the same defect, and one from an origin that states no clusters.
func TestB46_UpdateIsNotHeld(t *testing.T) {
	h := newCheckedGroup("a")
	h.route("r=a b")
	h.wantServed(t, "first version of the resource", "a | r=a b")
	h.route("r=b")
	h.wantServed(t, "the served version names the same missing cluster", "a | r=b")
	h.route("r=b c")
	h.wantServed(t, "another missing cluster", "a | r=b", `r: names cluster "c", which does not exist`)
	h = newCheckedGroup()
	h.route("r=a")
	h.route("r=b")
	h.wantServed(t, "origin without clusters", " | r=b"[1:])
}

// TestB46_UndecodableUpdateIsHeld checks that it is held if the served version can be decoded.
func TestB46_UndecodableUpdateIsHeld(t *testing.T) {
	h := newCheckedGroup("a", "d=?")
	h.cluster("a=?")
	h.wantServed(t, "decodable version is served", "a d ? |", "a: not of its type")
	h.cluster("d=? ?")
	h.wantServed(t, "served version is undecodable, too", "a d ? ? |", "a: not of its type")
	h.cluster("a=x")
	h.wantServed(t, "corrected", "a x d ? ? |")
}

// TestB46_NamedClusterStays checks that an explicit or inferred removal of a cluster is held while a served resource
// names the cluster.
func TestB46_NamedClusterStays(t *testing.T) {
	h := newCheckedGroup("a", "b")
	h.route("r=a", "s=b")
	h.cluster("-a")
	h.wantServed(t, "removed", "a b | r=a s=b", "a: "+inUse)
	h.route("r=c")
	h.wantServed(t, "route update is held, too", "a b | r=a s=b",
		"a: "+inUse, `r: names cluster "c", which does not exist`)
	h.cluster("c")
	h.wantServed(t, "both are applied", "b c | r=c s=b")
	h.cluster("-b")
	h.cluster("b")
	h.route("s=c")
	h.wantServed(t, "origin adds the cluster again", "b c | r=c s=c")
	h.clusters.Infer(seq("c"), false, epoch)
	h.group.Decide(h.now)
	h.wantServed(t, "inferred removal", "b c | r=c s=c", "c: "+inUse)
	since := h.holds()[0].Since
	h.now = h.now.Add(time.Minute)
	h.clusters.Infer(seq("c"), false, epoch) // as the next list of a SotW origin does
	h.group.Decide(h.now)
	h.wantServed(t, "inferred again", "b c | r=c s=c", "c: "+inUse)
	if again := h.holds()[0].Since; again != since {
		t.Errorf("inferred again: held since %v, want %v", again, since)
	}
	h.route("-r", "-s")
	h.wantServed(t, "no route names the cluster", "b |")
}

// TestB46_OperatorDecision checks that passed changes are served, and that dropped ones stay dropped until the
// origin sends another change.
func TestB46_OperatorDecision(t *testing.T) {
	withHolds := func() *checkedGroup {
		h := newCheckedGroup("a", "b")
		h.route("r=a")
		h.route("r=a c")
		h.cluster("-a")
		return h
	}
	h := withHolds()
	h.group.Operate(Command{Do: Pass}, h.now)
	h.wantServed(t, "passed", "b | r=a c")
	if n := h.group.cfg.Counts.AppliedTotal.Load(); n != 1 {
		t.Errorf("passed: %d removals applied, want 1: an update is no removal", n)
	}
	h.route("r=a c")
	h.wantServed(t, "origin repeats the change", "b | r=a c")

	h = withHolds()
	h.group.Operate(Command{Do: Drop}, h.now)
	h.wantServed(t, "dropped", "a b | r=a")
	if n := h.group.cfg.Counts.DroppedTotal.Load(); n != 1 {
		t.Errorf("dropped: %d removals dropped, want 1: an update is no removal", n)
	}
	h.route("r=a c")
	h.cluster("c")
	h.wantServed(t, "origin repeats the change", "a b c | r=a")
	holds := h.group.Operate(Command{}, h.now)
	if len(holds) != 2 || holds[0].Details == nil || holds[0].Reason != Dropped || holds[1].Details == nil || holds[1].Reason != Dropped {
		t.Errorf("holds %+v, want two that are breaking and dropped", holds)
	}
	h.route("r=b")
	h.wantServed(t, "another update", "a b c | r=b")
	h.group.Operate(Command{Do: Pass, Reason: Dropped}, h.now)
	h.wantServed(t, "dropped change passed", "b c | r=b")
}

// TestB46_RemovalEndsHeldUpdate checks that a NotFound error of a resource is applied although an update is held.
func TestB46_RemovalEndsHeldUpdate(t *testing.T) {
	h := newCheckedGroup("a")
	h.route("r=a")
	h.route("r=a b")
	notFound := wire.NewResourceError("r", codes.NotFound, "removed")
	h.routes.Take(wire.Update{TypeURL: wire.RouteType, Errors: []*wire.ResourceError{notFound}}, h.now)
	if n := len(h.routes.applied.Errors); n != 1 {
		t.Errorf("%d errors applied, want that of r", n)
	}
}

// TestB46_DroppedUpdateIsUnmentioned checks that a resource with a dropped update is unmentioned on a new stream:
// the origin may have removed the resource.
func TestB46_DroppedUpdateIsUnmentioned(t *testing.T) {
	h := newCheckedGroup("a")
	h.route("r=a")
	h.route("r=a b")
	h.group.Operate(Command{Do: Drop}, h.now)
	h.routes.beginStream(h.now, "r")
	if h.routes.Covered() {
		t.Error("r counts as mentioned on the new stream")
	}
}

// TestB46_EndpointsCauseNoCheck checks that endpoints, which change often, cause no check of held changes.
func TestB46_EndpointsCauseNoCheck(t *testing.T) {
	h, checks := newCheckedGroup("a"), 0
	h.group.cfg.Check = func(r *wire.Resource) Facts {
		checks++
		return checkText(r)
	}
	endpoints := newFakeSetIn(h.group, wire.EndpointType, "")
	h.route("r=a")
	h.cluster("-a")
	h.wantServed(t, "removed", "a | r=a", "a: "+inUse)
	before := checks
	h.take(endpoints, "e=")
	h.take(endpoints, "f=")
	if checks != before {
		t.Errorf("endpoints caused %d checks of resources, want none", checks-before)
	}
	h.route("-r")
	h.wantServed(t, "no route names the cluster", " |"[1:])
}

// TestB46_BreakingRemovalsAreNotLarge checks that held removals of named clusters do not count towards a large removal.
func TestB46_BreakingRemovalsAreNotLarge(t *testing.T) {
	names := numbers("c", 100)
	h := newCheckedGroup(names...)
	for _, name := range names[:40] {
		h.route("r" + name + "=" + name)
		h.cluster("-" + name)
	}
	h.clusters.Infer(seq(names[99]), false, epoch)
	h.group.Decide(h.now)
	if n := len(h.clusters.resources); n != 99 || heldRemovals(h.group) > 0 {
		t.Errorf("%d clusters served and %d removals held, want 99 and none", n, heldRemovals(h.group))
	}
}

// TestB46_HeldUpdateOfAnotherOrigin checks that the served resource counts as foreign while its update is held: its
// version means nothing to the connected origin.
func TestB46_HeldUpdateOfAnotherOrigin(t *testing.T) {
	h := newCheckedGroup("a")
	h.route("r=a", "s=a")
	h.routes.NoteOriginChange()
	h.route("r=b", "s=a a")
	if got := slices.Sorted(maps.Keys(h.routes.Foreign())); !slices.Equal(got, []string{"r"}) {
		t.Errorf("foreign names %q, want r", got)
	}
	h.cluster("b")
	h.route("r=b b")
	if n := len(h.routes.Foreign()); n > 0 {
		t.Errorf("%d foreign names, want none", n)
	}
}

// TestB46_RandomHoldingConverges sends random responses. No served route may name a missing cluster. Once the state of the
// origin is consistent, the group must serve all of it.
func TestB46_RandomHoldingConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newCheckedGroup("a", "b", "c", "d")
		clusters, routes := map[string]bool{"a": true, "b": true, "c": true, "d": true}, make(map[string]string)
		for _, name := range []string{"r", "s"} {
			routes[name] = "a"
			h.route(name + "=a")
		}
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		for i := range steps {
			switch of := name.Draw(t, "cluster"); rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				delete(clusters, of)
				h.cluster("-" + of)
			case 1:
				clusters[of] = true
				h.cluster(of)
			default:
				r := rapid.SampledFrom([]string{"r", "s"}).Draw(t, "route")
				routes[r] = of + " " + name.Draw(t, "other")
				h.route(r + "=" + routes[r])
			}
			for r, served := range h.routes.resources {
				for _, c := range strings.Fields(contentOf(served)) {
					if h.clusters.resources[c] == nil {
						t.Fatalf("step %d: route %s names cluster %s, which is not served: %s", i, r, c, h.served())
					}
				}
			}
			h.now = h.now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
		}
		for _, content := range routes { // make the state of the origin consistent
			for _, c := range strings.Fields(content) {
				if !clusters[c] {
					clusters[c] = true
					h.cluster(c)
				}
			}
		}
		want := strings.Join(slices.Sorted(maps.Keys(clusters)), " ") + " |"
		for _, r := range []string{"r", "s"} {
			want += " " + r + "=" + routes[r]
		}
		if got := h.served(); got != want || len(h.holds()) > 0 {
			t.Fatalf("served %q, want %q; held %v", got, want, h.holds())
		}
	})
}
