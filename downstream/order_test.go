package downstream

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// A server has the memory of polls, a stream what its receiver and its end need.
func TestReadingOrder(t *testing.T) { check.ReadingOrder(t, "pollMemory", "introduction", "departure") }
