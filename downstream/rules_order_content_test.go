package downstream

import (
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/subscription"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// newClient returns a client of unknown software, and its subscription to a type.
func newClient(view *cache.View, typeURL string, delta bool) (*client, *subscription.Subscription) {
	cfg := &Config{ResponseBytes: 1 << 20, AckWait: 5 * time.Second}
	cfg.subscriptions = subscription.Settings{ResponseBytes: cfg.ResponseBytes, AckWait: cfg.AckWait}
	c := &client{cfg: cfg, Client: subscription.Client{Settings: &cfg.subscriptions, Watch: view.Watch(), Delta: delta}}
	return c, subscription.New(&c.Client, subscription.TraitsOf(typeURL, subscription.Software{}), wire.Unwrapped,
		false, nil)
}

// B.11: while a complete set of clusters waits for content that was dropped from the cache, routes wait too, for
// AckWait at most.
func TestB11_SetThatWaitsForContentIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		w.SetConnected(true)
		client, cds := newClient(view, wire.ClusterType, false)
		s := &stream{cfg: client.cfg, subs: []*subscription.Subscription{cds}}
		nextSet := func() *wire.Body {
			cds.ApplyRequest(&wire.Request{Subscribe: []string{wire.Wildcard}, NamesSum: 1}, time.Now())
			w.TakeDemand()
			g := view.Generation()
			r, _, _ := cds.Next(&subscription.Turn{Newest: g, Cut: g, Now: time.Now()}, g.Seq)
			return r.Body
		}
		nextSet()
		w.Apply(cache.Wildcard, uncachedClusters(t, "a"))
		w.SetPhase(wire.ClusterType, cache.Confirmed)
		if r := nextSet(); r == nil {
			t.Fatal("no first set, want one")
		}
		time.Sleep(2 * time.Second)
		w.Expire(time.Now())
		before := view.Generation().Seq
		b := check.Must(wire.NewResource(wire.ClusterType, "b", "1", nil))
		w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{b}})
		limit := func() cache.Seq {
			if r := nextSet(); r != nil {
				t.Fatal("got a set without the dropped content, want none")
			}
			g := view.Generation()
			got, _ := s.dependentLimit(&pass{Turn: subscription.Turn{Newest: g, Cut: g, Now: time.Now()}})
			return got
		}
		if got := limit(); got > before {
			t.Errorf("routes are read up to %d, want at most %d: the new cluster was not sent", got, before)
		}
		time.Sleep(5 * time.Second)
		check.Equal(t, "position up to which routes are read after the wait", limit(), view.Generation().Seq)
		w.Apply(cache.Wildcard, uncachedClusters(t, "a"))
		if r := nextSet(); r == nil || r.Len() != 2 {
			t.Errorf("after the content was received: got %v, want a set of two", r)
		}
	})
}

// uncachedClusters returns an update of clusters with do_not_cache.
func uncachedClusters(t *testing.T, names ...string) wire.Update {
	t.Helper()
	resp := &discoverypb.DeltaDiscoveryResponse{TypeUrl: wire.ClusterType}
	for _, name := range names {
		resp.Resources = append(resp.Resources, &discoverypb.Resource{
			Name: name, Version: "1", Resource: &anypb.Any{TypeUrl: wire.ClusterType},
			CacheControl: &discoverypb.Resource_CacheControl{DoNotCache: true},
		})
	}
	msg := check.Must(proto.Marshal(resp))
	u := check.Must(wire.Decoder{}.Decode(msg))
	return u
}
