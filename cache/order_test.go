package cache

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// All files know the three types at the centre, and an edit reuses the memory of its publisher.
func TestReadingOrder(t *testing.T) { check.ReadingOrder(t, "View", "Watch", "Writer", "publisher") }
