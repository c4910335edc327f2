package reconcile

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// smallLimit is what may grow in these tests: to the double, or by less than 100 bytes and 3 names.
var smallLimit = GrowthLimit{Factor: 2, Bytes: 100, Names: 3}

// TestB51_GrowthLimit: growth is abnormal if it is both by more than the factor and large.
func TestB51_GrowthLimit(t *testing.T) {
	limit := NewGrowthLimit(10)
	for _, of := range []struct {
		what     string
		abnormal bool
		want     bool
	}{
		{"a resource of more than ten times the size", limit.resource(200_000, 2_000_001), true},
		{"a resource of ten times the size", limit.resource(200_000, 2_000_000), false},
		{"a resource that gains a MiB", limit.resource(100, 100+1<<20), true},
		{"a resource that gains less", limit.resource(100, 99+1<<20), false},
		{"an empty resource that gains a MiB", limit.resource(0, 1<<20), true},
		{"a smaller resource", limit.resource(2_000_001, 200_000), false},
		{"a set of more than ten times the names", limit.set(200, 1801), true},
		{"a set of ten times the names", limit.set(200, 1800), false},
		{"a set that gains 1,000 names", limit.set(1, 1000), true},
		{"a set that gains less", limit.set(1, 999), false},
		{"a set without names", limit.set(0, 1_000_000), false},
		{"without a limit", NewGrowthLimit(0).resource(1, 1<<30) || NewGrowthLimit(0).set(1, 1<<30), false},
	} {
		check.Equal(t, of.what, of.abnormal, of.want)
	}
}

// newGrowing returns a complete set of small resources, whose growth is limited.
func newGrowing(typeURL string, names ...string) *fakeSet {
	f := newFakeSet(typeURL, slog.DiscardHandler)
	f.group.cfg.Growth, f.confirmed, f.known = smallLimit, true, true
	for _, name := range names {
		f.resources[name] = textResource(typeURL, name, "1")
	}
	return f
}

// put applies a response: "name" is a small resource, "name=n" one with n bytes, and "-name" a removal.
func (f *fakeSet) put(now time.Time, items ...string) {
	u := wire.Update{TypeURL: f.TypeURL}
	for _, item := range items {
		var size int
		name, text, sized := strings.Cut(item, "=")
		switch name, removed := strings.CutPrefix(name, "-"); {
		case removed:
			u.Removed = append(u.Removed, name)
			continue
		case sized:
			check.Must(fmt.Sscan(text, &size))
		}
		u.Resources = append(u.Resources, textResource(f.TypeURL, name, strings.Repeat("x", max(size, 1))))
	}
	f.Take(u, now)
	f.group.Decide(now)
}

