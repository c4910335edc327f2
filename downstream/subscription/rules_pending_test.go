package subscription

import (
	"fmt"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB1_PendingNamesAreBounded: a name that the origin does not answer is pending once, no matter how often the client
// subscribes to it and how many other resources change (D.4, 11).
func TestB1_PendingNamesAreBounded(t *testing.T) {
	view, w := cache.New(cache.Config{})
	sub := newClient(view, wire.EndpointType, true)
	sub.ApplyRequest(&wire.Request{Delta: true, Subscribe: []string{"silence", "a", "b"}}, time.Now())
	w.TakeDemand()
	for i := range 50 {
		u := wire.Update{TypeURL: wire.EndpointType}
		for _, name := range []string{"a", "b"} {
			r := check.Must(wire.NewResource(wire.EndpointType, name, "", fmt.Append(nil, name, i)))
			u.Resources = append(u.Resources, r)
		}
		w.Apply(cache.ByName, u)
		w.Apply(cache.Wildcard, u)
		sub.ApplyRequest(&wire.Request{Delta: true, Subscribe: []string{"silence"}}, time.Now())
		if r := sub.nextBody(view); r == nil || r.Len() != 2 {
			t.Fatalf("change %d: got %v, want a and b", i, r)
		}
		if got := len(sub.pendingNames); got > 2 { // one of a turn, and one that a truncated response left
			t.Fatalf("change %d: %d names are pending, want 1", i, got)
		}
	}
}
