package upstream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// A collection of endpoints, one of its members, and its key in a view.
const (
	shop     = "xdstp://one/envoy.config.endpoint.v3.ClusterLoadAssignment/shop/"
	shopA    = shop + "a"
	shopGlob = shop + "*"
)

var shopKey = cache.Collection(endpoints, shopGlob)

// shorten abbreviates the names of the collection and the type in a text.
func shorten(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, shop, "shop/"), "ClusterLoadAssignment", "E")
}

// TestR132_GlobIsANameForTheOrigin: in requests a glob is a name. The relay subscribes to it with names on the same
// stream, reports the versions of its members on a new stream, and unsubscribes from it alone.
func TestR132_GlobIsANameForTheOrigin(t *testing.T) {
	cfg := upstream.Config{WildcardLinger: time.Minute}
	inBubble(t, relaytest.Behaviour{}, cfg, func(t *testing.T, r *rig) {
		r.put(endpoints, shopA+"@1", shop+"b@1", "plain@1")
		r.watch.Subscribe(endpoints, []string{"plain", shopA})
		r.pass(soon)
		wc := r.watch.SubscribeAll(shopKey)
		r.pass(time.Minute)
		r.expect("first stream", shorten(r.conversation(0)), "[E node +plain +shop/a] [E ack 1] [E +shop/*] [E ack 2]")
		r.expect("members", shorten(r.members(shopKey)), "shop/a@1 shop/b@1")
		r.expect("named", shorten(r.named(endpoints)), "plain@1 shop/a@1")
		r.put(endpoints, shopA+"@2")
		r.pass(time.Second)
		r.expect("members", shorten(r.members(shopKey)), "shop/a@2 shop/b@1")
		r.expect("named", shorten(r.named(endpoints)), "plain@1 shop/a@2")

		r.Restart()
		r.pass(time.Second)
		r.expect("second stream", shorten(r.conversation(1)), "[E node +plain +shop/* +shop/a plain=1 shop/a=2 shop/b=1]")
		r.pass(time.Minute) // the comparison of all content uses the next stream
		r.watch.UnsubscribeAll(wc)
		r.pass(2 * time.Minute)
		r.expect("last stream", shorten(r.conversation(2)), "[E node +plain +shop/* +shop/a] [E ack 1] [E -shop/*]")
		r.expect("named", shorten(r.named(endpoints)), "plain@1 shop/a@2")
	})
}

// TestB5_GlobAndWildcard: a glob and a wildcard of one type use different streams, as a name and a wildcard do.
func TestB5_GlobAndWildcard(t *testing.T) {
	named := func(_, name string) bool { return strings.HasPrefix(name, shop) }
	inBubble(t, relaytest.Behaviour{NamedOnly: named}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, shopA+"@1", "plain@1")
		r.watch.SubscribeAll(shopKey)
		r.pass(time.Second)
		r.watch.SubscribeAll(endpoints)
		r.pass(time.Second)
		r.expect("main stream", shorten(r.conversation(0)), "[E node +shop/*] [E ack 1]")
		r.expect("auxiliary stream", shorten(r.conversation(1)), "[E node +*] [E ack 1]")
		r.Restart()
		r.put(endpoints, shopA+"@2", "plain@2")
		r.membersAfter(time.Minute, "wildcard set", endpoints, "plain@2")
		r.expect("collection", shorten(r.members(shopKey)), "shop/a@2")
		if open := len(r.State().Open()); open != 2 || !r.State().Subscribed(endpoints, "*", shopGlob) {
			t.Errorf("%d open streams, want the wildcard and the glob on two streams:\n%v", open, r.State())
		}
	})
}

// TestB7_PhasesOfACollection: a collection that the origin reports as empty is confirmed at once. Otherwise it settles
// as a wildcard does.
func TestB7_PhasesOfACollection(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		other := cache.Collection(endpoints, "xdstp://one/envoy.config.endpoint.v3.ClusterLoadAssignment/mall/*")
		r.watch.SubscribeAll(shopKey)
		r.watch.SubscribeAll(other)
		stream := r.Accept(t.Context())
		r.pass(time.Minute)
		phases := func(want string) {
			t.Helper()
			g := r.view.Generation()
			r.expect("phases", g.Type(shopKey).Phase.String()+" "+g.Type(other).Phase.String(), want)
		}
		phases("unknown unknown") // without a response
		send := func(removed []string, names ...string) {
			resp := &discoverypb.DeltaDiscoveryResponse{TypeUrl: endpoints, RemovedResources: removed}
			for _, name := range names {
				resp.Resources = append(resp.Resources, &discoverypb.Resource{Name: name, Version: "1", Resource: relaytest.Opaque(endpoints, name, nil)})
			}
			stream.Send(resp)
			r.pass(0)
		}
		send(nil, shopA)
		r.pass(100 * time.Millisecond)
		phases("unknown unknown")
		send(nil, shop+"b")
		r.pass(149 * time.Millisecond)
		phases("unknown unknown")
		r.pass(2 * time.Millisecond)
		phases("settled unknown") // no response contained a member of the other collection
		r.pass(9 * time.Second)
		phases("settled unknown")
		r.pass(time.Second)
		phases("confirmed unknown")
		send([]string{"xdstp://one/envoy.config.endpoint.v3.ClusterLoadAssignment/mall/*"})
		phases("confirmed confirmed")
		send([]string{shopGlob})
		r.expect("members", present(r.members(shopKey)), "")
		phases("confirmed confirmed")
	})
}

