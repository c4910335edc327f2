package cache

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// All files use the types View, Watch and Writer. An edit reuses the memory of its publisher, and the index holds the
// reports about a type. The gate copies entries as Copy does.
func TestReadingOrder(t *testing.T) {
	check.ReadingOrder(t, "View", "Watch", "Writer", "publisher", "setReports", "copyEntry", "copyError")
}
