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

// known returns how many types and collections a view keeps, and how many its head has.
func known(v *View) (kept, inHead int) { return len(v.index.types), v.Generation().Types() }

// A collection is forgotten once nobody follows it, and so is a type that the protocol does not know: however the demand changed since it
// was taken last, and whether or not anybody had noticed it.
func TestR132_ACollectionIsForgotten(t *testing.T) {
	tests := []struct {
		name string
		do   func(o *origin, w *Watch)
	}{
		{"came and went unnoticed", func(o *origin, w *Watch) {
			w.UnsubscribeAll(w.SubscribeAll(shopKey))
			if d := o.TakeDemand(); len(d) != 0 {
				o.Errorf("demand: got %v, want none", d)
			}
		}},
		{"given up", func(o *origin, w *Watch) {
			wc := w.SubscribeAll(shopKey)
			o.TakeDemand()
			o.typeURL = shopKey
			o.Apply(Wildcard, wire.Update{TypeURL: shopKey, Resources: []*wire.Resource{newResource(o, acme, shop+"a", "1", "")}})
			o.remove(Wildcard, shop+"a")
			w.UnsubscribeAll(wc)
			if d := o.TakeDemand(); len(d) != 1 || d[0].Wanted || !o.ForgetWildcard(shopKey) {
				o.Errorf("demand: got %v, want the collection given up, and it forgotten", d)
			}
		}},
		{"given up twice", func(o *origin, w *Watch) {
			wc := w.SubscribeAll(shopKey)
			o.TakeDemand()
			w.UnsubscribeAll(wc)
			o.TakeDemand()
			w.UnsubscribeAll(w.SubscribeAll(shopKey)) // while it lingers, and ends to
			if !o.ForgetWildcard(shopKey) {
				o.Errorf("not forgotten, though nobody follows it")
			}
			if d := o.TakeDemand(); len(d) != 0 {
				o.Errorf("demand: got %v, want none", d)
			}
		}},
		{"wanted again in time", func(o *origin, w *Watch) {
			wc := w.SubscribeAll(shopKey)
			o.TakeDemand()
			w.UnsubscribeAll(wc)
			o.TakeDemand()
			wc = w.SubscribeAll(shopKey)
			if o.ForgetWildcard(shopKey) {
				o.Errorf("forgotten under a stream")
			}
			if d := o.TakeDemand(); len(d) != 1 || !d[0].Wanted {
				o.Errorf("demand: got %v, want the collection", d)
			}
			w.UnsubscribeAll(wc)
			o.TakeDemand()
			o.ForgetWildcard(shopKey)
		}},
		{"wanted again too late", func(o *origin, w *Watch) {
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
			o, w := watched(t)
			tt.do(o, w)
			kept, inHead := known(o.view)
			if _, types := o.view.HasType(acme); kept != 0 || types != 0 || inHead != 0 || o.view.index.collections != 0 {
				t.Errorf("%d types and collections are kept, of which %d count, %d in the head; want none", kept, types, inHead)
			}
			o.Expire(time.Now().Add(time.Hour)) // of what may be left in the heap
			o.Trim(time.Now().Add(time.Hour))
			if again, _ := known(o.view); again != kept {
				t.Errorf("%d types and collections after an hour, want %d", again, kept)
			}
		})
	}
}

// However many globs of a type there are, the type counts, and they do not.
func TestB35_GlobsCountAsTheirType(t *testing.T) {
	o, w := watched(t)
	for _, glob := range []string{"a/*", "b/*", "c/*"} {
		w.SubscribeAll(Collection(acme, "xdstp://one/acme.Thing/"+glob))
	}
	w.SubscribeAll(Collection(other, "xdstp://one/acme.Other/*"))
	if hasAcme, types := o.view.HasType(acme); !hasAcme || types != 2 {
		t.Errorf("the type is known: %t; %d types, want 2", hasAcme, types)
	}
}

// A resource adds the same to a version by name, as a member of all, and of a glob.
func TestB2_AMemberOfAGlobIsNoOtherResource(t *testing.T) {
	o, w := watched(t)
	w.SubscribeAll(shopKey)
	o.want(w, shop+"a")
	r := o.resource(shop+"a", "1", "content")
	o.Apply(Wildcard, wire.Update{TypeURL: shopKey, Resources: []*wire.Resource{r}})
	o.Apply(ByName, wire.Update{TypeURL: acme, Resources: []*wire.Resource{r}})
	if glob, named := o.view.Generation().Type(shopKey).Wildcard.Sum(), o.typ().ByName.Sum(); glob != named || glob == (fingerprint.Sum{}) {
		t.Errorf("sums: %v as a member, %v by name, want equal ones", glob, named)
	}
}