// TestB15_SuspectCollectionMembers: if an origin received no versions, or ignores them, the relay queries missing
// members by name. A member is removed if the origin reports that it does not exist, and stays if the origin is silent.
// Then the relay unsubscribes from the names.
func TestB15_SuspectCollectionMembers(t *testing.T) {
	for _, tt := range []struct {
		name      string
		behaviour relaytest.Behaviour
		cfg       upstream.Config
		left      string
	}{
		{"versions reported", relaytest.Behaviour{}, upstream.Config{}, "shop/a@1 shop/c@2"},
		{"versions not reported", relaytest.Behaviour{}, upstream.Config{FullResync: true}, "shop/a@1 shop/c@2"},
		{"versions ignored", relaytest.Behaviour{IgnoreIRV: true}, upstream.Config{}, "shop/a@1 shop/c@2"},
		{"versions ignored, silent on missing names", relaytest.Behaviour{IgnoreIRV: true, SilentOnMissing: true}, upstream.Config{}, "shop/a@1 shop/b@1 shop/c@2 shop/d@1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, tt.behaviour, tt.cfg, func(t *testing.T, r *rig) {
				r.put(endpoints, shopA+"@1", shop+"b@1", shop+"c@1", shop+"d@1")
				r.watch.SubscribeAll(shopKey)
				r.watch.Subscribe(endpoints, []string{shop + "d"})
				r.pass(time.Minute)
				r.Stop()
				r.pass(time.Minute)
				r.Remove(endpoints, shop+"b")
				r.Remove(endpoints, shop+"d")
				r.put(endpoints, shop+"c@2")
				r.Restart()
				r.pass(time.Minute)
				r.expect("members", shorten(present(r.members(shopKey))), tt.left)
				if !r.State().Subscribed(endpoints, shopGlob, shop+"d") {
					t.Errorf("want only the subscriptions of clients:\n%v", r.State())
				}
				requests := len(r.State().Requests(endpoints))
				r.pass(longAfter)
				if got := len(r.State().Requests(endpoints)); got != requests {
					t.Errorf("%d requests without changes, want none", got-requests)
				}
			})
		})
	}
}

// TestB15_UnsubscribeFromSuspectCollection: unsubscribing from a glob also unsubscribes from its members that are being
// queried.
func TestB15_UnsubscribeFromSuspectCollection(t *testing.T) {
	cfg := upstream.Config{FullResync: true, WildcardLinger: 10 * time.Second}
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, cfg, func(t *testing.T, r *rig) {
		r.put(endpoints, shopA+"@1", shop+"b@1")
		wc := r.watch.SubscribeAll(shopKey)
		r.pass(time.Minute)
		r.Stop()
		r.Remove(endpoints, shop+"b")
		r.Restart()
		r.pass(17 * time.Second)
		r.expect("subscribed names during the query", shorten(strings.Join(r.State().Names(endpoints), " ")), "shop/* shop/b")
		r.watch.UnsubscribeAll(wc)
		r.pass(time.Minute)
		if !r.State().Subscribed(endpoints) {
			t.Errorf("want no subscription:\n%v", r.State())
		}
	})
}

// TestB40_CollectionFromAnotherTarget: the relay does not report the versions of one address to another. Members that
// only the first address contains are removed in the end.
func TestB40_CollectionFromAnotherTarget(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, shopA+"@1", shop+"b@1", shop+"c@1")
		other := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: "other"})
		other.Apply(func(tx *relaytest.Tx) { putIn(tx, endpoints, shopA+"@1", shop+"b@9") })
		pair := viewSync(t, r.Origin, upstream.Config{
			Targets: []string{r.Target(), other.Target()}, DialOptions: relaytest.DialOptions(r.Origin, other),
		})
		pair.watch.SubscribeAll(shopKey)
		pair.pass(time.Minute)
		pair.expect("members from the first address", shorten(pair.members(shopKey)), "shop/a@1 shop/b@1 shop/c@1")
		r.Stop()
		pair.pass(10 * time.Second)
		first := showRequest(other.State().Streams[0].Requests[0].Message)
		pair.expect("first request to the second address", shorten(first), "[E node +shop/*]")
		other.Restart() // before the relay queries missing members
		pair.pass(2 * time.Second)
		again := showRequest(other.State().Last().Requests[0].Message)
		pair.expect("second request to the second address", shorten(again), "[E node +shop/* shop/a=1 shop/b=9]")
		pair.pass(40 * time.Second)
		pair.expect("members from the second address", shorten(present(pair.members(shopKey))), "shop/a@1 shop/b@9")
		other.Apply(func(tx *relaytest.Tx) { putIn(tx, endpoints, shopA+"@1") }) // resent without a change
		pair.pass(time.Minute)
		pair.expect("members after a resend", shorten(present(pair.members(shopKey))), "shop/a@1 shop/b@9")
		if !other.State().Subscribed(endpoints, shopGlob) {
			t.Errorf("want only the subscription to the glob:\n%v", other.State())
		}
	})
}

