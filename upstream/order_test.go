package upstream

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestReadingOrder: the exception is type set, which refers to the streams of its view.
func TestReadingOrder(t *testing.T) { check.ReadingOrder(t, "streams") }
