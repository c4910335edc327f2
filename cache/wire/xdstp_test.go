package wire_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/xdstender/tender/cache/wire"
)

const xdstpCDS = "xdstp://a.example/envoy.config.cluster.v3.Cluster/"

func wantCanonical(t *testing.T, name, want string) {
	t.Helper()
	got, err := wire.CanonicalName(name)
	if err != nil || got != want {
		t.Errorf("CanonicalName(%q) = %q, %v, want %q", name, got, err, want)
	}
}

func TestR128_CanonicalNames(t *testing.T) {
	tests := []struct{ name, spelling, want string }{
		{"canonical already", xdstpCDS + "shop/web?a=1&b=2", xdstpCDS + "shop/web?a=1&b=2"},
		{"order of parameters", xdstpCDS + "shop?b=2&a=1", xdstpCDS + "shop?a=1&b=2"},
		{"order is that of keys", xdstpCDS + "shop?a!=1&a=2", xdstpCDS + "shop?a=2&a!=1"},
		{"order is that of keys without escapes", xdstpCDS + "shop?%26=1&%23=2&!=3", xdstpCDS + "shop?!=3&%23=2&%26=1"},
		{"no parameters", xdstpCDS + "shop?", xdstpCDS + "shop"},
		{"parameter without a value", xdstpCDS + "shop?a", xdstpCDS + "shop?a="},
		{"needless escapes", "xdstp://%61%2eexample/envoy.config.cluster.v3.Cluster/sh%6Fp?%61=%31", xdstpCDS + "shop?a=1"},
		{"lower-case escapes", xdstpCDS + "a%3ab", xdstpCDS + "a%3Ab"},
		{"an escaped slash is a slash in an id", xdstpCDS + "a%2Fb", xdstpCDS + "a/b"},
		{"an escaped slash stays escaped in an authority", "xdstp://a%2fb/t/c", "xdstp://a%2Fb/t/c"},
		{"a plus sign is no space", xdstpCDS + "a+b?c=d+e", xdstpCDS + "a+b?c=d+e"},
		{"no authority", "xdstp:///t/a", "xdstp:///t/a"},
		{"empty path segments", "xdstp://a/t//b/", "xdstp://a/t//b/"},
		{"not xdstp", "shop%2fweb?b=2&a=1#x", "shop%2fweb?b=2&a=1#x"},
		{"another scheme", "xdstp:/a/t/b%2f", "xdstp:/a/t/b%2f"},
		{"empty name", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantCanonical(t, tt.spelling, tt.want) })
	}
}

// TestB23_EscapeSets tests which printable characters each part of a name escapes, and that all other characters that
// Envoy escapes are escaped.
func TestB23_EscapeSets(t *testing.T) {
	const visible = " !\"#$%&'()*+,-./0189:;<=>?@AZ[\\]^_`az{|}"
	everywhere := map[byte]string{'~': "%7E", 0x00: "%00", 0x1f: "%1F", 0x7f: "%7F", 0x80: "%80", 0xff: "%FF"}
	parts := []struct{ name, reserved, before, after string }{
		{"authority", "%/?#", "xdstp://", "/t/id"},
		{"id", "%:?#[]", "xdstp://a/t/x", ""},
		{"key", "%#[]&=", "xdstp://a/t/id?x", "=v"},
		{"value", "%#[]&=", "xdstp://a/t/id?k=", ""},
	}
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			for i := range len(visible) {
				c := visible[i]
				escape, want := escapeOf(c), visible[i:i+1]
				if strings.IndexByte(part.reserved, c) >= 0 {
					want = escape
				}
				wantCanonical(t, part.before+escape+part.after, part.before+want+part.after)
			}
			for c, want := range everywhere {
				wantCanonical(t, part.before+want+part.after, part.before+want+part.after)
				if c < 0x80 {
					wantCanonical(t, part.before+string(c)+part.after, part.before+want+part.after)
				}
			}
			wantCanonical(t, part.before+"é"+part.after, part.before+"%C3%A9"+part.after)
		})
	}
}

func escapeOf(c byte) string {
	const digits = "0123456789ABCDEF"
	return string([]byte{'%', digits[c>>4], digits[c&0xf]})
}

