package reconcile

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// The configuration and the cached results of the check in breaking.go belong to the types in set.go.
func TestReadingOrder(t *testing.T) { check.ReadingOrder(t, "Checker", "validity") }
