package cache

import (
	"fmt"
	"slices"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache/fingerprint"
)

func TestR092_Aliases(t *testing.T) {
	o := newOrigin(t, Config{})
	byAlias, byName, byBoth, unrelated := o.view.Watch(), o.view.Watch(), o.view.Watch(), o.view.Watch()
	o.subscribe(byAlias, "alias")
	o.subscribe(byName, "real")
	o.subscribe(byBoth, "real", "alias")
	o.subscribe(unrelated, "further")
	woken := func(when string, want ...bool) {
		t.Helper()
		if got := []bool{woken(byAlias), woken(byName), woken(byBoth), woken(unrelated)}; !slices.Equal(got, want) {
			t.Errorf("%s: got woken %t, want %t", when, got, want)
		}
	}
	wantContent := func(when, name, want string) {
		t.Helper()
		e, _ := o.typ().Lookup(o.name(name))
		if got := contentOf(e); got != want || e.Present() && e.Resource.Name != "real" ||
			e != nil && e.Prior != nil && e.Prior.Name != "real" {
			t.Errorf("%s: %s: got %q, want %q", when, name, got, want)
		}
	}
	if o.typ().ByName.Aliased() {
		t.Error("set is aliased before any alias was added")
	}
	if change := o.put(ByName, "real", "1", "x", "alias", "unwanted"); change.Seen != 1 || change.Ignored != 0 {
		t.Errorf("got %+v, want one resource seen", change)
	}
	woken("put", true, true, true, false)
	wantContent("put", "alias", "x")
	wantContent("put", "real", "x")
	if !o.typ().ByName.Aliased() || o.hasName("unwanted") {
		t.Errorf("got aliased %t, unsubscribed alias in the index %t; want true, false", o.typ().ByName.Aliased(),
			o.hasName("unwanted"))
	}
	o.put(ByName, "real", "2", "y", "alias", "alias", "real")
	wantContent("changed", "alias", "y")
	wantContent("changed", "real", "y")
	woken("changed", true, true, true, false)
	o.remove(ByName, "real")
	woken("removed", true, true, true, false)
	wantContent("removed", "alias", "-")
	wantContent("removed", "real", "-")
	if o.typ().ByName.Count() != 0 || o.typ().ByName.Sum() != (fingerprint.Sum{}) {
		t.Errorf("removed: got %d resources, want 0", o.typ().ByName.Count())
	}
	o.put(ByName, "real", "3", "z", "alias")
	wantContent("added again", "alias", "z")
	o.remove(ByName, "real")
	wantContent("removed again", "alias", "-")
	o.put(ByName, "real", "4", "z", "alias")
	woken("added a third time", true, true, true, false)
	o.remove(ByName, "alias") // the origin may use the requested name, an alias
	woken("alias removed", true, false, true, false)
	wantContent("alias removed", "alias", "-")
	wantContent("alias removed", "real", "z")
}

// TestR092_AliasMoves: if an alias begins to name another resource, that is a change even if the bytes are equal. The
// removal of the first resource does not affect the alias any more.
func TestR092_AliasMoves(t *testing.T) {
	o, watch := newSubscribed(t)
	n := o.subscribe(watch, "alias")[0]
	o.put(ByName, "one", "1", "same", "alias")
	woken(watch)
	o.put(ByName, "two", "1", "same", "alias")
	if e, _ := o.typ().Lookup(n); !woken(watch) || e.Resource.Name != "two" {
		t.Errorf("moved: alias names resource %q, want two and a wake-up", e.Resource.Name)
	}
	o.remove(ByName, "one")
	if e, _ := o.typ().Lookup(n); !e.Present() {
		t.Error("alias removed with a resource that it no longer names")
	}
	o.remove(ByName, "two")
	if e, _ := o.typ().Lookup(n); e.Present() {
		t.Error("alias still present after the removal of its resource")
	}
}

// TestR092_AliasesAreForgotten: with VHDS, Envoy subscribes to one alias after another. No state of unused aliases may
// remain.
func TestR092_AliasesAreForgotten(t *testing.T) {
	o, watch := newSubscribed(t)
	for i := range 100 {
		host := "host" + fmt.Sprint(i)
		names := o.subscribe(watch, "real/"+host)
		if i%2 == 0 {
			o.put(ByName, "real", "1", "x", "real/"+host)
		} else {
			o.put(ByName, host, "1", "x", "real/"+host)
			o.put(ByName, host+"'", "1", "x", "real/"+host)
		}
		watch.Unsubscribe(acme, names)
		o.TakeDemand()
		o.Forget(acme, names)
	}
	if n := len(o.rest().aliases[acme]); n != 0 {
		t.Errorf("got %d resources with aliases, want 0", n)
	}
	if set := &o.typ().ByName; set.live != 0 || set.Count() != 0 {
		t.Errorf("got %d entries of which %d are present, want none", set.live, set.Count())
	}
}

