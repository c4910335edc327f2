package upstream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

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

// shorten abbreviates the names of the collection in a text.
func shorten(text string) string { return strings.ReplaceAll(text, shop, "shop/") }

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
		first := described(other.State().Streams[0].Requests[0])
		pair.expect("first request to the second address", shorten(first), "[eds node +shop/*]")
		other.Restart() // before the relay queries missing members
		pair.pass(2 * time.Second)
		again := described(other.State().Last().Requests[0])
		pair.expect("second request to the second address", shorten(again), "[eds node +shop/* shop/a=1 shop/b=9]")
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
		again := described(other.State().Last().Requests[0])
		pair.expect("first request of the next stream", shorten(again), "[eds node +shop/* shop/a=1]")
	})
}

// TestB6_CollectionsLeaveNoState: after the linger time of globs, neither the view nor the origin has state of them.
func TestB6_CollectionsLeaveNoState(t *testing.T) {
	cfg := upstream.Config{Linger: 20 * time.Second}
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
