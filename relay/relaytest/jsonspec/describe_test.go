package jsonspec

import (
	"reflect"
	"testing"
)

// TestDescriptionsAreForReadersOfJSON checks that a description names fields as JSON does, and has numbers of constants.
func TestDescriptionsAreForReadersOfJSON(t *testing.T) {
	type embedded struct {
		SentAt string `json:"sent_at"`
	}
	type client struct {
		embedded

		Version string `json:"version"`
		Nonce   string `json:"nonce"`
		DryRun  bool   `json:"dry_run"`
		Node    string `json:"node"`
		private string
	}
	_ = client{}.private
	s := &Schemas{constants: map[string]string{"MaxActions": "500"}}
	for text, want := range map[string]string{
		"Version, Nonce and SentAt are of the newest response.": "`version`, `nonce` and `sent_at` are of the newest response.",
		"DryRun reports that nothing changes.":                  "`dry_run` reports that nothing changes.",
		"at most MaxActions":                                    "at most 500",
		"Nil if there is none; nil without one":                 "Absent if there is none; absent without one",
		"Version of the Node":                                   "Version of the Node",
		"SentBy is no field":                                    "SentBy is no field",
	} {
		if got := s.describe(reflect.TypeFor[client](), text); got != want {
			t.Errorf("describe(%q) = %q, want %q", text, got, want)
		}
	}
}
