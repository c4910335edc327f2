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
)

// text returns a resource whose content is a text: the names of clusters, "?" for bytes that cannot be decoded, and
// "on-demand".
func text(typeURL, name, content string) *wire.Resource {
	r, err := wire.NewResource(typeURL, name, content, append([]byte{0x0a, byte(len(name))}, name+content...))
	if err != nil {
		panic(err)
	}
	return r
}

// contentOf is text read back.
func contentOf(r *wire.Resource) string { return string(r.Value()[2+len(r.Name):]) }

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

// A house is the sets of an origin that states clusters and routes, of which changes that break clients are held.
type checkedGroup struct {
	clusters, routes *fakeSet
	group            *Group
	now              time.Time
}

func newCheckedGroup(clusters ...string) *checkedGroup {
	g := NewGroup(Config{HoldTime: time.Hour, ColdWait: 10 * time.Second, Counts: new(Counts), Logger: slog.New(slog.DiscardHandler), Check: checkText})
	h := &checkedGroup{group: g, now: epoch, clusters: newFakeSetIn(g, wire.ClusterType, wire.Wildcard), routes: newFakeSetIn(g, wire.RouteType, "")}
	h.clusters.confirmed, h.routes.confirmed = true, true
	h.cluster(clusters...)
	return h
}

// cluster takes a response with clusters; "-name" removes one, and "name=content" has content.
func (h *checkedGroup) cluster(items ...string) { h.take(h.clusters, items...) }

// route takes a response with route configurations, each written "name=clusters", or "-name" for a removal.
func (h *checkedGroup) route(items ...string) { h.take(h.routes, items...) }

func (h *checkedGroup) take(of *fakeSet, items ...string) {
	u := wire.Update{TypeURL: of.TypeURL}
	for _, item := range items {
		if name, removed := strings.CutPrefix(item, "-"); removed {
			u.Removed = append(u.Removed, name)
			continue
		}
		name, content, _ := strings.Cut(item, "=")
		u.Resources = append(u.Resources, text(of.TypeURL, name, content))
	}
	of.Take(u, h.now)
	h.group.Decide(h.now)
}

// want fails the test unless clients are served this and these changes are held.
func (h *checkedGroup) wantServed(t *testing.T, when, served string, held ...string) {
	t.Helper()
	if got := h.served(); got != served {
		t.Errorf("%s: served %q, want %q", when, got, served)
	}
	var got []string
	for _, hold := range h.group.BreakingHolds() {
		if len(hold.Names) != len(hold.Reasons) || hold.Since.IsZero() {
			t.Errorf("%s: %d names, %d reasons, since %v", when, len(hold.Names), len(hold.Reasons), hold.Since)
		}
		for i, name := range hold.Names {
			got = append(got, name+": "+hold.Reasons[i])
		}
	}
	if !slices.Equal(got, held) {
		t.Errorf("%s: held %q, want %q", when, got, held)
	}
}

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
	lacksB = `names cluster "b", which does not exist`
	isUsed = "served resources name it"
)

