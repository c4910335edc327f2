package conformance_test

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/transcript"
)

// originsBubble runs f with a relay of two origins. TENDER_ROUTES assigns resources to the second origin, west,
// such as "type:eds=west;authority:west=west". The two worlds share the relay; changes go to the world's origin.
func originsBubble(t *testing.T, routes string, env []string, f func(first, west *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		further := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: "west"})
		first := &world{t: t, origin: o, n: transcript.NewNotation(t)}
		first.relay = startRelay(t,
			instance.Options{Origins: []*relaytest.Origin{o}, Named: map[string][]*relaytest.Origin{"west": {further}}},
			append(env, "TENDER_ROUTES="+routes)...)
		west := *first
		west.origin = further
		f(first, &west)
	})
}

// expectSubscribed fails the test unless exactly these subscriptions, such as "cds *", exist at the origin.
func (w *world) expectSubscribed(want ...string) {
	w.t.Helper()
	got := []string{}
	state := w.origin.State()
	types := make(map[string]struct{})
	for _, s := range state.Streams {
		for typeURL := range s.Types {
			types[typeURL] = struct{}{}
		}
	}
	for typeURL := range maps.Keys(types) {
		for _, name := range state.Names(typeURL) {
			got = append(got, shortName(typeURL)+" "+name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Errorf("subscriptions at the origin are %q, want %q\n%v", got, want, state)
	}
}

// xdstpSet returns the complete set in SotW, and the changes in Delta.
func xdstpSet(v relaytest.Variant, set, changed string) string {
	if v == relaytest.SotW {
		return set
	}
	return changed
}
