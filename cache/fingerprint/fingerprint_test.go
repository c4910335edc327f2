package fingerprint

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
)

const acme = "type.googleapis.com/acme.Thing"

func newResource(t testing.TB, name, version, content string, aliases ...string) *wire.Resource {
	t.Helper()
	r, err := wire.NewResource(acme, name, version, []byte(content), aliases...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func drawSum(t *rapid.T, label string) Sum {
	word := rapid.OneOf(rapid.Uint64(), rapid.SampledFrom([]uint64{0, 1, 1 << 63, 1<<64 - 1}))
	return Sum{word.Draw(t, label+" hi"), word.Draw(t, label+" lo")}
}

func TestB2_RandomSumsAreAGroup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := drawSum(t, "a"), drawSum(t, "b"), drawSum(t, "c")
		switch {
		case a.Add(b) != b.Add(a):
			t.Fatal("addition does not commute")
		case a.Add(b).Add(c) != a.Add(b.Add(c)):
			t.Fatal("addition does not associate")
		case a.Add(b).Sub(b) != a || a.Sub(b).Add(b) != a:
			t.Fatal("subtraction does not undo addition")
		case a.Sub(a) != Sum{} || a.Add(Sum{}) != a:
			t.Fatal("the zero sum is not zero")
		case (a == b) != (a.Version("") == b.Version("")):
			t.Fatal("different sums have one version")
		case !a.SameVersion(a.Version("s")) || a != b && a.SameVersion(b.Version("s")):
			t.Fatal("SameVersion does not compare sums")
		}
	})
}

func TestB2_OnlyWhatFollowsTheLastTildeCounts(t *testing.T) {
	sum := Sum{1, 2}
	content := sum.Version("")
	tests := []struct {
		version string
		want    bool
	}{
		{content, true},
		{sum.Version("42"), true},
		{sum.Version("2024-01-01~rc~1"), true},
		{sum.Version("~"), true},
		{sum.Version(Sum{9, 9}.Version("7")), true},
		{"~" + content, true},
		{"", false},
		{"~", false},
		{"42", false},
		{content + "~", false},
		{content + "~42", false},
		{content + "x", false},
		{strings.TrimPrefix(content, "r1."), false},
		{"42~r2." + strings.TrimPrefix(content, "r1."), false},
		{content[:len(content)-1], false},
		{Sum{1, 3}.Version("42"), false},
		{sum.Version("") + "~" + Sum{1, 3}.Version(""), false},
	}
	for _, test := range tests {
		if got := sum.SameVersion(test.version); got != test.want {
			t.Errorf("SameVersion(%q) of %q: got %t, want %t", test.version, content, got, test.want)
		}
		if got, ok := Parse(test.version); (ok && got == sum) != test.want {
			t.Errorf("Parse(%q): got %v, %t; want that of %q: %t", test.version, got, ok, content, test.want)
		}
	}
	if got, want := sum.Version("a~b"), "a~b~"+content; got != want {
		t.Errorf("Version with the origin's: got %q, want %q", got, want)
	}
}

// TestB2_LeafIsAsWritten holds the leaf to the formula, byte for byte: other replicas may run another release.
func TestB2_LeafIsAsWritten(t *testing.T) {
	if got, want := (Sum{}).Version(""), "r1.AAAAAAAAAAAAAAAAAAAAAA"; got != want {
		t.Errorf("empty set: got %q, want %q", got, want)
	}
	content := sha256.Sum256([]byte(acme + "\x00" + "x"))
	leaf := sha256.Sum256([]byte("tender1" + acme + "\x00" + "a" + "\x00" + string(content[:])))
	want := "7~r1." + base64.RawURLEncoding.EncodeToString(leaf[:16])
	if got := Leaf(acme, newResource(t, "a", "1", "x")).Version("7"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
