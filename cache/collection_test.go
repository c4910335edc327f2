package cache

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

const (
	shop = "xdstp://one/acme.Thing/shop/"
	mall = "xdstp://two/acme.Thing/mall/"
)

// shopKey is a collection.
var shopKey = Collection(acme, shop+"*")

// typeCounts returns the number of types and collections in the index, and in the generation.
func typeCounts(v *View) (kept, inHead int) { return len(v.index.types), v.Generation().Types() }

// TestR132_UnusedCollectionsAreRemoved: a collection without subscribers is removed, and so is a type that the protocol
// does not define, whatever demand is queued for it.
func TestR132_UnusedCollectionsAreRemoved(t *testing.T) {
	tests := []struct {
		name string
		do   func(o *origin, w *Watch)
	}{
		{"subscribed and unsubscribed before TakeDemand", func(o *origin, w *Watch) {
			w.UnsubscribeAll(w.SubscribeAll(shopKey))
			if d := o.TakeDemand(); len(d) != 0 {
				o.Errorf("demand: got %v, want none", d)
			}
		}},
		{"unsubscribed", func(o *origin, w *Watch) {
			wc := w.SubscribeAll(shopKey)
			o.TakeDemand()
			o.typeURL = shopKey
			o.Apply(Wildcard, updateOf(shopKey, newResource(o, acme, shop+"a", "1", "")))
			o.remove(Wildcard, shop+"a")
			w.UnsubscribeAll(wc)
			if d := o.TakeDemand(); len(d) != 1 || d[0].Wanted || !o.ForgetWildcard(shopKey) {
				o.Errorf("demand: got %v, want the end of the collection, and the collection removed", d)
			}
		}},
		{"unsubscribed twice", func(o *origin, w *Watch) {
			wc := w.SubscribeAll(shopKey)
			o.TakeDemand()
			w.UnsubscribeAll(wc)
			o.TakeDemand()
			w.UnsubscribeAll(w.SubscribeAll(shopKey)) // a subscription begins and ends while the collection lingers
			if !o.ForgetWildcard(shopKey) {
				o.Errorf("collection without subscribers was not removed")
			}
			if d := o.TakeDemand(); len(d) != 0 {
				o.Errorf("demand: got %v, want none", d)
			}
		}},
		{"subscribed again before ForgetWildcard", func(o *origin, w *Watch) {
			wc := w.SubscribeAll(shopKey)
			o.TakeDemand()
			w.UnsubscribeAll(wc)
			o.TakeDemand()
			wc = w.SubscribeAll(shopKey)
			if o.ForgetWildcard(shopKey) {
				o.Errorf("collection was removed although a stream subscribes to it")
			}
			if d := o.TakeDemand(); len(d) != 1 || !d[0].Wanted {
				o.Errorf("demand: got %v, want the collection", d)
			}
			w.UnsubscribeAll(wc)
			o.TakeDemand()
			o.ForgetWildcard(shopKey)
		}},
		{"subscribed again after ForgetWildcard", func(o *origin, w *Watch) {
			wc := w.SubscribeAll(shopKey)
			o.TakeDemand()
			w.UnsubscribeAll(wc)
			w.UnsubscribeAll(w.SubscribeAll(shopKey))
			o.ForgetWildcard(shopKey)
			wc = w.SubscribeAll(shopKey)
			d := o.TakeDemand()
			if len(d) == 0 || !d[0].Wanted {
				o.Errorf("demand: got %v, want the collection", d)
			}
			w.UnsubscribeAll(wc)
			o.TakeDemand()
			o.ForgetWildcard(shopKey)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o, w := newSubscribed(t)
			tt.do(o, w)
			kept, inHead := typeCounts(o.view)
			if _, types := o.view.HasType(acme); kept != 0 || types != 0 || inHead != 0 || o.view.index.collections != 0 {
				t.Errorf("%d types and collections in the index, %d types, %d in the generation; want none", kept, types, inHead)
			}
			o.Expire(time.Now().Add(time.Hour)) // processes deadlines that are left in the heap
			o.Trim(time.Now().Add(time.Hour))
			if again, _ := typeCounts(o.view); again != kept {
				t.Errorf("after an hour: %d types and collections, want %d", again, kept)
			}
		})
	}
}

// TestB35_GlobsCountAsTheirType: a limit on types counts the type once, and not its globs.
func TestB35_GlobsCountAsTheirType(t *testing.T) {
	o, w := newSubscribed(t)
	for _, glob := range []string{"a/*", "b/*", "c/*"} {
		w.SubscribeAll(Collection(acme, "xdstp://one/acme.Thing/"+glob))
	}
	w.SubscribeAll(Collection(other, "xdstp://one/acme.Other/*"))
	if hasAcme, types := o.view.HasType(acme); !hasAcme || types != 2 {
		t.Errorf("type in the index: %t; %d types, want 2", hasAcme, types)
	}
}

// TestB2_GlobMembersHaveTheSameLeaf: a resource has the same leaf in the set of names, in the wildcard set and in a
// collection.
func TestB2_GlobMembersHaveTheSameLeaf(t *testing.T) {
	o, w := newSubscribed(t)
	w.SubscribeAll(shopKey)
	o.subscribe(w, shop+"a")
	r := o.resource(shop+"a", "1", "content")
	o.Apply(Wildcard, updateOf(shopKey, r))
	o.Apply(ByName, updateOf(acme, r))
	glob, named := o.view.Generation().Type(shopKey).Wildcard.Sum(), o.typ().ByName.Sum()
	if glob != named || glob == (fingerprint.Sum{}) {
		t.Errorf("sums: %v of the collection, %v of the set of names, want equal sums", glob, named)
	}
}