func TestB23_MalformedNames(t *testing.T) {
	tests := []struct{ name, spelling, reason string }{
		{"scheme only", "xdstp://", "no resource type"},
		{"authority only", "xdstp://a", "no resource type"},
		{"type missing", "xdstp://a//id", "no resource type"},
		{"id missing", "xdstp://a/t", "no id"},
		{"id empty", "xdstp://a/t/?b=1", "no id"},
		{"query before the path", "xdstp://a?b=/t/id", "no resource type"},
		{"type with an escape", "xdstp://a/%74/id", `"%74" is not the full name of a message`},
		{"type URL", "xdstp://a/type.googleapis.com%2Ft/id", "is not the full name of a message"},
		{"bad escape in the authority", "xdstp://a%/t/id", "authority: "},
		{"bad escape in the id", "xdstp://a/t/i%4", "id: "},
		{"bad escape in a key", "xdstp://a/t/id?%zz=1", "context parameter: "},
		{"bad escape in a value", "xdstp://a/t/id?a=%", `context parameter "a": `},
		{"directive", "xdstp://a/t/id#alt=b", "directive"},
		{"directive after parameters", "xdstp://a/t/id?a=1#entry=b", "directive"},
		{"no key", "xdstp://a/t/id?=1", "has no key"},
		{"empty parameter", "xdstp://a/t/id?a=1&&b=2", "has no key"},
		{"parameter after the last", "xdstp://a/t/id?a=1&", "has no key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantMalformed(t, tt.spelling, tt.reason) })
	}
}

func wantMalformed(t *testing.T, name, reason string) {
	t.Helper()
	got, err := wire.CanonicalName(name)
	if !errors.Is(err, wire.ErrXDSTP) || got != "" {
		t.Fatalf("CanonicalName(%q) = %q, %v, want no name and ErrXDSTP", name, got, err)
	}
	if !strings.Contains(err.Error(), reason) {
		t.Errorf("CanonicalName(%q): error %q, want %q in it", name, err, reason)
	}
}

func TestX23_DuplicateParameters(t *testing.T) {
	for _, query := range []string{"a=1&a=1", "a=1&b=2&a=3", "a=1&%61=2", "a&a="} {
		wantMalformed(t, xdstpCDS+"shop?"+query, `duplicate context parameter "a"`)
	}
	wantCanonical(t, xdstpCDS+"shop?A=1&a=1", xdstpCDS+"shop?A=1&a=1")
}

func TestR129_Authority(t *testing.T) {
	tests := []struct {
		name, want string
		ok         bool
	}{
		{xdstpCDS + "shop?a=1", "a.example", true},
		{"xdstp://a%2Fb:80/t/c", "a%2Fb:80", true},
		{"xdstp:///t/c", "", true},
		{"shop", "", false},
		{"xdstp:/a/t/c", "", false},
		{"http://a/t/c", "", false},
	}
	for _, tt := range tests {
		if got, ok := wire.Authority(tt.name); got != tt.want || ok != tt.ok {
			t.Errorf("Authority(%q) = %q, %t, want %q, %t", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

func TestR129_CanonicalAuthority(t *testing.T) {
	tests := map[string]string{"a.example": "a.example", "%61:80": "a:80", "a%2fb": "a%2Fb", "": "", "*": "*"}
	for authority, want := range tests {
		if got, err := wire.CanonicalAuthority(authority); err != nil || got != want {
			t.Errorf("CanonicalAuthority(%q) = %q, %v, want %q", authority, got, err, want)
		}
	}
	for _, authority := range []string{"a/b", "a?b", "a#b", "a%"} {
		if got, err := wire.CanonicalAuthority(authority); !errors.Is(err, wire.ErrXDSTP) {
			t.Errorf("CanonicalAuthority(%q) = %q, %v, want ErrXDSTP", authority, got, err)
		}
	}
}

// globs are canonical names and their collections.
var globs = []struct{ name, glob string }{
	{"xdstp://a/t/foo/bar", "xdstp://a/t/foo/*"},
	{"xdstp://a/t/foo/a/b", "xdstp://a/t/foo/a/*"},
	{"xdstp://a/t/foo", "xdstp://a/t/*"},
	{"xdstp://a/t/foo/", "xdstp://a/t/foo/*"},
	{"xdstp://a/t/*/foo", "xdstp://a/t/*/*"},
	{"xdstp://a/t/foo/b*", "xdstp://a/t/foo/*"},
	{"xdstp:///t/foo", "xdstp:///t/*"},
	{"xdstp://a/t/foo/bar?x=1", "xdstp://a/t/foo/*?x=1"},
	{"xdstp://a/t/foo/bar?x=a/b/*", "xdstp://a/t/foo/*?x=a/b/*"},
	{"xdstp://a/t/foo/*", ""},
	{"xdstp://a/t/*?x=1", ""},
	{"foo/bar", ""},
	{"foo/*", ""},
	{"*", ""},
}

// TestX22_GlobIsOneLevel: a collection contains the names of one path level. In go-control-plane, it contains every
// name with the prefix.
func TestX22_GlobIsOneLevel(t *testing.T) {
	for _, tt := range globs {
		if got, ok := wire.GlobOf(tt.name); got != tt.glob || ok != (tt.glob != "") {
			t.Errorf("GlobOf(%q) = %q, %t, want %q", tt.name, got, ok, tt.glob)
		}
	}
}

func TestR132_Glob(t *testing.T) {
	for _, tt := range globs {
		if want := strings.HasPrefix(tt.name, "xdstp:") && tt.glob == ""; wire.Glob(tt.name) != want {
			t.Errorf("Glob(%q) = %t, want %t", tt.name, !want, want)
		}
		if tt.glob != "" && !wire.Glob(tt.glob) {
			t.Errorf("Glob(%q) = false, want true: it is the collection of %q", tt.glob, tt.name)
		}
	}
	wantCanonical(t, xdstpCDS+"shop/%2A", xdstpCDS+"shop/*") // two spellings of one name
}

// TestR131_ContextIsPartOfTheCollection: a collection contains only names with equal context parameters.
func TestR131_ContextIsPartOfTheCollection(t *testing.T) {
	tests := []struct {
		name, glob string
		member     bool
	}{
		{"foo/bar?some=thing", "foo/*?some=thing", true},
		{"foo/bar?b=2&a=1", "foo/*?a=1&b=2", true},
		{"foo/bar", "foo/*", true},
		{"foo/bar", "foo/*?some=thing", false},
		{"foo/bar?some=thing", "foo/*", false},
		{"foo/bar?some=one", "foo/*?some=thing", false},
		{"foo/bar?some=thing&more=1", "foo/*?some=thing", false},
	}
	for _, tt := range tests {
		name, err := wire.CanonicalName(xdstpCDS + tt.name)
		if err != nil {
			t.Fatal(err)
		}
		glob, err := wire.CanonicalName(xdstpCDS + tt.glob)
		if err != nil {
			t.Fatal(err)
		}
		if of, _ := wire.GlobOf(name); (of == glob) != tt.member {
			t.Errorf("GlobOf(%q) = %q: member of %q %t, want %t", name, of, glob, !tt.member, tt.member)
		}
	}
}

func TestPlainNamesDoNotAllocate(t *testing.T) {
	for _, name := range []string{"outbound|80||shop.svc.cluster.local", "xdstp", ""} {
		got := testing.AllocsPerRun(100, func() {
			if canonical, err := wire.CanonicalName(name); err != nil || canonical != name {
				t.Fatalf("CanonicalName(%q) = %q, %v", name, canonical, err)
			}
			_, _ = wire.Authority(name)
			_, _ = wire.GlobOf(name)
		})
		if got > 0 {
			t.Errorf("%q: got %v allocations, want none", name, got)
		}
	}
}

func BenchmarkCanonicalName(b *testing.B) {
	for what, name := range map[string]string{
		"plain":     "outbound|80||shop.svc.cluster.local",
		"canonical": xdstpCDS + "shop/web?a=1&b=2",
		"respelled": xdstpCDS + "shop%2Fweb?b=2&a=1",
	} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := wire.CanonicalName(name); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
