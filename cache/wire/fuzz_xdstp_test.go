package wire_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/xdstender/tender/cache/wire"
)

// FuzzCanonicalName: the canonical form of a canonical name is the name itself, and two names have the same canonical
// form if and only if they have equal parts.
func FuzzCanonicalName(f *testing.F) {
	for _, tt := range globs {
		f.Add(tt.name, tt.glob)
	}
	f.Add("xdstp://a/t/b?x=1&y=2", "xdstp://a/t/b?y=2&x=1")
	f.Add("xdstp://a/t/b%2Fc?x=%3D", "xdstp://%61/t/b/c?%78=%3d")
	f.Add("xdstp://a/t/b~\x00\x80", "xdstp://a/t/b%7e%00%80")
	f.Add("xdstp://a/t/b?x=1&x=1", "xdstp://a/t/b#x")
	f.Fuzz(func(t *testing.T, a, b string) {
		ca, cb := checkName(t, a), checkName(t, b)
		pa, oka := parts(a)
		pb, okb := parts(b)
		if oka && okb && ca != "" && cb != "" && (ca == cb) != pa.equal(pb) {
			t.Errorf("CanonicalName(%q) = %q and CanonicalName(%q) = %q, with the parts %+v and %+v", a, ca, b, cb, pa, pb)
		}
	})
}

// checkName returns the canonical form of name, or nothing if it has none.
func checkName(t *testing.T, name string) string {
	t.Helper()
	canonical, err := wire.CanonicalName(name)
	if err != nil {
		if !errors.Is(err, wire.ErrXDSTP) || !strings.HasPrefix(name, "xdstp://") {
			t.Fatalf("CanonicalName(%q): got an undocumented error: %v", name, err)
		}
		return ""
	}
	if again, err := wire.CanonicalName(canonical); err != nil || again != canonical {
		t.Fatalf("CanonicalName(%q) = %q, whose canonical form is %q, %v", name, canonical, again, err)
	}
	authority, ok := wire.Authority(canonical)
	if p, isXDSTP := parts(canonical); ok != isXDSTP || unescape(authority) != p.authority {
		t.Errorf("Authority(%q) = %q, %t, want %q, %t", canonical, authority, ok, p.authority, isXDSTP)
	}
	checkGlob(t, canonical)
	return canonical
}

// checkGlob checks that a name and its collection have equal parts except the last path segment, and that the
// collection is canonical and a member of no collection.
func checkGlob(t *testing.T, name string) {
	t.Helper()
	glob, ok := wire.GlobOf(name)
	p, isXDSTP := parts(name)
	if ok != (isXDSTP && !wire.Glob(name)) {
		t.Fatalf("GlobOf(%q) = %q, %t, Glob %t", name, glob, ok, wire.Glob(name))
	}
	if !ok {
		return
	}
	if canonical, err := wire.CanonicalName(glob); err != nil || canonical != glob || !wire.Glob(glob) {
		t.Errorf("GlobOf(%q) = %q, whose canonical form is %q, %v, Glob %t", name, glob, canonical, err, wire.Glob(glob))
	}
	p.id = p.id[:strings.LastIndex(p.id, "/")+1] + "*"
	if g, _ := parts(glob); !g.equal(p) {
		t.Errorf("GlobOf(%q) = %q, with parts %+v, want %+v", name, glob, g, p)
	}
}

// nameParts are the parts of a name, split without checks and sorting.
type nameParts struct {
	authority, resourceType, id string
	context                     map[string]string
}

func (p nameParts) equal(o nameParts) bool {
	return p.authority == o.authority && p.resourceType == o.resourceType && p.id == o.id &&
		maps.Equal(p.context, o.context)
}

func parts(name string) (p nameParts, ok bool) {
	rest, ok := strings.CutPrefix(name, "xdstp://")
	if !ok {
		return p, false
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, rest, _ := strings.Cut(rest, "/")
	resourceType, id, _ := strings.Cut(rest, "/")
	p = nameParts{unescape(authority), resourceType, unescape(id), map[string]string{}}
	for pair := range strings.SplitSeq(query, "&") {
		if key, value, _ := strings.Cut(pair, "="); pair != "" {
			p.context[unescape(key)] = unescape(value)
		}
	}
	return p, true
}

// unescape decodes valid percent escapes and keeps invalid ones.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		const digits = "0123456789ABCDEF"
		if s[i] == '%' && i+2 < len(s) {
			upper := strings.ToUpper(s[i+1 : i+3])
			high, low := strings.IndexByte(digits, upper[0]), strings.IndexByte(digits, upper[1])
			if high >= 0 && low >= 0 {
				b.WriteByte(byte(high<<4 | low))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
