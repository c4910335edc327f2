package hostile_test

import (
	"fmt"
	"slices"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestB35_InventedNames: 100 clients of one address that subscribe to missing names may use at most half of
// TENDER_MAX_ORIGIN_NAMES. A client of another address is served new names. A client of the same address is served
// resources that the relay already has. (B.35)
func TestB35_InventedNames(t *testing.T) {
	const clients, each, most = 100, 100, 2000
	const refused = clients - (most/2-1)/each // the neighbour subscribes to a name as well
	v := serve(t, fmt.Sprint("TENDER_MAX_ORIGIN_NAMES=", most))
	v.origin.Put(relaytest.Route("held", []string{"*"}, "a"), relaytest.Route("new", []string{"*"}, "a"))
	has := func(c *relaytest.Client, name string) {
		t.Helper()
		c.Subscribe(relaytest.RouteType, name)
		c.WaitState(t.Context(), func(s relaytest.State) bool { return slices.Contains(s.Names(relaytest.RouteType), name) })
	}
	first := v.of("neighbour", "127.0.0.4")
	has(first, "held")
	first.Close()
	var all []*relaytest.Client
	v.during(func() {
		for i := range clients {
			var names []string
			for n := range each {
				names = append(names, fmt.Sprintf("none-%d-%d", i, n))
			}
			c := v.of("neighbour", "127.0.0.3")
			c.Subscribe(relaytest.RouteType, names...)
			all = append(all, c)
		}
		v.await("refusals of the names above the limit", func() bool {
			return v.Stats().Refused[guard.LimitOriginNames] >= refused
		})
	})
	has(all[len(all)-1], "held")
	has(v.of("neighbour", "127.0.0.4"), "new")
	if n := v.Stats().Refused[guard.LimitOriginNames]; n != refused {
		t.Errorf("%d refusals are counted, want one for each of the %d clients above the limit", n, refused)
	}
}

// TestB35_ManyNamesInSmallRequests: streams of one address that subscribe to further missing names or globs in each
// request, and unsubscribe from others, are rate-limited by the sum of their names. A client of another address is served
// new names meanwhile. (B.35)
func TestB35_ManyNamesInSmallRequests(t *testing.T) {
	const streams, requests, each = 20, 10, 450
	for _, tt := range []struct{ name, typeURL, format string }{
		{"names", relaytest.RouteType, "none-%d-%d"},
		{"globs", relaytest.ClusterType, "xdstp://none/envoy.config.cluster.v3.Cluster/%d/%d/*"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := serve(t)
			v.origin.Put(relaytest.Route("new", []string{"*"}, "a"))
			v.during(func() {
				for i := range streams {
					c := v.of("neighbour", "127.0.0.3")
					for n := range requests {
						r := &discoverypb.DeltaDiscoveryRequest{TypeUrl: tt.typeURL}
						for k := range each {
							r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, fmt.Sprintf(tt.format, i*requests+n, k))
							r.ResourceNamesUnsubscribe = append(r.ResourceNamesUnsubscribe, fmt.Sprintf(tt.format, i*requests+n-1, k))
						}
						c.Send(r)
					}
				}
				v.await("the rate limit of names", func() bool { return v.Stats().Refused[guard.LimitNameRate] > 0 })
				c := v.of("neighbour", "127.0.0.4")
				c.Subscribe(relaytest.RouteType, "new")
				c.WaitState(t.Context(), func(s relaytest.State) bool { return slices.Contains(s.Names(relaytest.RouteType), "new") })
			})
		})
	}
}

// TestB35_InventedTypes: one address that subscribes to invented types may use at most half of the types. A
// client of another address is served a new type. Types without subscriptions are released. (B.35)
func TestB35_InventedTypes(t *testing.T) {
	const most = 64
	v := serve(t, "TENDER_LINGER=1s")
	typeURL := func(i int) string { return fmt.Sprint("type.googleapis.com/made.up.T", i) }
	own := "type.googleapis.com/acme.Thing"
	v.origin.Set(own, "a", relaytest.Opaque(own, "a", nil), "1")
	// invent opens streams of an address that each subscribe to another type. It returns how many are served, and
	// closes them.
	invent := func(host string, types int) (served int) {
		var all []*relaytest.Client
		for i := range types {
			c := v.of("neighbour", host)
			c.Subscribe(typeURL(i), []string{"*", "none"}[i%2])
			c.Subscribe(relaytest.ClusterType, "a")
			v.await("a cluster or the end of the stream", func() bool { return c.Ended() || len(c.State()[relaytest.ClusterType]) > 0 })
			if !c.Ended() {
				served++
			}
			all = append(all, c)
		}
		c := v.of("neighbour", "127.0.0.4")
		c.Subscribe(own, "a")
		c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[own]) > 0 })
		for _, c := range append(all, c) {
			c.Close()
		}
		return served
	}
	v.during(func() {
		if served := invent("127.0.0.3", 60); served < most/2-5 || served > most/2 {
			t.Errorf("%d types of one address are served, want half of %d without those of the protocol", served, most)
		}
		v.await("the release of unused types", func() bool {
			c := v.of("neighbour", "127.0.0.3")
			defer c.Close()
			c.Subscribe(typeURL(1000), "none")
			c.Subscribe(relaytest.ClusterType, "a")
			v.await("a cluster or the end of the stream", func() bool { return c.Ended() || len(c.State()[relaytest.ClusterType]) > 0 })
			return !c.Ended()
		})
	})
}
