package cache

import (
	"fmt"
	"slices"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache/wire"
)

// envConstraints returns constraints that clients with this value of env satisfy, or for an empty value, clients
// without env.
func envConstraints(env string) *discoverypb.DynamicParameterConstraints {
	single := &discoverypb.DynamicParameterConstraints_SingleConstraint{
		Key:            "env",
		ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Value{Value: env},
	}
	if env == "" {
		single.ConstraintType = &discoverypb.DynamicParameterConstraints_SingleConstraint_Exists_{}
	}
	c := &discoverypb.DynamicParameterConstraints{
		Type: &discoverypb.DynamicParameterConstraints_Constraint{Constraint: single},
	}
	if env != "" {
		return c
	}
	return &discoverypb.DynamicParameterConstraints{
		Type: &discoverypb.DynamicParameterConstraints_NotConstraints{NotConstraints: c},
	}
}

// variantOf returns a variant of a resource with envConstraints.
func variantOf(t tester, name, content, env string) *wire.Resource {
	t.Helper()
	return decoded(t, acme, &discoverypb.Resource{
		ResourceName: &discoverypb.ResourceName{Name: name, DynamicParameterConstraints: envConstraints(env)},
		Version:      content,
		Resource:     &anypb.Any{TypeUrl: acme, Value: []byte(content)},
	})
}

func withEnv(name, env string) string {
	return wire.WithParameters(name, map[string]string{"env": env})
}

// contentFor returns the content that a subscriber to a text sees: "" if the resource is absent, "?" without a
// response.
func (o *origin) contentFor(text string) string {
	o.Helper()
	switch e, _ := o.typ().Lookup(o.name(text)); {
	case e == nil:
		return "?"
	case !e.Present():
		return ""
	default:
		return string(e.Resource.Value())
	}
}

// TestR121_RemovalOfNameKeepsVariants: the removal of a name does not remove its variants, which are removed by their
// constraints. It is a removal for clients that were sent no variant.
func TestR121_RemovalOfNameKeepsVariants(t *testing.T) {
	o := newOrigin(t, Config{})
	prod, test := withEnv("a", "prod"), withEnv("a", "test")
	o.subscribe(o.view.Watch(), prod, test)
	o.Apply(ByName, wire.Update{
		TypeURL:   acme,
		Resources: []*wire.Resource{variantOf(t, "a", "for prod", "prod")},
		Removed:   []string{"a"},
	})
	if got := o.contentFor(prod); got != "for prod" {
		t.Errorf("with env=prod: %q, want the variant for prod", got)
	}
	if got := o.contentFor(test); got != "" {
		t.Errorf("with env=test: %q, want none", got)
	}
	o.remove(ByName, "a")
	if got := o.contentFor(prod); got != "for prod" {
		t.Errorf("with env=prod, after a second removal of the name: %q, want the variant for prod", got)
	}
}

// TestR121_RemovalOfNameRemovesUnconstrained: the removal of a name removes a resource without constraints for all
// clients, whatever their parameters.
func TestR121_RemovalOfNameRemovesUnconstrained(t *testing.T) {
	o := newOrigin(t, Config{})
	prod := withEnv("a", "prod")
	o.subscribe(o.view.Watch(), "a", prod)
	o.put(ByName, "a", "1", "for all")
	for _, text := range []string{"a", prod} {
		if got := o.contentFor(text); got != "for all" {
			t.Errorf("%q: %q, want the resource", text, got)
		}
	}
	o.remove(ByName, "a")
	for _, text := range []string{"a", prod} {
		if got := o.contentFor(text); got != "" {
			t.Errorf("%q, after the removal: %q, want none", text, got)
		}
	}
}

// TestR122_TheFirstOfSeveralVariantsCounts: if several variants in an update match the same parameters, the first is
// used, even if it has not changed. Repeating the update changes nothing.
func TestR122_TheFirstOfSeveralVariantsCounts(t *testing.T) {
	for _, kind := range []Kind{Wildcard, ByName} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			o, _ := newSubscribed(t, "a")
			u := updateOf(acme, variantOf(t, "a", "first", ""), o.resource("a", "2", "second"))
			for i := range 3 {
				c := o.Apply(kind, u)
				if i > 0 && c.Changed != 0 {
					t.Errorf("update %d: %d changes, want none", i, c.Changed)
				}
				if !slices.Equal(c.Ambiguous, []string{"a"}) {
					t.Errorf("update %d: ambiguous %q, want a", i, c.Ambiguous)
				}
				if got := o.contentFor("a"); got != "first" {
					t.Errorf("update %d: %q, want the first", i, got)
				}
			}
		})
	}
}

// TestR121_AMemberIsRemovedByItsConstraints: a variant in the wildcard set is removed by its constraints, which wakes
// wildcard streams. Its tombstone is dropped like any other.
func TestR121_AMemberIsRemovedByItsConstraints(t *testing.T) {
	o, w := newSubscribed(t)
	wildcard := w.SubscribeAll(acme)
	r := variantOf(t, "a", "first", "")
	o.Apply(Wildcard, updateOf(acme, r))
	woken(w)
	o.Apply(Wildcard, wire.Update{TypeURL: acme, RemovedVariants: []wire.Variant{r.Variant()}})
	if !woken(w) {
		t.Error("no wake-up")
	}
	if n := o.typ().Wildcard.Count(); n != 0 {
		t.Errorf("%d resources in the wildcard set, want none", n)
	}
	wildcard.Passed(o.view.Generation().Seq)
	o.Trim(time.Now())
	if o.hasName("a") {
		t.Error("name is still in the index after its tombstone was dropped")
	}
}

// TestR107_RemovedResourcesLeaveNoDeadlines: resources that are added and removed do not grow the heap of deadlines for
// as long as their TTLs (D.4, 11).
func TestR107_RemovedResourcesLeaveNoDeadlines(t *testing.T) {
	o, _ := newSubscribed(t, "b")
	r := expiring(t, "a", "1", "x")
	for range 1000 {
		o.Apply(Wildcard, updateOf(acme, r))
		o.remove(Wildcard, "a")
	}
	o.Apply(ByName, updateOf(acme, expiring(t, "b", "1", "x")))
	for range 200 {
		o.Apply(Wildcard, updateOf(acme, r))
		o.remove(Wildcard, "a")
	}
	if n := len(o.rest().due); n > 200 {
		t.Errorf("%d deadlines for one resource, want at most 200", n)
	}
	o.Expire(time.Now().Add(time.Hour))
	if got := o.contentFor("b"); got != "" {
		t.Errorf("an hour later: %q, want the resource expired", got)
	}
}
