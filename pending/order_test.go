package pending

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

func TestFileOrder(t *testing.T) { check.FileOrder(t, check.FieldTypes) }
