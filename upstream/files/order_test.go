package files

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

func TestReadingOrder(t *testing.T) { check.ReadingOrder(t) }
