package downstream

import (
	"fmt"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// TestB1_OwedNamesStayFew: a name that the origin does not answer for is owed once,
// however often the client asks and however much else changes (D.4, 11).
func TestB1_OwedNamesStayFew(t *testing.T) {
	view, w := cache.New(cache.Config{})
	watch := view.Watch()
	cfg := &Config{ResponseBytes: 1 << 20}
	sub := &subscription{
		Traits: cfg.traitsOf(wire.EndpointType, Software{Envoy: true}), conversation: new(conversation), key: wire.EndpointType,
		client: &client{cfg: cfg, watch: watch, delta: true},
	}
	sub.request(&wire.Request{Delta: true, Subscribe: []string{"silence", "a", "b"}}, time.Now())
	w.TakeDemand()
	for i := range 50 {
		u := wire.Update{TypeURL: wire.EndpointType}
		for _, name := range []string{"a", "b"} {
			r, err := wire.NewResource(wire.EndpointType, name, "", fmt.Append(nil, name, i))
			if err != nil {
				t.Fatal(err)
			}
			u.Resources = append(u.Resources, r)
		}
		w.Apply(cache.ByName, u)
		w.Apply(cache.Wildcard, u)
		sub.request(&wire.Request{Delta: true, Subscribe: []string{"silence"}}, time.Now())
		g := view.Generation()
		r, err := sub.changes(g, g.Type(wire.EndpointType), g.Seq, time.Now())
		if err != nil || r == nil || r.Body.Len() != 2 {
			t.Fatalf("change %d: got %v, %v, want a and b", i, r, err)
		}
		if got := len(sub.pendingNames); got > 2 { // one look, and what a response cut short left
			t.Fatalf("change %d: %d names are owed, want 1", i, got)
		}
	}
}