// Clusters and endpoints that are gone keep what they were, in a glob too (B.11).
func TestB11_AGlobRemembersClusters(t *testing.T) {
	for _, typeURL := range []string{wire.ClusterType, wire.EndpointType, acme} {
		o := newOrigin(t, Config{})
		o.typeURL = typeURL
		key := Collection(typeURL, shop+"*")
		o.view.Watch().SubscribeAll(key)
		o.Apply(Wildcard, wire.Update{TypeURL: key, Resources: []*wire.Resource{o.resource(shop+"a", "1", "")}})
		o.Apply(Wildcard, wire.Update{TypeURL: key, Removed: []string{shop + "a"}})
		for e := range o.view.Generation().Type(key).Wildcard.Since(0) {
			if keeps := e.Prior != nil; keeps != (typeURL != acme) {
				t.Errorf("%s: keeps what it was: %t", typeURL, keeps)
			}
		}
	}
}

// twoOrigins is a view whose names of one authority have an origin of their own, the
// second; the first has all else.
func twoOrigins(t *testing.T) (first, second *origin) {
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

// What one origin says of a name that another one answers for reaches nobody who named
// it: not as a member, not as gone, not as what is wrong, nor as an alias (R129).
func TestR129_OriginsAnswerOnlyForTheirResources(t *testing.T) {
	first, second := twoOrigins(t)
	w := first.view.Watch()
	n := w.Subscribe(acme, []string{mall + "a"})[0]
	w.SubscribeAll(acme)
	if d := first.TakeDemand(); len(d) != 1 || d[0].Name != nil {
		t.Errorf("demand of the first: %v, want the members", d)
	}
	if d := second.TakeDemand(); len(d) != 1 || d[0].Name != n {
		t.Errorf("demand of the second: %v, want the name", d)
	}
	see := func(want string) {
		t.Helper()
		if e, _ := first.typ().Lookup(n); contentOf(e) != want {
			t.Errorf("who named it sees %q, want %q", contentOf(e), want)
		}
	}
	first.put(Wildcard, mall+"a", "1", "stranger")
	first.put(ByName, mall+"a", "1", "stranger")
	first.put(ByName, "other", "1", "stranger", mall+"a")
	first.remove(ByName, mall+"a")
	see("")
	if got := contentOf(first.typ().Wildcard.Get(n)); got != "stranger" {
		t.Errorf("who follows all sees %q, want the first origin's", got)
	}
	second.put(ByName, mall+"a", "1", "own")
	see("own")
	first.put(Wildcard, mall+"a", "2", "stranger still")
	first.remove(ByName, mall+"a")
	see("own")
	_, before := first.typ().Lookup(n)
	first.remove(Wildcard, mall+"a") // uncovers nothing: nobody saw it
	see("own")
	if _, since := first.typ().Lookup(n); since != before {
		t.Errorf("it is news since %d, want %d", since, before)
	}
	denied := wire.NewResourceError(mall+"a", codes.PermissionDenied, "")
	second.Apply(ByName, wire.Update{TypeURL: acme, Errors: []*wire.ResourceError{denied}})
	first.remove(ByName, mall+"a")
	if first.typ().Errors(ByName).Get(n) == nil {
		t.Error("the first origin cleared what the second said is wrong")
	}
	second.remove(ByName, mall+"a")
	see("-")
	if first.typ().Errors(ByName).Get(n) != nil {
		t.Error("the second origin did not clear what it said is wrong")
	}
}

// Each origin is there, or is not, by itself.
func TestB40_OriginsAreIndependent(t *testing.T) {
	first, second := twoOrigins(t)
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
				t.Errorf("%s: %v: connected %t, absent %t, asked at %v; want %t", what, names[i], from.Connected, g.Absent(e), names[i].Asked(), want)
			}
		}
	}
	check("both up", true, true)
	second.SetConnected(false)
	check("the second down", true, false)
	if g := first.view.Generation(); g.WildcardSource(acme).Connected != true || g.WildcardSource(Collection(acme, mall+"*")).Connected {
		t.Error("members: want the first origin up for the type, and the second down for the glob")
	}
	first.SetConnected(false)
	check("both down", false, false)
}
