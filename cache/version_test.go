package cache

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/intern"
	"github.com/xdstender/tender/cache/wire"
)

func TestR091_SystemVersionIsOnlyShown(t *testing.T) {
	o, watch := newSubscribed(t)
	watch.SubscribeAll(acme)
	apply := func(system string) *Type {
		o.Apply(Wildcard,
			wire.Update{TypeURL: acme, SystemVersion: system, Resources: []*wire.Resource{o.resource("a", "1", "x")}})
		return o.typ()
	}
	before, seq := apply("1"), o.view.Generation().Seq
	woken(watch)
	after := apply("2~beta")
	if after.System() != "2~beta" || before.System() != "1" {
		t.Errorf("system version: got %q and %q", before.System(), after.System())
	}
	if after.Wildcard.Sum() != before.Wildcard.Sum() || o.view.Generation().Seq != seq || woken(watch) {
		t.Error("new system version changed the generation of readers")
	}
}

func TestSystemVersionOfTheNewestSet(t *testing.T) {
	o, _ := newSubscribed(t, "n")
	o.Apply(Wildcard,
		wire.Update{TypeURL: acme, SystemVersion: "m1", Resources: []*wire.Resource{o.resource("a", "1", "x")}})
	o.Apply(ByName,
		wire.Update{TypeURL: acme, SystemVersion: "n1", Resources: []*wire.Resource{o.resource("n", "1", "x")}})
	if got := o.typ().System(); got != "n1" {
		t.Errorf("set of names changed last: got %q, want n1", got)
	}
	o.Apply(Wildcard,
		wire.Update{TypeURL: acme, SystemVersion: "m2", Resources: []*wire.Resource{o.resource("a", "2", "y")}})
	if got := o.typ().System(); got != "m2" {
		t.Errorf("wildcard set changed last: got %q, want m2", got)
	}
}

func TestB2_TTLsAndHeartbeatsDoNotEnter(t *testing.T) {
	o := newOrigin(t, Config{})
	o.put(Wildcard, "a", "1", "x")
	plain := o.typ().Wildcard.Sum()
	o.Apply(Wildcard, updateOf(acme, expiring(t, "a", "1", "x")))
	if s := &o.typ().Wildcard; s.Sum() != plain || s.TTLs() != 1 || s.Count() != 1 {
		t.Errorf("with a TTL: version %v, %d TTLs, %d resources; want %v, 1, 1", s.Sum(), s.TTLs(), s.Count(), plain)
	}
	o.put(Wildcard, "a", "2", "x")
	if s := &o.typ().Wildcard; s.Sum() != plain || s.TTLs() != 0 {
		t.Errorf("after the TTL was removed: version %v, %d TTLs; want %v, 0", s.Sum(), s.TTLs(), plain)
	}
}

// drawSet draws a set: content by name.
func drawSet(t *rapid.T, label string) map[string]string {
	return rapid.MapOfN(rapid.StringMatching("[a-f]{1,2}"), rapid.StringMatching("[x-z]"), 0, 6).Draw(t, label)
}

// feedSet brings the wildcard set of an origin to a given content in a random way: batches, order, repetitions,
// intermediate states.
func feedSet(t *rapid.T, o *origin, want map[string]string) {
	detour := drawSet(t, "detour")
	version := func() string { return rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(t, "version") }
	for _, name := range rapid.Permutation(slices.Sorted(maps.Keys(detour))).Draw(t, "on the detour") {
		o.put(Wildcard, name, version(), detour[name])
	}
	u := wire.Update{TypeURL: o.typeURL}
	send := func() {
		o.Apply(Wildcard, u)
		u = wire.Update{TypeURL: o.typeURL, SystemVersion: fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "system"))}
	}
	for name := range detour {
		if _, stays := want[name]; !stays {
			u.Removed = append(u.Removed, name)
		}
	}
	for _, name := range rapid.Permutation(slices.Sorted(maps.Keys(want))).Draw(t, "order") {
		u.Resources = append(u.Resources, o.resource(name, version(), want[name]))
		if rapid.Bool().Draw(t, "batch ends") {
			send()
		}
	}
	send()
}

// TestB2_R023_EqualRandomSetsHaveEqualVersions: two views that received their resources in different ways have equal versions if
// and only if their resources are equal.
func TestB2_R023_EqualRandomSetsHaveEqualVersions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, two := newOrigin(t, Config{}), newOrigin(t, Config{Interner: new(intern.Pool)})
		a, b := drawSet(t, "a"), drawSet(t, "b")
		if rapid.Bool().Draw(t, "equal") {
			b = a
		}
		feedSet(t, one, a)
		feedSet(t, two, b)
		got := one.typ().Wildcard.Sum().Version("") == two.typ().Wildcard.Sum().Version("")
		if want := maps.Equal(a, b); got != want {
			t.Fatalf("%v and %v: got equal versions %t, want %t", a, b, got, want)
		}
	})
}

// TestR026_OriginVersionsAgree: a replica that received two versions of a resource has the same version as a replica
// that received only the last.
func TestR026_OriginVersionsAgree(t *testing.T) {
	early, late := newOrigin(t, Config{}), newOrigin(t, Config{})
	early.put(Wildcard, "a", "1", "same")
	early.put(Wildcard, "a", "2", "same")
	late.put(Wildcard, "a", "2", "same")
	if got, want := early.typ().Wildcard.Sum(), late.typ().Wildcard.Sum(); got != want {
		t.Errorf("got %v on the replica that saw both versions, want %v", got, want)
	}
	early.remove(Wildcard, "a")
	if got := early.typ().Wildcard.Sum(); got != (fingerprint.Sum{}) {
		t.Errorf("empty set: got %v, want zero", got)
	}
}

// TestB2_WithoutBody: an unresolved alias does not contribute to the SotW version.
func TestB2_WithoutBody(t *testing.T) {
	o := newOrigin(t, Config{})
	o.Apply(Wildcard,
		updateOf(acme, decoded(t, acme, &discoverypb.Resource{Name: "a", Version: "1", Aliases: []string{"b"}})))
	if got := o.typ().Wildcard.Sum(); got != (fingerprint.Sum{}) {
		t.Errorf("got %v, want zero", got)
	}
}

func TestR024_VersionsAreSeparatePerType(t *testing.T) {
	o := newOrigin(t, Config{})
	o.put(Wildcard, "a", "1", "x")
	before := o.typ()
	o.typeURL = other
	o.put(Wildcard, "a", "1", "x")
	o.put(Wildcard, "a", "2", "y")
	if after := o.view.Generation().Type(acme); after != before {
		t.Error("change of one type changed the version of another")
	}
	if got := o.typ().Wildcard.Sum(); got == before.Wildcard.Sum() {
		t.Error("two types have equal versions")
	}
}