// TestB40_MemberOfAnotherTargetIsNeverReported: members that the connected address never mentioned, even when queried,
// are queried again on each stream. Their versions are of another address, and may mean other content here.
func TestB40_MemberOfAnotherTargetIsNeverReported(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, shopA+"@1", shop+"b@1")
		other := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: "other", Behaviour: relaytest.Behaviour{SilentOnMissing: true}})
		other.Apply(func(tx *relaytest.Tx) { putIn(tx, endpoints, shopA+"@1") })
		pair := viewSync(t, r.Origin, upstream.Config{
			Targets: []string{r.Target(), other.Target()}, DialOptions: relaytest.DialOptions(r.Origin, other),
		})
		pair.watch.SubscribeAll(shopKey)
		pair.pass(time.Minute)
		r.Stop()
		pair.pass(5 * time.Minute) // until the query of the missing member has ended
		pair.expect("members after the query", shorten(pair.members(shopKey)), "shop/a@1 shop/b@1")
		other.Restart()
		pair.pass(2 * time.Second)
		again := showRequest(other.State().Last().Requests[0].Message)
		pair.expect("first request of the next stream", shorten(again), "[E node +shop/* shop/a=1]")
	})
}

// TestB6_CollectionsLeaveNoState: after the linger time of globs, neither the view nor the origin has state of them.
func TestB6_CollectionsLeaveNoState(t *testing.T) {
	cfg := upstream.Config{WildcardLinger: time.Minute}
	inBubble(t, relaytest.Behaviour{}, cfg, func(t *testing.T, r *rig) {
		r.put(endpoints, shopA+"@1")
		for round := range 3 {
			for i := range 20 {
				key := cache.Collection(endpoints, fmt.Sprintf("%s%d/*", shop, i))
				r.put(endpoints, fmt.Sprintf("%s%d/x@1", shop, i))
				wc := r.watch.SubscribeAll(key)
				if i%2 == 0 {
					r.pass(time.Second) // otherwise the subscription ends before the loop handles it
				}
				r.watch.UnsubscribeAll(wc)
			}
			r.pass(longAfter)
			for i := range 20 {
				if known, _ := r.view.HasType(cache.Collection(endpoints, fmt.Sprintf("%s%d/*", shop, i))); known {
					t.Errorf("round %d: the view still contains glob %d", round, i)
				}
			}
			if _, types := r.view.HasType(""); types != 1 || r.view.Generation().Types() > 1 {
				t.Errorf("round %d: %d types in the view, %d in its generation, want one", round, types, r.view.Generation().Types())
			}
			if !r.State().Subscribed(endpoints) {
				t.Errorf("round %d: want no subscription:\n%v", round, r.State())
			}
		}
	})
}

// TestB35_LingeringGlobsAreBounded: the number of unused globs that linger is limited. Globs in use are never removed
// because of the limit.
func TestB35_LingeringGlobsAreBounded(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		const lingering, more = 1000, 20
		r.watch.SubscribeAll(shopKey)
		follow := func(i int) *cache.WildcardWatch {
			return r.watch.SubscribeAll(cache.Collection(endpoints, fmt.Sprintf("%s%d/*", shop, i)))
		}
		var globs []*cache.WildcardWatch
		for i := range lingering + more {
			globs = append(globs, follow(i))
		}
		r.pass(time.Second)
		for _, wc := range globs {
			r.watch.UnsubscribeAll(wc)
		}
		r.pass(time.Second)
		if got, want := r.view.Generation().Types(), 2+lingering; got != want { // including the glob in use and the type
			t.Errorf("%d types and globs in the view, want %d", got, want)
		}
		follow(0)
		r.watch.UnsubscribeAll(follow(lingering + more))
		r.watch.UnsubscribeAll(follow(lingering + more + 1))
		r.pass(longAfter)
		check.Equal(t, "types and globs after the linger time", r.view.Generation().Types(), 3)
	})
}
