package upstream

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// A set has the streams of its view.
func TestReadingOrder(t *testing.T) { check.ReadingOrder(t, "streams") }
