package pending

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestMain runs each property with 100 random inputs, times -rounds.
func TestMain(m *testing.M) { check.MainOfRapid(m, 100) }