// TestB46_AMissingClusterHoldsAnUpdate until the cluster is there, the origin takes the update back, or the resource
// goes.
func TestB46_AMissingClusterHoldsAnUpdate(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(h *checkedGroup)
		want string
		held []string
	}{
		{"nothing else", func(*checkedGroup) {}, "a | r=a", []string{"r: " + lacksB}},
		{"the cluster comes", func(h *checkedGroup) { h.cluster("b") }, "a b | r=a b", nil},
		{"another cluster comes", func(h *checkedGroup) { h.cluster("c") }, "a c | r=a", []string{"r: " + lacksB}},
		{"the origin repeats it", func(h *checkedGroup) { h.route("r=a b") }, "a | r=a", []string{"r: " + lacksB}},
		{"the origin takes it back", func(h *checkedGroup) { h.route("r=a") }, "a | r=a", nil},
		{"the origin corrects it", func(h *checkedGroup) { h.route("r=a a") }, "a | r=a a", nil},
		{"the route is removed", func(h *checkedGroup) { h.route("-r"); h.cluster("b") }, "a b |", nil},
		{"clients fetch clusters on demand", func(h *checkedGroup) { h.route("s=on-demand") }, "a | r=a b s=on-demand", nil},
		{"a stream begins", func(h *checkedGroup) { h.routes.beginStream(h.now, "r"); h.group.Decide(h.now); h.cluster("b") }, "a b | r=a", nil},
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

// TestB46_WhatIsNotHeld: nothing good is served yet, it is no better, or nobody can know.
func TestB46_WhatIsNotHeld(t *testing.T) {
	h := newCheckedGroup("a")
	h.route("r=a b")
	h.wantServed(t, "the first state of a resource", "a | r=a b")
	h.route("r=b")
	h.wantServed(t, "the one before names the same missing cluster", "a | r=b")
	h.route("r=b c")
	h.wantServed(t, "another missing cluster", "a | r=b", `r: names cluster "c", which does not exist`)
	h = newCheckedGroup()
	h.route("r=a")
	h.route("r=b")
	h.wantServed(t, "an origin that states no clusters", " | r=b"[1:])
}

// TestB46_UndecodableBytesAreHeld while the resource before can be decoded.
func TestB46_UndecodableBytesAreHeld(t *testing.T) {
	h := newCheckedGroup("a", "d=?")
	h.cluster("a=?")
	h.wantServed(t, "an update", "a d ? |", "a: not of its type")
	h.cluster("d=? ?")
	h.wantServed(t, "undecodable before", "a d ? ? |", "a: not of its type")
	h.cluster("a=x")
	h.wantServed(t, "corrected", "a x d ? ? |")
}

// TestB46_AClusterThatIsNamedStays until nothing that is served names it, whoever has decided on its removal.
func TestB46_AClusterThatIsNamedStays(t *testing.T) {
	h := newCheckedGroup("a", "b")
	h.route("r=a", "s=b")
	h.cluster("-a")
	h.wantServed(t, "removed", "a b | r=a s=b", "a: "+isUsed)
	h.route("r=c")
	h.wantServed(t, "the update is held, too", "a b | r=a s=b", "a: "+isUsed, `r: names cluster "c", which does not exist`)
	h.cluster("c")
	h.wantServed(t, "both go on", "b c | r=c s=b")
	h.cluster("-b")
	h.cluster("b")
	h.route("s=c")
	h.wantServed(t, "the origin has it again", "b c | r=c s=c")
	h.clusters.Infer(seq("c"), false)
	h.group.Decide(h.now)
	h.wantServed(t, "a removal that was inferred", "b c | r=c s=c", "c: "+isUsed)
	since := h.group.BreakingHolds()[0].Since
	h.now = h.now.Add(time.Minute)
	h.clusters.Infer(seq("c"), false) // as the next list does
	h.group.Decide(h.now)
	h.wantServed(t, "inferred again", "b c | r=c s=c", "c: "+isUsed)
	if again := h.group.BreakingHolds()[0].Since; again != since {
		t.Errorf("inferred again: held since %v, want %v", again, since)
	}
	h.route("-r", "-s")
	h.wantServed(t, "nothing names it", "b |")
}

// TestB46_OperatorsDecide: what they release is served as it is, what they discard waits for another change.
func TestB46_OperatorsDecide(t *testing.T) {
	begun := func() *checkedGroup {
		h := newCheckedGroup("a", "b")
		h.route("r=a")
		h.route("r=a c")
		h.cluster("-a")
		return h
	}
	h := begun()
	h.group.Operate(Command{Do: Release}, h.now)
	h.wantServed(t, "released", "b | r=a c")
	h.route("r=a c")
	h.wantServed(t, "repeated after that", "b | r=a c")

	h = begun()
	h.group.Operate(Command{Do: Discard}, h.now)
	h.wantServed(t, "discarded", "a b | r=a")
	h.route("r=a c")
	h.cluster("c")
	h.wantServed(t, "repeated after that", "a b c | r=a")
	holds := h.group.Operate(Command{}, h.now)
	if len(holds) != 2 || !holds[0].Breaking || !holds[0].Discarded || !holds[1].Breaking || !holds[1].Discarded {
		t.Errorf("holds %+v, want two that are broken and were discarded", holds)
	}
	h.route("r=b")
	h.wantServed(t, "another update", "a b c | r=b")
	h.group.Operate(Command{Do: Release, Discarded: true}, h.now)
	h.wantServed(t, "released after all", "b c | r=b")
}

// TestB46_ARemovedResourceHasNoUpdate: an error that says that the resource does not exist ends the hold of its update.
func TestB46_ARemovedResourceHasNoUpdate(t *testing.T) {
	h := newCheckedGroup("a")
	h.route("r=a")
	h.route("r=a b")
	h.routes.Take(wire.Update{TypeURL: wire.RouteType, Errors: []*wire.ResourceError{wire.NewResourceError("r", codes.NotFound, "gone")}}, h.now)
	if n := len(h.routes.applied.Errors); n != 1 {
		t.Errorf("%d errors were applied, want that of r", n)
	}
}

// TestB46_ADiscardedUpdateIsInDoubt on the next stream like anything else: the origin may have removed the resource.
func TestB46_ADiscardedUpdateIsInDoubt(t *testing.T) {
	h := newCheckedGroup("a")
	h.route("r=a")
	h.route("r=a b")
	h.group.Operate(Command{Do: Discard}, h.now)
	h.routes.beginStream(h.now, "r")
	if h.routes.Covered() {
		t.Error("the origin counts as having mentioned r on the new stream")
	}
}

// TestB46_EndpointsCheckNothingAgain: while a change is held, responses with endpoints have no other resource checked.
func TestB46_EndpointsCheckNothingAgain(t *testing.T) {
	h, checks := newCheckedGroup("a"), 0
	h.group.cfg.Check = func(r *wire.Resource) Facts {
		checks++
		return checkText(r)
	}
	endpoints := newFakeSetIn(h.group, wire.EndpointType, "")
	h.route("r=a")
	h.cluster("-a")
	h.wantServed(t, "removed", "a | r=a", "a: "+isUsed)
	before := checks
	h.take(endpoints, "e=")
	h.take(endpoints, "f=")
	if checks != before {
		t.Errorf("new endpoints had %d resources checked, want none", checks-before)
	}
	h.route("-r")
	h.wantServed(t, "nothing names the cluster", " |"[1:])
}

// TestB46_LargeRemovalsAreCountedApart: removals that wait for routes do not make others a large removal.
func TestB46_LargeRemovalsAreCountedApart(t *testing.T) {
	names := numbers("c", 100)
	h := newCheckedGroup(names...)
	for _, name := range names[:40] {
		h.route("r" + name + "=" + name)
		h.cluster("-" + name)
	}
	h.clusters.Infer(seq(names[99]), false)
	h.group.Decide(h.now)
	if n := len(h.clusters.resources); n != 99 || h.group.HeldRemovals() > 0 {
		t.Errorf("%d clusters are served and %d removals are suspect, want 99 and none", n, h.group.HeldRemovals())
	}
}

// TestB46_AnotherServersUpdateIsHeld: what stays served is of the server before, and its version means nothing to the
// new one.
func TestB46_AnotherServersUpdateIsHeld(t *testing.T) {
	h := newCheckedGroup("a")
	h.route("r=a", "s=a")
	h.routes.NoteOriginChange()
	h.route("r=b", "s=a a")
	if got := slices.Sorted(maps.Keys(h.routes.Foreign())); !slices.Equal(got, []string{"r"}) {
		t.Errorf("of another origin: %q, want r", got)
	}
	h.cluster("b")
	h.route("r=b b")
	if n := len(h.routes.Foreign()); n > 0 {
		t.Errorf("%d resources are of another origin, want none", n)
	}
}

// TestB46_HoldingConverges: whatever an origin sends in whatever order, no resource that worked ever names a missing
// cluster, and once the origin's state is consistent, all of it is served.
func TestB46_HoldingConverges(t *testing.T) {
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
		for _, content := range routes { // the origin becomes consistent
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
		if got := h.served(); got != want || len(h.group.BreakingHolds()) > 0 {
			t.Fatalf("served %q, want %q; held %v", got, want, h.group.BreakingHolds())
		}
	})
}
