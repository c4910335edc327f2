package get

import (
	"errors"
	"testing"
)

// TestGetAliases verifies that TYPE may be the name of a kind of resource, such as clusters.
func TestGetAliases(t *testing.T) {
	for alias, short := range typeAliases {
		by, as := options{output: "yaml", address: "127.0.0.1:1"}, options{output: "yaml", address: "127.0.0.1:1"}
		if err := errors.Join(by.take([]string{alias}), as.take([]string{short})); err != nil || by.typeURL != as.typeURL {
			t.Errorf("tender get %s: type %q, error %v, want the type of %s, %q", alias, by.typeURL, err, short, as.typeURL)
		}
	}
}
