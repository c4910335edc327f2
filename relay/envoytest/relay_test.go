package envoytest

import (
	"slices"
	"testing"
)

// TestVariables: a variable of the caller overrides a default, and the last of several variables with one name applies.
func TestVariables(t *testing.T) {
	got := variables("origin:1", []string{"TENDER_NODE_ID=a", "TENDER_DRAIN=2s", "TENDER_NODE_ID=b"})
	want := []string{
		"TENDER_ADMIN_LISTEN=127.0.0.1:0", "TENDER_DRAIN=2s", "TENDER_LISTEN=127.0.0.1:0", "TENDER_NODE_ID=b", "TENDER_ORIGIN=origin:1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
