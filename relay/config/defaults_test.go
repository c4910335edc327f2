package config

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestLoadConfigDefaults checks that a field whose tag has no default is zero, except for two that depend on the host and
// on other fields. TestTextsMatchFields checks those with a default.
func TestLoadConfigDefaults(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	fields := want.fields()
	derived := map[string]any{"NODE_ID": Text("tender/" + host), "ORIGIN_TLS": TLSOff}
	for _, v := range variables {
		if derived, ok := derived[v.name]; ok {
			if got := fields[v.name].Interface(); got != derived {
				t.Errorf("%s%s is %v, want %v", prefix, v.name, got, derived)
			}
		} else if v.preset == "" && !fields[v.name].IsZero() {
			t.Errorf("%s%s has no default, and the value %v", prefix, v.name, fields[v.name])
		}
	}
	// An empty variable counts as unset. Variables without the prefix TENDER_ are ignored.
	for _, environ := range [][]string{{"TENDER_LISTEN="}, {"TENDER_LISTEN= "}, {"PATH=/bin", "TENDER=1", "no equals sign"}} {
		got, err := Load(environ)
		if err != nil {
			t.Errorf("Load(%q): %v", environ, err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Config{})); diff != "" {
			t.Errorf("Load(%q) (-want +got):\n%s", environ, diff)
		}
	}
}
