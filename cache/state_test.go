package cache

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// rollbackConfig returns a configuration in which changes of acme and of clusters are rolled back.
func rollbackConfig() Config {
	return Config{Waits: func(typeURL string) bool { return slices.Contains([]string{acme, wire.ClusterType}, typeURL) }}
}

// next moves a state to the newest generation of the view, and returns the step.
func (o *origin) next(s **State) (step Step) {
	*s, step = (*s).Next(o.view.Generation())
	return step
}

// TestStateOmitsFirstState: a step does not include first responses, members of an unconfirmed set, uncacheable
// content, and names without subscribers. A dropped wildcard set makes it Broken.
func TestStateOmitsFirstState(t *testing.T) {
	o := newOrigin(t, rollbackConfig())
	w := o.view.Watch()
	all := w.SubscribeAll(acme)
	names := o.subscribe(w, "n", "passing")
	state := o.view.NewState(0)
	nothing := func(when string) {
		t.Helper()
		if !state.Changed(state.Of().Revision, o.view.Generation()) {
			t.Errorf("%s: Changed is false before the step", when)
		}
		if step := o.next(&state); len(step.Formers) > 0 || step.Broken {
			t.Errorf("%s: the step is %+v, want none", when, step)
		}
		if state.Changed(state.Of().Revision, o.view.Generation()) {
			t.Errorf("%s: Changed is true after the step", when)
		}
	}
	o.put(Wildcard, "a", "1", "a1")
	nothing("the first member")
	o.put(Wildcard, "a", "2", "a2")
	o.put(ByName, "n", "1", "n1")
	o.putUncacheable(ByName, "passing", "1", "p1")
	nothing("not confirmed")
	o.SetPhase(acme, Confirmed)
	o.putUncacheable(ByName, "passing", "2", "p2")
	o.fail(ByName, "n", codes.Internal, "no")
	nothing("confirmed")
	w.Unsubscribe(acme, names)
	o.TakeDemand()
	o.Forget(acme, names)
	nothing("forgotten")
	o.typeURL = other
	o.put(Wildcard, "x", "1", "x1")
	if state.Changed(state.Of().Revision, o.view.Generation()) {
		t.Error("Changed is true for a type that is not part of the state")
	}
	w.UnsubscribeAll(all)
	o.TakeDemand()
	o.ForgetWildcard(acme)
	if step := o.next(&state); !step.Broken || state.Digest() != "" {
		t.Errorf("set dropped: step %+v, digest %q", step, state.Digest())
	}
}

// TestB2_StatesOfReplicas: equal content has an equal digest, in any order of the changes, and after content was
// changed and changed back.
func TestB2_StatesOfReplicas(t *testing.T) {
	one, two := newOrigin(t, rollbackConfig()), newOrigin(t, rollbackConfig())
	for _, name := range []string{"a", "b"} {
		one.put(Wildcard, name, "1", name)
	}
	for _, name := range []string{"b", "x", "a"} {
		two.put(Wildcard, name, "9", name)
	}
	a, b := one.view.NewState(0), two.view.NewState(0)
	if a.Digest() == b.Digest() || a.Digest() == "" {
		t.Errorf("other content has the same digest %q", a.Digest())
	}
	two.remove(Wildcard, "x")
	if two.next(&b); a.Digest() != b.Digest() {
		t.Errorf("digests of replicas: %s and %s, want equal ones", a.Digest(), b.Digest())
	}
	one.put(Wildcard, "a", "2", "other")
	one.next(&a)
	one.put(Wildcard, "a", "1", "a")
	if one.next(&a); a.Digest() != b.Digest() {
		t.Errorf("changed back: digest %s, want %s", a.Digest(), b.Digest())
	}
}
