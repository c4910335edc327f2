package reconcile

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
)

// TestH03_References checks that names are found that are whole strings of a resource, for all lengths of names.
func TestH03_References(t *testing.T) {
	short, b127, b128 := "a", strings.Repeat("b", 127), strings.Repeat("c", 128)
	b300, long := strings.Repeat("d", 300), strings.Repeat("e", 1<<14)
	resource := func(prefix string, values ...string) *wire.Resource {
		msg := []byte(prefix)
		for _, v := range values {
			msg = protowire.AppendTag(msg, 1, protowire.BytesType)
			msg = protowire.AppendString(msg, v)
		}
		r, err := wire.NewResource(wire.ClusterType, "r", "", msg)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	to := []string{short, b127, b128, b300, long, "absent", ""}
	for name, tt := range map[string]struct {
		in   []*wire.Resource
		want []string
	}{
		"no resource": {nil, nil},
		"each length": {
			[]*wire.Resource{resource("", short, b127, b128, b300, "other")},
			[]string{short, b127, b128, b300},
		},
		"two resources":    {[]*wire.Resource{resource("", short), resource("", b128)}, []string{short, b128}},
		"part of a string": {[]*wire.Resource{resource("", "ab", b127[1:]+"x", b128+"c")}, nil},
		"too long":         {[]*wire.Resource{resource("", long)}, nil},
		"nested": {
			[]*wire.Resource{resource("", string(protowire.AppendString([]byte{0x0a}, short)))},
			[]string{short},
		},
		"no string":        {[]*wire.Resource{resource("\x01")}, nil},
		"truncated":        {[]*wire.Resource{resource("\x0a\x02a")}, nil},
		"truncated length": {[]*wire.Resource{resource("\x0a\x80")}, nil},
		"last byte":        {[]*wire.Resource{resource("\x7f" + b127)}, []string{b127}},
	} {
		found := references(tt.in, slices.Values(to))
		delete(found, "") // found in any zero byte
		if got, want := slices.Sorted(maps.Keys(found)), slices.Sorted(slices.Values(tt.want)); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
