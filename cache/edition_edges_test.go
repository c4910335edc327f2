package cache

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
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

// TestI1_ErrorsOfConfirmedSetsWait, also the error that there is no such set.
func TestI1_ErrorsOfConfirmedSetsWait(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.NotFound} {
		o, waiting := newRollout(t)
		o.confirm(acme, "a")
		o.fail(Wildcard, wire.Wildcard, code, "no set")
		if got := o.errorText(Wildcard, wire.Wildcard); got != "" || waiting.Names != 1 {
			t.Errorf("readers see the error %q of the set, and %d names wait; want no error, and 1 name", got, waiting.Names)
		}
		o.Show(rest, o.Pin())
		if got, want := o.errorText(Wildcard, wire.Wildcard), code.String()+" no set"; got != want {
			t.Errorf("shown: readers see the error %q of the set, want %q", got, want)
		}
	}
}
