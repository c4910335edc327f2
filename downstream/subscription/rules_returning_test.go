package subscription

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB11_AReturningClientIsNotWokenInALoop while it waits for the confirmation of its set: the time to check again is in the future.
func TestB11_AReturningClientIsNotWokenInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlayer(t)
		for _, event := range []string{"client delta lds held old:80@1 same@1", "lost", "connected"} {
			p.Play(event)
		}
		time.Sleep(20 * time.Second) // the origin is connected for long enough, but its set is not confirmed yet
		added := p.n.Resource(p.n.Parse("lds new:80@1")).Resource.Value
		p.w.Apply(cache.Wildcard, wire.Update{
			TypeURL: p.sub.TypeURL, Resources: []*wire.Resource{check.Must(wire.NewResource(p.sub.TypeURL, "new:80", "1", added))},
		})
		p.w.SetPhase(p.sub.Key, cache.Settled)
		p.Play("subscribe *")
		g := p.view.Generation()
		r, until, err := p.sub.Next(&Turn{Newest: g, Cut: g, Now: time.Now()}, g.Seq)
		if err != nil || r.Body != nil || !r.Waits {
			t.Fatalf("response %+v, error %v: want one that waits", r, err)
		}
		if !until.After(time.Now()) {
			t.Errorf("to check again in %v, want a time in the future", time.Until(until))
		}
	})
}
