package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/xdstender/tender/relay/humanize"
)

// TestBadValues checks that the error for an invalid value has the variable, the value, the cause and the allowed
// values in one line without control characters.
func TestBadValues(t *testing.T) {
	seen := map[string]bool{}
	for _, tt := range badValues {
		seen[tt.name] = true
		t.Run(tt.name, func(t *testing.T) {
			entry := prefix + tt.name + "=" + tt.value
			cfg, err := Load([]string{entry})
			if err == nil {
				t.Fatalf("Load(%q) returns no error", entry)
			}
			message := err.Error()
			quoted, shown := humanize.Quote(tt.value), escape(tt.value)
			if find(variables, tt.name).secret {
				quoted, shown = masked, masked
			}
			for _, want := range []string{prefix + tt.name + "=" + quoted + ": ", tt.cause,
				"; allowed: " + plain(find(variables, tt.name).allowed())} {
				if !strings.Contains(message, want) {
					t.Errorf("Load(%q): %s\nwant it to contain %s", entry, message, want)
				}
			}
			if strings.Contains(message, "hunter2") {
				t.Errorf("Load(%q): %s\nit contains a part of the value that may be a password", entry, message)
			}
			if escape(message) != message {
				t.Errorf("Load(%q): %q contains control characters or a second line", entry, message)
			}
			// The default replaces the invalid value.
			defaults, _ := Load(nil)
			if diff := cmp.Diff(defaults, cfg, cmpopts.IgnoreUnexported(Config{})); diff != "" {
				t.Errorf("after a bad value (-defaults +got):\n%s", diff)
			}
			for _, s := range cfg.Table() {
				if s.Variable == prefix+tt.name && (s.Source != SourceRefused || s.Value != shown) {
					t.Errorf("Table() has %+v, want the rejected value", s)
				}
			}
		})
	}
	for _, v := range variables {
		if !seen[v.name] {
			t.Errorf("%s%s has no bad value in this test", prefix, v.name)
		}
	}
}

func TestErrorsAreJoinedInOrder(t *testing.T) {
	_, err := Load([]string{
		"TENDER_ZEBRA=1", "TENDER_DRAIN=x", "TENDER_LISTEN=x", "TENDER_ACK_WAITS=1s",
	})
	if err == nil {
		t.Fatal("Load returns no error")
	}
	var got []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		name, _, _ := strings.Cut(line, ":")
		got = append(got, name)
	}
	want := []string{`TENDER_LISTEN="x"`, `TENDER_DRAIN="x"`, "TENDER_ACK_WAITS", "TENDER_ZEBRA"}
	if !slices.Equal(got, want) {
		t.Errorf("errors of %q, want %q", got, want)
	}
}

func TestRequireOrigin(t *testing.T) {
	tests := []struct{ name, origin, want string }{
		{"missing", "", `TENDER_ORIGIN="": it is required; allowed: host:port, `},
		{"present", "a:1", ""},
		{"refused once already", "a", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, _ := Load([]string{"TENDER_ORIGIN=" + tt.origin})
			err := cfg.RequireOrigin()
			if (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("RequireOrigin() = %v, want %q", err, tt.want)
			}
		})
	}
}
