package cache

import (
	"crypto/sha256"
	"encoding/base64"
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

const emptyVersion = "r1.AAAAAAAAAAAAAAAAAAAAAA"

func TestB2_EmptySet(t *testing.T) {
	if got := (fingerprint.Sum{}).Version(""); got != emptyVersion {
		t.Errorf("empty set: got %q, want %q", got, emptyVersion)
	}
	o := newOrigin(t, Config{})
	o.put(Wildcard, "a", "1", "x")
	o.remove(Wildcard, "a")
	if got := o.typ().Wildcard.Sum().Version(""); got != emptyVersion {
		t.Errorf("set after all removals: got %q, want %q", got, emptyVersion)
	}
}

// TestB2_LeafIsAsWritten compares the version with the formula, byte for byte: other replicas may run another release.
func TestB2_LeafIsAsWritten(t *testing.T) {
	o := newOrigin(t, Config{})
	o.put(Wildcard, "a", "1", "x")
	content := sha256.Sum256([]byte(acme + "\x00" + "x"))
	leaf := sha256.Sum256([]byte("tender1" + acme + "\x00" + "a" + "\x00" + string(content[:])))
	want := "7~r1." + base64.RawURLEncoding.EncodeToString(leaf[:16])
	if got := o.typ().Wildcard.Sum().Version("7"); got != want {
		t.Errorf("one resource: got %q, want %q", got, want)
	}
}

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
	version := func(content string) string {
		if o.view.cfg.VersionSource == fingerprint.FromOrigin {
			return "v" + content // for Hashed, versions are hashes of the content
		}
		return rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(t, "version")
	}
	for _, name := range rapid.Permutation(slices.Sorted(maps.Keys(detour))).Draw(t, "on the detour") {
		o.put(Wildcard, name, version(detour[name]), detour[name])
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
		u.Resources = append(u.Resources, o.resource(name, version(want[name]), want[name]))
		if rapid.Bool().Draw(t, "batch ends") {
			send()
		}
	}
	send()
}

// TestB2_EqualSetsHaveEqualVersions: two views that received their resources in different ways have equal versions if
// and only if their resources are equal.
func TestB2_EqualSetsHaveEqualVersions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		source := rapid.SampledFrom([]fingerprint.Source{fingerprint.FromContent, fingerprint.FromOrigin}).Draw(t, "source")
		one, two := newOrigin(t, Config{VersionSource: source}), newOrigin(t,
			Config{VersionSource: source, Interner: new(intern.Pool)})
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
// that received only the last, also if versions are the origin's.
func TestR026_OriginVersionsAgree(t *testing.T) {
	for _, source := range []fingerprint.Source{fingerprint.FromContent, fingerprint.FromOrigin} {
		early, late := newOrigin(t, Config{VersionSource: source}), newOrigin(t, Config{VersionSource: source})
		early.put(Wildcard, "a", "1", "same")
		early.put(Wildcard, "a", "2", "same")
		late.put(Wildcard, "a", "2", "same")
		if got, want := early.typ().Wildcard.Sum(), late.typ().Wildcard.Sum(); got != want {
			t.Errorf("source %d: got %v on the replica that saw both versions, want %v", source, got, want)
		}
		early.remove(Wildcard, "a")
		if got := early.typ().Wildcard.Sum(); got != (fingerprint.Sum{}) {
			t.Errorf("source %d: empty set: got %v, want zero", source, got)
		}
	}
}

func TestB2_FromOrigin(t *testing.T) {
	v := func(source fingerprint.Source, version, content string) string {
		o := newOrigin(t, Config{VersionSource: source})
		o.put(Wildcard, "a", version, content)
		return o.typ().Wildcard.Sum().Version("")
	}
	tests := []struct {
		what string
		a, b string
		same bool
	}{
		{"content decides, not the version", v(fingerprint.FromContent, "1", "x"), v(fingerprint.FromContent, "2", "x"),
			true},
		{"content decides, under one version", v(fingerprint.FromContent, "1", "x"), v(fingerprint.FromContent, "1", "y"),
			false},
		{"the origin's version decides, not the content", v(fingerprint.FromOrigin, "1", "x"),
			v(fingerprint.FromOrigin, "1", "y"), true},
		{"the origin's version decides, for one content", v(fingerprint.FromOrigin, "1", "x"),
			v(fingerprint.FromOrigin, "2", "x"), false},
		{"without a version the content decides", v(fingerprint.FromOrigin, "", "x"), v(fingerprint.FromOrigin, "", "y"),
			false},
		{"without a version both sources agree", v(fingerprint.FromOrigin, "", "x"), v(fingerprint.FromContent, "", "x"),
			true},
	}
	for _, test := range tests {
		if got := test.a == test.b; got != test.same {
			t.Errorf("%s: got equal %t, want %t", test.what, got, test.same)
		}
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

func TestR023_AChangeChangesTheVersion(t *testing.T) {
	o := newOrigin(t, Config{})
	for i := range 100 {
		o.put(Wildcard, fmt.Sprint("r", i), "1", "x")
	}
	seen := map[fingerprint.Sum]string{}
	look := func(after string) {
		sum := o.typ().Wildcard.Sum()
		if before, twice := seen[sum]; twice {
			t.Errorf("version after %s equals the version after %s", after, before)
		}
		seen[sum] = after
	}
	look("the beginning")
	o.put(Wildcard, "r50", "1", "y")
	look("a change of content under one version")
	o.put(Wildcard, "r100", "1", "x")
	look("an addition")
	o.remove(Wildcard, "r7")
	look("a removal")
	o.put(Wildcard, "r7", "9", "x")
	o.remove(Wildcard, "r100")
	o.put(Wildcard, "r50", "2", "x")
	if got := seen[o.typ().Wildcard.Sum()]; got != "the beginning" {
		t.Errorf("with the original content: got the version after %q", got)
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