// TestB11_GlobsKeepPriorClusters: removed clusters and endpoints keep their last content, also in a collection (B.11).
func TestB11_GlobsKeepPriorClusters(t *testing.T) {
	for _, typeURL := range []string{wire.ClusterType, wire.EndpointType, acme} {
		o := newOrigin(t, Config{})
		o.typeURL = typeURL
		key := Collection(typeURL, shop+"*")
		o.view.Watch().SubscribeAll(key)
		o.Apply(Wildcard, updateOf(key, o.resource(shop+"a", "1", "")))
		o.Apply(Wildcard, wire.Update{TypeURL: key, Removed: []string{shop + "a"}})
		for e := range o.view.Generation().Type(key).Wildcard.Since(0) {
			if keeps := e.Prior != nil; keeps != (typeURL != acme) {
				t.Errorf("%s: has a prior resource: %t", typeURL, keeps)
			}
		}
	}
}

// newTwoOrigins returns the origins of one view. The second answers for the names of one authority, the first for all
// others.
func newTwoOrigins(t *testing.T) (first, second *origin) {
	v, writers := NewRouted(Config{Sources: 2, Route: func(_, name string) int {
		if strings.HasPrefix(name, "xdstp://two/") {
			return 1
		}
		return 0
	}})
	origins := make([]*origin, 2)
	for i, w := range writers {
		w.SetConnected(true)
		origins[i] = &origin{tester: t, Writer: w, view: v, typeURL: acme}
	}
	return origins[0], origins[1]
}

// TestR129_OriginsAnswerOnlyForTheirResources: a response of an origin for a name of another origin does not reach
// subscribers of the name: neither as a resource, nor as a removal, an error or an alias (R129).
func TestR129_OriginsAnswerOnlyForTheirResources(t *testing.T) {
	first, second := newTwoOrigins(t)
	w := first.view.Watch()
	n := w.Subscribe(acme, []string{mall + "a"})[0]
	w.SubscribeAll(acme)
	if d := first.TakeDemand(); len(d) != 1 || d[0].Name != nil {
		t.Errorf("demand of the first: %v, want the wildcard", d)
	}
	if d := second.TakeDemand(); len(d) != 1 || d[0].Name != n {
		t.Errorf("demand of the second: %v, want the name", d)
	}
	see := func(want string) {
		t.Helper()
		if e, _ := first.typ().Lookup(n); contentOf(e) != want {
			t.Errorf("subscriber to the name sees %q, want %q", contentOf(e), want)
		}
	}
	first.put(Wildcard, mall+"a", "1", "stranger")
	first.put(ByName, mall+"a", "1", "stranger")
	first.put(ByName, "other", "1", "stranger", mall+"a")
	first.remove(ByName, mall+"a")
	see("")
	if got := contentOf(first.typ().Wildcard.Get(n)); got != "stranger" {
		t.Errorf("wildcard set has %q, want the content of the first origin", got)
	}
	second.put(ByName, mall+"a", "1", "own")
	see("own")
	first.put(Wildcard, mall+"a", "2", "stranger still")
	first.remove(ByName, mall+"a")
	see("own")
	_, before := first.typ().Lookup(n)
	first.remove(Wildcard, mall+"a") // has no effect on the name
	see("own")
	if _, since := first.typ().Lookup(n); since != before {
		t.Errorf("visible since %d, want %d", since, before)
	}
	denied := wire.NewResourceError(mall+"a", codes.PermissionDenied, "")
	second.Apply(ByName, wire.Update{TypeURL: acme, Errors: []*wire.ResourceError{denied}})
	first.remove(ByName, mall+"a")
	if first.typ().Errors(ByName).Get(n) == nil {
		t.Error("first origin cleared an error of the second origin")
	}
	second.remove(ByName, mall+"a")
	see("-")
	if first.typ().Errors(ByName).Get(n) != nil {
		t.Error("second origin did not clear its error")
	}
}

// TestB40_OriginsAreIndependent: each origin has its own connection state.
func TestB40_OriginsAreIndependent(t *testing.T) {
	first, second := newTwoOrigins(t)
	w := first.view.Watch()
	names := w.Subscribe(acme, []string{"a", mall + "a"})
	first.TakeDemand()
	second.TakeDemand()
	first.remove(ByName, "a")
	second.remove(ByName, mall+"a")
	now := time.Now()
	first.Asked(names[:1], now)
	second.Asked(names[1:], now)
	check := func(what string, wantFirst, wantSecond bool) {
		t.Helper()
		g := first.view.Generation()
		for i, want := range []bool{wantFirst, wantSecond} {
			e, _ := g.Type(acme).Lookup(names[i])
			if from := g.From(names[i]); from.Connected != want || g.Absent(e) != want || names[i].Asked().IsZero() == want {
				t.Errorf("%s: %v: connected %t, absent %t, requested at %v; want %t", what, names[i], from.Connected, g.Absent(e),
					names[i].Asked(), want)
			}
		}
	}
	check("both connected", true, true)
	second.SetConnected(false)
	check("second disconnected", true, false)
	if g := first.view.Generation(); g.WildcardSource(acme).Connected != true ||
		g.WildcardSource(Collection(acme, mall+"*")).Connected {
		t.Error("want the wildcard of the type at the first origin, connected, and the glob at the second, disconnected")
	}
	first.SetConnected(false)
	check("both disconnected", false, false)
}
