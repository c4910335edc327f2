package downstream

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestReadingOrder excepts the types of fields of a server and a stream.
func TestReadingOrder(t *testing.T) {
	check.ReadingOrder(t, "pollHistory", "turnState", "queuedRequest")
}