// wantGrowth fails the test unless these changes wait because they grow, or were dropped, with a deadline: each as its kind and names.
func (f *fakeSet) wantGrowth(t *testing.T, when string, now time.Time, want ...string) {
	t.Helper()
	got, waiting := []string{}, 0
	for _, h := range f.group.Operate(Command{}, now) {
		if h.Reason == Growth {
			waiting += len(h.Names)
		}
		if len(h.Details) != len(h.Names) || h.Reason == Growth && h.Since.IsZero() {
			t.Errorf("%s: %d details of %d names, since %v", when, len(h.Details), len(h.Names), h.Since)
		}
		got = append(got, strings.Join(append([]string{string(h.Reason), string(h.Kind)}, h.Names...), " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: holds %q, want %q", when, got, want)
	}
	check.Equal(t, when+": number that waits", f.group.cfg.Counts.Pending()[Growth], waiting)
}

// size returns the bytes of the content of a served resource.
func (f *fakeSet) size(name string) int { return len(contentOf(f.resources[name])) }

// TestB51_LargerResourcesWait until their time is over. A newer state replaces what waits, and ends the wait if it is normal.
func TestB51_LargerResourcesWait(t *testing.T) {
	f := newGrowing(wire.ClusterType, "a", "b")
	f.put(epoch, "a=120", "b=20")
	f.wantGrowth(t, "stated", epoch, "growth change a")
	check.Equal(t, "size of what is served", f.size("a"), 1)
	check.Equal(t, "size of what grows normally", f.size("b"), 20)

	now := epoch.Add(30 * time.Minute)
	f.put(now, "a=125")
	f.put(now, "b=21")
	f.wantGrowth(t, "stated again", now, "growth change a")
	h := f.group.Operate(Command{Reason: Growth}, now)[0]
	check.Equal(t, "deadline", h.Until, epoch.Add(time.Hour))
	check.Equal(t, "detail", h.Details[0], "grows from 4 to 128 bytes")
	check.Equal(t, "next decision", f.group.Decide(now), now.Add(alarmInterval))
	f.group.Decide(epoch.Add(time.Hour - 1))
	check.Equal(t, "size before the deadline", f.size("a"), 1)
	f.group.Decide(epoch.Add(time.Hour))
	check.Equal(t, "size after the deadline", f.size("a"), 125)
	f.wantGrowth(t, "after the deadline", now)

	f.put(now, "a=500")
	f.put(now, "a=126")
	f.wantGrowth(t, "normal again", now)
	check.Equal(t, "size after a normal state", f.size("a"), 126)

	f.put(now, "a=500")
	f.put(now, "-a")
	f.wantGrowth(t, "removed", now)
	f.wantNames(t, "removed", "b")
}

// TestB51_OperatorsDecideAboutGrowth: what is dropped stays dropped until the origin states something else.
func TestB51_OperatorsDecideAboutGrowth(t *testing.T) {
	f := newGrowing(wire.ClusterType, "a", "b")
	f.put(epoch, "a=200", "c", "d", "e")
	f.wantGrowth(t, "stated", epoch, "growth add c d e", "growth change a")
	f.group.Operate(Command{Do: Pass, Name: "d"}, epoch)
	f.wantGrowth(t, "one of few passed", epoch, "growth change a") // the others are no longer too many
	f.wantNames(t, "one of few passed", "a b c d e")

	f.put(epoch, "f0", "f1", "f2", "f3", "f4", "f5")
	f.group.Operate(Command{Do: Drop, Reason: Growth, By: "ops"}, epoch)
	f.wantGrowth(t, "dropped", epoch, "dropped add f0 f1 f2 f3 f4 f5", "dropped change a")
	f.put(epoch.Add(2*time.Hour), "a=200", "f0", "f1", "f2", "f3", "f4", "f5", "g")
	f.wantGrowth(t, "stated again after a drop", epoch, "dropped add f0 f1 f2 f3 f4 f5", "dropped change a")
	f.wantNames(t, "stated again after a drop", "a b c d e g")
	f.put(epoch, "a=300", "f0=9", "-f5")
	f.wantGrowth(t, "something else", epoch, "dropped add f1 f2 f3 f4", "growth change a")
	f.wantNames(t, "something else", "a b c d e f0 g")
	f.group.Operate(Command{Do: Pass, Reason: Dropped}, epoch)
	f.group.Operate(Command{Do: Pass, Reason: Growth}, epoch)
	f.wantGrowth(t, "all passed", epoch)
	f.wantNames(t, "all passed", "a b c d e f0 f1 f2 f3 f4 g")
	check.Equal(t, "size", f.size("a"), 300)
}

// TestB51_TooManyAdditionsWait, also those that follow while they do, until they are no longer too many, or the time of the first
// one is over.
func TestB51_TooManyAdditionsWait(t *testing.T) {
	f := newGrowing(wire.ClusterType, "a")
	f.put(epoch, "b")
	f.put(epoch, "c")
	f.wantNames(t, "small responses in a row", "a b c")

	f.put(epoch, "d", "e", "f", "g", "a=9", "-b")
	f.wantGrowth(t, "many", epoch, "growth add d e f g", "growth remove b")
	f.wantNames(t, "many", "a b c")
	check.Equal(t, "changes beside them", f.size("a"), 9)
	check.Equal(t, "awaited", strings.Join(slices.Sorted(maps.Keys(f.awaiting)), " "), "d e f g")
	later := epoch.Add(time.Minute)
	f.put(later, "h", "d=9")
	f.wantGrowth(t, "one more", later, "growth add d e f g h", "growth remove b")
	f.put(later, "-e", "-f", "-g")
	f.wantGrowth(t, "no longer many", later)
	f.wantNames(t, "no longer many", "a c d h")
	check.Equal(t, "size of the newest state", f.size("d"), 9)
	check.Equal(t, "awaited at the end", len(f.awaiting), 2) // what is applied ends with that
	check.Equal(t, "awaited by the set", len(f.awaited), 0)

	f.put(epoch, "i", "j", "k", "l", "m")
	f.put(epoch.Add(59*time.Minute), "n")
	f.group.Decide(epoch.Add(time.Hour))
	f.wantGrowth(t, "after the deadline of the first", epoch)
	f.wantNames(t, "after the deadline of the first", "a c d h i j k l m n")
}

// TestB51_ListsOmitWhatWaits: an addition that a complete list omits no longer waits. An error says the same of a name.
func TestB51_ListsOmitWhatWaits(t *testing.T) {
	list := func(f *fakeSet, names ...string) {
		u := wire.Update{TypeURL: f.TypeURL, Complete: true}
		for _, name := range names {
			u.Resources = append(u.Resources, textResource(f.TypeURL, name, "1"))
		}
		f.Take(u, epoch)
		f.group.Decide(epoch)
	}
	f := newGrowing(wire.ClusterType, "a", "b")
	list(f, "a", "b", "c", "d", "e", "f")
	f.wantGrowth(t, "listed", epoch, "growth add c d e f")
	list(f, "a", "b", "c", "d", "e", "f", "g")
	f.wantGrowth(t, "one more", epoch, "growth add c d e f g")
	gone := wire.NewResourceError("g", codes.NotFound, "gone")
	f.Take(wire.Update{TypeURL: f.TypeURL, Errors: []*wire.ResourceError{gone}}, epoch)
	f.group.Decide(epoch)
	f.wantGrowth(t, "one does not exist", epoch, "growth add c d e f")
	list(f, "a", "b", "e")
	f.wantGrowth(t, "omitted", epoch)
	f.wantNames(t, "omitted", "a b e")
}

// TestB51_FirstStatesNeverWait, nor what is urgent or may not be kept.
func TestB51_FirstStatesNeverWait(t *testing.T) {
	many := []string{"a=500", "b", "c", "d", "e", "f"}
	grows := func(typeURL, pattern string, prepare func(f *fakeSet)) bool {
		f := newFakeSetIn(newTestGroup(slog.DiscardHandler), typeURL, pattern)
		f.group.cfg.Growth, f.confirmed, f.known = smallLimit, true, true
		f.resources["a"] = textResource(typeURL, "a", "1")
		prepare(f)
		f.put(epoch, many...)
		return f.group.HasRemovals()
	}
	nothing := func(*fakeSet) {}
	unknown := "type.googleapis.com/acme.Thing"
	check.Equal(t, "clusters", grows(wire.ClusterType, wire.Wildcard, nothing), true)
	check.Equal(t, "listeners", grows(wire.ListenerType, wire.Wildcard, nothing), true)
	check.Equal(t, "a resource by name", grows(wire.RouteType, "", nothing), true)
	check.Equal(t, "endpoints", grows(wire.EndpointType, wire.Wildcard, nothing), false)
	check.Equal(t, "an unknown type", grows(unknown, wire.Wildcard, nothing), false)
	check.Equal(t, "Secrets", grows(wire.SecretType, "", nothing), false)
	check.Equal(t, "without a limit", grows(wire.ClusterType, wire.Wildcard, func(f *fakeSet) { f.group.cfg.Growth = GrowthLimit{} }), false)
	check.Equal(t, "an empty set", grows(wire.ClusterType, wire.Wildcard, func(f *fakeSet) { clear(f.resources) }), false)
	check.Equal(t, "content that is not known", grows(wire.ClusterType, "", func(f *fakeSet) {
		f.resources["a"] = f.resources["a"].DropContent()
	}), false)

	f := newGrowing(wire.ClusterType, "a")
	f.known = false
	f.put(epoch, many...)
	f.wantGrowth(t, "a set that was never complete", epoch, "growth change a")
	f.wantNames(t, "a set that was never complete", "a b c d e f")

	f = newFakeSetIn(newTestGroup(slog.DiscardHandler), wire.ClusterType, "")
	f.group.cfg.Growth, f.confirmed, f.known = smallLimit, true, true
	f.resources["a"] = textResource(wire.ClusterType, "a", "1")
	f.put(epoch, many...)
	f.wantNames(t, "names of clients", "a b c d e f")
	delete(f.resources, "a")
	f.group.Decide(epoch)
	f.wantGrowth(t, "a name that no client wants any longer", epoch)

	for what, keep := range map[string]func(r *wire.Resource){
		"TTL":         func(r *wire.Resource) { r.TTL = time.Minute },
		"no cache":    func(r *wire.Resource) { r.DoNotCache = true },
		"constraints": func(r *wire.Resource) { r.Constraints = []byte{1} },
	} {
		f := newGrowing(wire.ClusterType, "a")
		f.put(epoch, "a=500")
		r := textResource(wire.ClusterType, "a", strings.Repeat("y", 600))
		keep(r)
		f.take(epoch, []*wire.Resource{r})
		f.group.Decide(epoch)
		f.wantGrowth(t, what, epoch)
		check.Equal(t, what+": size", f.size("a"), 600)
	}
}

// TestB51_GrowthOutlivesStreams: what the origin states again has waited since it stated it first. What it states no longer is
// forgotten once the set is complete, and nothing passes meanwhile.
func TestB51_GrowthOutlivesStreams(t *testing.T) {
	f := newGrowing(wire.ClusterType, "a", "b")
	f.put(epoch, "a=200", "b=200", "c", "d", "e")
	f.wantGrowth(t, "stated", epoch, "growth add c d e", "growth change a b")
	f.confirmed = false
	f.End(epoch)
	late := epoch.Add(2 * time.Hour)
	f.group.Decide(late)
	f.wantGrowth(t, "without a stream", late, "growth add c d e", "growth change a b")
	check.Equal(t, "deadline without a stream", f.group.Operate(Command{}, late)[0].Until, time.Time{})

	f.beginStream(epoch.Add(30*time.Minute), "a", "b")
	f.confirmed = true
	f.put(epoch.Add(40*time.Minute), "a=200", "c", "d", "e")
	f.wantGrowth(t, "stated again", epoch, "growth add c d e", "growth change a")
	check.Equal(t, "deadline", f.group.Operate(Command{}, epoch)[0].Until, epoch.Add(time.Hour))
	f.wantNames(t, "stated again", "a b")
	f.group.Decide(epoch.Add(time.Hour))
	f.wantNames(t, "at the deadline", "a b c d e")
	check.Equal(t, "size of what it states no longer", f.size("b"), 1)
}

// TestB51_UnitsStayWhole: the removal of a listener waits if the listener that replaces it on its address grows, and so does what
// moves to the address of a growing one.
func TestB51_UnitsStayWhole(t *testing.T) {
	grown := func(name string, port int) *wire.Resource {
		l := relaytest.ListenerAt(name, "routes", fmt.Sprint("127.0.0.1:", port))
		l.StatPrefix = strings.Repeat("x", 1000)
		return check.Must(wire.NewResource(wire.ListenerType, name, "2", check.Must(proto.Marshal(l))))
	}
	start := func(listeners ...string) (*fakeSet, time.Time) {
		f, now := newListeners(listeners...)
		f.group.cfg.Growth, f.known = smallLimit, true
		f.take(now, nil)
		return f, now
	}
	end := func(f *fakeSet, now time.Time) {
		f.run(now, time.Hour)
		if n := f.group.cfg.Counts.Pending(); len(n) > 0 {
			t.Errorf("%v still wait after an hour", n)
		}
	}
	f, now := start("a:80", "b:81")
	f.take(now, []*wire.Resource{grown("b", 80)}, "a")
	f.run(now, time.Minute)
	f.wantNames(t, "moved to the address of another", "a b")
	check.Equal(t, "reason of the removal", f.group.Operate(Command{Name: "a"}, now)[0].Reason, Replacement)
	f.group.Operate(Command{Do: Pass, Reason: Growth}, now)
	f.wantNames(t, "passed", "b")
	end(f, now)

	f, now = start("a:80", "b:81")
	f.take(now, []*wire.Resource{grown("a", 82), listenerResource("c", 80, 1)})
	f.run(now, 30*time.Minute)
	f.wantNames(t, "moved away", "a b")
	f.run(now, time.Hour)
	f.wantNames(t, "moved away, an hour later", "a b c")
	end(f, now)

	f, now = start("a:80", "b:81")
	f.take(now, []*wire.Resource{listenerResource("c", 80, 1), listenerResource("d", 83, 1), listenerResource("e", 84, 1), listenerResource("f", 85, 1)}, "a")
	f.run(now, time.Minute)
	f.wantNames(t, "too many, of which one replaces another", "a b")
	f.group.Operate(Command{Do: Drop, Reason: Growth}, now)
	f.wantNames(t, "too many, dropped", "a b")
}

// newRouting returns complete sets of clusters and of routes by name, whose growth is limited.
func newRouting() (g *Group, clusters, routes *fakeSet) {
	g = newTestGroup(slog.DiscardHandler)
	g.cfg.Growth = smallLimit
	clusters, routes = newFakeSetIn(g, wire.ClusterType, wire.Wildcard), newFakeSetIn(g, wire.RouteType, "")
	for _, f := range []*fakeSet{clusters, routes} {
		f.confirmed, f.known = true, true
	}
	return g, clusters, routes
}

func cluster(name string) *wire.Resource {
	return check.Must(wire.NewResource(wire.ClusterType, name, "1", check.Must(proto.Marshal(relaytest.Cluster(name)))))
}

// route returns a route configuration that names a cluster, which is also its version.
func route(name, to string) *wire.Resource {
	body := check.Must(proto.Marshal(relaytest.Route(name, []string{name}, to)))
	return check.Must(wire.NewResource(wire.RouteType, name, to, body))
}

// TestB51_WhatNamesAnAdditionWaits: a route that newly names a cluster that waits, waits with it, and the cluster that it names until
// then stays. A first state does not wait.
func TestB51_WhatNamesAnAdditionWaits(t *testing.T) {
	g, clusters, routes := newRouting()
	take := func(f *fakeSet, now time.Time, resources []*wire.Resource, removed ...string) {
		f.take(now, resources, removed...)
		g.Decide(now)
	}
	want := func(when, all, named string, holds ...string) {
		t.Helper()
		clusters.wantNames(t, when, all)
		var versions []string
		for _, name := range slices.Sorted(routes.Names()) {
			versions = append(versions, name+"="+routes.resources[name].OriginVersion)
		}
		check.Equal(t, when+": routes", strings.Join(versions, " "), named)
		clusters.wantGrowth(t, when, epoch, holds...)
	}
	take(clusters, epoch, []*wire.Resource{cluster("old"), cluster("other")})
	take(routes, epoch, []*wire.Resource{route("r", "old"), route("s", "old")})
	take(clusters, epoch, []*wire.Resource{cluster("new0"), cluster("new1"), cluster("new2")}, "old")
	want("clusters", "old other", "r=old s=old", "growth add new0 new1 new2", "growth remove old")
	take(routes, epoch, []*wire.Resource{route("r", "new1"), route("s", "other"), route("t", "new2")})
	want("routes", "old other", "r=old s=other t=new2", "growth add new0 new1 new2", "growth remove old", "growth change r")
	held := g.Operate(Command{Name: "r"}, epoch)
	check.Equal(t, "detail", held[0].Details[0], `names "new1", which clients do not have`)
	g.Operate(Command{Do: Pass, TypeURL: wire.ClusterType, Name: "new0"}, epoch) // the others are no longer too many
	want("one passed", "new0 new1 new2 other", "r=new1 s=other t=new2")

	take(clusters, epoch, []*wire.Resource{cluster("a"), cluster("b"), cluster("c"), cluster("d"), cluster("e"), cluster("f")})
	take(routes, epoch, []*wire.Resource{route("r", "a")})
	g.Operate(Command{Do: Drop, TypeURL: wire.ClusterType}, epoch)
	want("clusters dropped", "new0 new1 new2 other", "r=new1 s=other t=new2", "dropped add a b c d e f", "growth change r")
	take(routes, epoch, []*wire.Resource{route("r", "other")})
	want("another route", "new0 new1 new2 other", "r=other s=other t=new2", "dropped add a b c d e f")
}

// TestB51_GrowthPassesInOrder: clusters are added before the route that names them, and removed after it, whatever ends the wait.
func TestB51_GrowthPassesInOrder(t *testing.T) {
	for when, end := range map[string]func(g *Group){
		"an operator":  func(g *Group) { g.Operate(Command{Do: Pass, Reason: Growth}, epoch) },
		"the deadline": func(g *Group) { g.Decide(epoch.Add(time.Hour)) },
	} {
		g, clusters, routes := newRouting()
		clusters.take(epoch, []*wire.Resource{cluster("old"), cluster("other")})
		routes.take(epoch, []*wire.Resource{route("r", "old")})
		clusters.take(epoch, []*wire.Resource{cluster("new0"), cluster("new1"), cluster("new2")}, "old")
		routes.take(epoch, []*wire.Resource{route("r", "new1")})
		var order []string
		for _, f := range []*fakeSet{clusters, routes} {
			f.onApply = func(u wire.Update) {
				for _, r := range u.Resources {
					order = append(order, r.Name)
				}
				for _, name := range u.Removed {
					order = append(order, "-"+name)
				}
			}
		}
		end(g)
		if len(order) == 5 {
			slices.Sort(order[:3])
		}
		check.Equal(t, "order after "+when, strings.Join(order, " "), "new0 new1 new2 r -old")
	}
}

// TestB51_GrowthThatBreaksClients waits until it does not, and then as long as other growth.
func TestB51_GrowthThatBreaksClients(t *testing.T) {
	h := newCheckedGroup("a")
	h.group.cfg.Growth = GrowthLimit{Factor: 2, Bytes: 10, Names: 100}
	reason := func() (is Reason) {
		for _, hold := range h.group.Operate(Command{}, h.now) {
			is = hold.Reason
		}
		return is
	}
	h.route("r=a")
	h.route("r=a b a a a a a a")
	check.Equal(t, "without the cluster", reason(), Breaking)
	h.now = h.now.Add(time.Minute)
	h.cluster("b")
	check.Equal(t, "with the cluster", reason(), Growth)
	h.now = h.now.Add(59 * time.Minute)
	h.group.Decide(h.now)
	check.Equal(t, "an hour after it was stated", h.served(), "a b | r=a b a a a a a a")
}

// TestB51_RemovalsAfterDroppedGrowth are pending, although the origin has not stated them: they do not repeat what was dropped.
func TestB51_RemovalsAfterDroppedGrowth(t *testing.T) {
	f := newGrowing(wire.ClusterType, "a", "b")
	f.put(epoch, "a=200")
	f.group.Operate(Command{Do: Drop}, epoch)
	f.confirmed = false
	f.Infer(seq("a"), false, epoch)
	f.wantHolds(t, "inferred", epoch, "suspected a")
}

// TestB51_AnswersOfQueriesKeepGrowth: the set has stated the resource on its own stream.
func TestB51_AnswersOfQueriesKeepGrowth(t *testing.T) {
	f := newGrowing(wire.ClusterType, "a", "b")
	f.Begin(nil, false, false, epoch)
	f.put(epoch, "b")
	f.StartQuery(nil, epoch.Add(time.Minute))
	f.put(epoch.Add(time.Minute), "a=200")
	f.RecordAnswers(wire.Update{TypeURL: f.TypeURL, Resources: []*wire.Resource{textResource(f.TypeURL, "a", "1")}}, epoch.Add(time.Minute))
	f.wantGrowth(t, "answered", epoch, "growth change a")
}

// TestB51_RemovalsBesideGrowthAreSuspectIfAllIsMissing: an origin that loses all it has has lost the additions, too, for which
// the removals have waited. An ordinary list without them changes nothing.
func TestB51_RemovalsBesideGrowthAreSuspectIfAllIsMissing(t *testing.T) {
	f := newGrowing(wire.ClusterType, "a", "b", "c")
	f.put(epoch, "d", "e", "f", "g", "h", "-b")
	f.Infer(seq("b"), false, epoch)
	f.group.Decide(epoch)
	f.wantGrowth(t, "stated", epoch, "growth add d e f g h", "growth remove b")
	f.Infer(seq("a", "b", "c"), true, epoch)
	f.put(epoch, "-d", "-e", "-f", "-g", "-h")
	f.wantNames(t, "all is missing", "a b c")
	holds := f.group.Operate(Command{}, epoch)
	if len(holds) != 1 || holds[0].Reason != LargeRemoval || strings.Join(holds[0].Names, " ") != "a b c" {
		t.Errorf("holds %+v, want one large removal of a, b and c", holds)
	}
}

// TestB51_PassedGrowthIsNotMentioned: an operator passes growth that an earlier stream has stated. The origin has not mentioned
// the resource on this one, so that the relay asks for it.
func TestB51_PassedGrowthIsNotMentioned(t *testing.T) {
	f := newGrowing(wire.ClusterType, "a", "b")
	f.put(epoch, "a=120")
	f.beginStream(epoch)
	f.respond(epoch, "b")
	f.group.Operate(Command{Do: Pass, Reason: Growth}, epoch)
	check.Equal(t, "size", f.size("a"), 120)
	if due, _ := f.QueryDue(epoch.Add(time.Minute)); !due {
		t.Error("no query of a is due, want one")
	}
}
