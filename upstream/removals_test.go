package upstream

import (
	"testing"
	"time"
)

// TestH02_AnInterruptedLookBeginsAnew: on a stream that says what is held, silence does not confirm that it is gone.
func TestH02_AnInterruptedLookBeginsAnew(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, told := range []bool{false, true} {
		r := &removals{held: map[string]removal{"a": {stated: true}}, until: now}
		if look, _ := r.due(now); !look {
			t.Fatal("no second look")
		}
		r.begin(true, told)
		if look, _ := r.due(now); look != told {
			t.Errorf("told what is held: %t: another look: %t", told, look)
		}
	}
}
