package cache

import (
	"testing"
)

// TestB7_EditionRemovesByNameAfterReconnect: an edition is shown completely, also if the origin sent a removal of it on an
// earlier connection.
func TestB7_EditionRemovesByNameAfterReconnect(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	o.subscribe(o.view.Watch(), "n")
	o.put(ByName, "n", "1", "n1")
	o.remove(ByName, "n")
	edition := o.Pin()
	o.SetConnected(false)
	o.SetConnected(true)
	for range 2 {
		o.Show(canaries, edition)
		g := o.view.Cohort(canaries).Generation()
		if !g.Absent(g.Type(acme).ByName.Get(o.name("n"))) {
			t.Error("the canaries are not sent the removal of n")
		}
	}
}
