package cache

import (
	"testing"

	"github.com/xdstender/tender/cache/wire"
)

// TestB35_UnusedTypesAreForgotten: a type that the protocol does not define is removed when it has no subscribers and
// no state, and the peer that was the first to subscribe is no longer charged. Types type of the protocol stay.
func TestB35_UnusedTypesAreForgotten(t *testing.T) {
	subscribe := func(o *origin, w *Watch, typeURL string) (leave func()) {
		names := w.Subscribe(typeURL, []string{"a"})
		o.TakeDemand()
		return func() {
			w.Unsubscribe(typeURL, names)
			o.TakeDemand()
			o.Forget(typeURL, names)
		}
	}
	follow := func(o *origin, w *Watch, typeURL string) (leave func()) {
		wc := w.SubscribeAll(typeURL)
		o.TakeDemand()
		return func() {
			w.UnsubscribeAll(wc)
			o.TakeDemand()
			o.ForgetWildcard(typeURL)
		}
	}
	for _, tt := range []struct {
		name    string
		typeURL string
		kept    int
		do      func(o *origin, w *Watch)
	}{
		{"names", acme, 0, func(o *origin, w *Watch) { subscribe(o, w, acme)() }},
		{"members", acme, 0, func(o *origin, w *Watch) { follow(o, w, acme)() }},
		{"empty wildcard set", acme, 0, func(o *origin, w *Watch) {
			leave := follow(o, w, acme)
			o.SetPhase(acme, Confirmed)
			leave()
		}},
		{"both, names first", acme, 0, func(o *origin, w *Watch) {
			names, members := subscribe(o, w, acme), follow(o, w, acme)
			names()
			if own := o.view.TypesOf("peer"); own != 1 {
				o.Errorf("the peer is charged for %d types, want 1", own)
			}
			members()
		}},
		{"both, members first", acme, 0, func(o *origin, w *Watch) {
			names, members := subscribe(o, w, acme), follow(o, w, acme)
			members()
			names()
		}},
		{"removed resources", acme, 0, func(o *origin, w *Watch) {
			names, members := subscribe(o, w, acme), follow(o, w, acme)
			for _, kind := range kinds {
				o.Apply(kind, updateOf(acme, newResource(o, acme, "a", "1", "")))
			}
			names()
			members()
		}},
		{"before TakeDemand", acme, 0, func(o *origin, w *Watch) {
			w.UnsubscribeAll(w.SubscribeAll(acme))
			w.Unsubscribe(acme, w.Subscribe(acme, []string{"a"}))
			o.TakeDemand()
		}},
		{"removed resources, before TakeDemand", acme, 0, func(o *origin, w *Watch) {
			members := w.SubscribeAll(acme)
			o.TakeDemand()
			o.SetPhase(acme, Confirmed)
			w.UnsubscribeAll(members)
			o.TakeDemand()
			again := w.Subscribe(acme, []string{"a"})
			o.ForgetWildcard(acme)
			w.Unsubscribe(acme, again)
			o.TakeDemand()
		}},
		{"empty subscription", acme, 0, func(_ *origin, w *Watch) { w.Unsubscribe(acme, w.Subscribe(acme, nil)) }},
		{"still subscribed", acme, 1, func(o *origin, w *Watch) {
			leave := follow(o, w, acme)
			subscribe(o, o.view.Watch(), acme)
			leave()
		}},
		{"type of the protocol", wire.ClusterType, 1, func(o *origin, w *Watch) { follow(o, w, wire.ClusterType)() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, w := newSubscribed(t)
			w.SetPeer("peer")
			tt.do(o, w)
			known, types := o.view.HasType(tt.typeURL)
			if own := o.view.TypesOf("peer"); known != (tt.kept > 0) || types != tt.kept ||
				tt.kept == 0 && (own != 0 || len(o.view.index.typesOpenedBy) != 0) {
				t.Errorf("in the index: %t, %d types, peer charged for %d; want %d", known, types, own, tt.kept)
			}
			if inHead := o.view.Generation().Types() + o.Generation().Types(); tt.kept == 0 && inHead != 0 {
				t.Errorf("generations have %d types, want none", inHead)
			}
		})
	}
}