func TestR095_UnresolvedAliasIsForwarded(t *testing.T) {
	o := newOrigin(t, Config{})
	n := o.subscribe(o.view.Watch(), "alias")[0]
	o.Apply(ByName,
		updateOf(acme, decoded(t, acme, &discoverypb.Resource{Name: "x", Version: "1", Aliases: []string{"alias"}})))
	e, _ := o.typ().Lookup(n)
	if !e.Present() || e.Resource.HasBody() {
		t.Fatalf("got %+v, want a resource without a body", e)
	}
	o.put(ByName, "x", "2", "y", "alias")
	if e, _ := o.typ().Lookup(n); contentOf(e) != "y" {
		t.Errorf("resolved: got %q, want y", contentOf(e))
	}
}

// TestB20_UnresolvedAliasesExpire: the response that an alias names no resource is served for 5s. After that, the next
// subscriber causes a new request, and an equal response is no change for earlier subscribers.
func TestB20_UnresolvedAliasesExpire(t *testing.T) {
	o := newOrigin(t, Config{})
	watch, next := o.view.Watch(), o.view.Watch()
	n := o.subscribe(watch, "alias")[0]
	respond := func() {
		o.Apply(ByName, updateOf(acme, decoded(t, acme, &discoverypb.Resource{Name: "alias", Aliases: []string{"alias"}})))
	}
	respond()
	_, sent := o.typ().Lookup(n)
	wantRequest := func(when string, want bool) {
		t.Helper()
		next.Subscribe(acme, []string{"alias"})
		requested := false
		for _, d := range o.TakeDemand() {
			requested = requested || d.Refetch
		}
		next.Unsubscribe(acme, []*Name{n})
		if requested != want {
			t.Errorf("%s: requested again %t, want %t", when, requested, want)
		}
	}
	later := o.Expire(time.Now())
	if left := time.Until(later); left < 4*time.Second || left > 5*time.Second {
		t.Errorf("expires in %v, want 5s", left)
	}
	wantRequest("within 5s", false)
	o.Expire(later)
	if e, _ := o.typ().Lookup(n); !e.Resource.ContentDropped() || !e.Resource.Unresolved() {
		t.Errorf("after 5s: got %+v, want its content dropped", e)
	}
	wantRequest("after 5s", true)
	wantRequest("before a response", false)
	respond()
	if e, seq := o.typ().Lookup(n); seq != sent || e.Resource.ContentDropped() {
		t.Errorf("equal response changed the position from %[2]d to %[1]d", seq, sent)
	}
	wantRequest("after the response", false)
}

// TestB20_UnlistedAliases: if an origin lists only the last requested alias, a change of the resource also applies to
// the other aliases.
func TestB20_UnlistedAliases(t *testing.T) {
	o, watch := newSubscribed(t)
	names := o.subscribe(watch, "one", "two", "three")
	wantContents := func(when string, want ...string) {
		t.Helper()
		for i, n := range names {
			if e, _ := o.typ().Lookup(n); contentOf(e) != want[i] {
				t.Errorf("%s: %v: got %q, want %q", when, n, contentOf(e), want[i])
			}
		}
	}
	o.put(ByName, "real", "1", "x", "one")
	o.put(ByName, "real", "1", "x", "two")
	wantContents("added", "x", "x", "")
	if e, _ := o.typ().Lookup(names[0]); !slices.Equal(e.Resource.Aliases, []string{"one"}) {
		t.Errorf("one: got aliases %q, want only one", e.Resource.Aliases)
	}
	if c := o.put(ByName, "real", "2", "y", "two"); c.Seen != 1 || c.Ignored != 0 {
		t.Errorf("changed: got %+v, want one resource seen", c)
	}
	wantContents("changed", "y", "y", "")
	if c := o.put(ByName, "real", "3", "z"); c.Seen != 1 || c.Ignored != 0 {
		t.Errorf("no alias: got %+v, want one resource seen", c)
	}
	wantContents("no alias", "z", "z", "")
	o.put(ByName, "other", "1", "o", "one")
	o.put(ByName, "real", "4", "w")
	wantContents("one moved", "o", "w", "")
	o.remove(ByName, "two")
	o.put(ByName, "real", "5", "v")
	wantContents("two removed", "o", "-", "")
}
