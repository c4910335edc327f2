package cache

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache/wire"
)

// staged is a configuration in which acme and clusters go back in a rollback.
func staged() Config {
	return Config{Waits: func(typeURL string) bool { return slices.Contains([]string{acme, wire.ClusterType}, typeURL) }}
}

// next moves a state to what readers see now, and returns the step.
func (o *origin) next(s **State) (step Step) {
	*s, step = (*s).Next(o.view.Generation())
	return step
}

// newStaged is newFollowed for a view that rollbacks return to earlier states, and its state.
func newStaged(t tester) (*cold, *State) {
	o := newFollowed(t, staged())
	return o, o.view.NewState(0)
}

// TestH13_RollbackShowsAnEarlierState: readers learn just the difference, and what the origin changes waits until the thaw; the
// first answer for a name does not.
func TestH13_RollbackShowsAnEarlierState(t *testing.T) {
	o, state := newStaged(t)
	before := state.Digest()
	o.put(Wildcard, "a", "2", "a2")
	o.put(Wildcard, "new", "1", "new1")
	o.remove(Wildcard, "b")
	o.put(ByName, "n", "2", "n2")
	o.put(ByName, "gone", "1", "gone1")
	step := o.next(&state)
	if step.Added != 2 || step.Changed != 2 || step.Removed != 1 || step.Broken {
		t.Errorf("the step adds %d, changes %d and removes %d, broken %t; want 2, 2, 1 and whole", step.Added, step.Changed, step.Removed, step.Broken)
	}
	e := o.PinFormer(step.Formers)
	if len(e.Changes[acme]) != 5 {
		t.Errorf("the edition changes %v, want 5 resources", e.Changes)
	}
	o.shows("pinned", map[string]string{"a": "a2"})
	o.check()
	at, since := o.view.Generation().Seq, time.Now()
	o.RollBack(e, since)
	wantTold(t, o.typ().Wildcard.Since(at), "a", "b", "-new")
	o.shows("rolled back", map[string]string{"a": "a1", "b": "b1", "c": "c1", "n": "n1", "gone": "-", "new": ""})
	o.next(&state)
	if got := state.Digest(); got != before {
		t.Errorf("rolled back, readers see the generation %s, want %s", got, before)
	}
	o.put(Wildcard, "a", "3", "a3")
	o.put(Wildcard, "c", "2", "c2")
	o.want(o.view.Watch(), "late")
	o.put(ByName, "late", "1", "late1")
	o.shows("rolled back", map[string]string{"a": "a1", "c": "c1", "late": "late1"})
	if is := o.view.Generation().First(); !is.RolledBack.Equal(since) || !is.Frozen.IsZero() || o.view.Withheld(0) != 6 {
		t.Errorf("the source is %+v, and %d names are withheld; want it rolled back, not frozen, and 6", is, o.view.Withheld(0))
	}
	o.check()
	o.Thaw()
	o.shows("thawed", map[string]string{"a": "a3", "b": "", "c": "c2", "n": "n2", "gone": "gone1", "new": "new1", "late": "late1"})
	if is := o.view.Generation().First(); !is.RolledBack.IsZero() || o.view.Withheld(0) != 0 {
		t.Errorf("thawed, the source is %+v, and %d names are withheld", is, o.view.Withheld(0))
	}
	o.check()
}

// TestH13_RollbackLeavesEndpoints: they are not part of a generation. What they contain passes, and their removals wait for the
// thaw, so that no cluster which is served again loses them.
func TestH13_RollbackLeavesEndpoints(t *testing.T) {
	o, _ := newStaged(t)
	o.confirmed(wire.EndpointType, "e", "kept")
	o.confirmed(other, "x")
	o.confirmed(wire.ClusterType, "c")
	state := o.view.NewState(0)
	o.put(Wildcard, "c", "2", "c2")
	step := o.next(&state)
	o.RollBack(o.PinFormer(step.Formers), time.Now())
	for _, o.typeURL = range []string{wire.EndpointType, other} {
		for e := range o.typ().Wildcard.Since(0) {
			o.put(Wildcard, e.Name.String(), "2", e.Name.String()+"2")
		}
	}
	o.shows("rolled back", map[string]string{"x": "x2"})
	o.typeURL = wire.EndpointType
	o.remove(Wildcard, "e")
	o.shows("rolled back", map[string]string{"e": "e2", "kept": "kept2"})
	o.typeURL = wire.ClusterType
	o.shows("rolled back", map[string]string{"c": "c1"})
	o.Thaw()
	o.shows("thawed", map[string]string{"c": "c2"})
	o.typeURL = wire.EndpointType
	o.shows("thawed", map[string]string{"e": "", "kept": "kept2"})
	o.check()
}

// TestH13_RollbackEndsAFreeze: endpoints go on, and streams that waited for the thaw are woken.
func TestH13_RollbackEndsAFreeze(t *testing.T) {
	o, state := newStaged(t)
	o.put(Wildcard, "a", "2", "a2")
	step := o.next(&state)
	o.confirmed(other, "x")
	o.Freeze()
	o.put(Wildcard, "x", "2", "x2")
	idle := o.view.Watch()
	o.RollBack(o.PinFormer(step.Formers), time.Now())
	if !awake(idle) || o.Frozen() || !o.view.Generation().First().Frozen.IsZero() {
		t.Error("still frozen, or streams were not woken")
	}
	o.shows("rolled back", map[string]string{"x": "x2"})
	o.typeURL = acme
	o.shows("rolled back", map[string]string{"a": "a1"})
	o.Thaw()
	o.shows("thawed", map[string]string{"a": "a2"})
	o.check()
}

// TestH09_RollbackInASnapshot: it goes on with what the snapshot has, which is complete, and what is absent stays so. The
// generations in it lead back to each.
func TestH09_RollbackInASnapshot(t *testing.T) {
	o, state := newStaged(t)
	first := state.Digest()
	o.put(Wildcard, "a", "2", "a2")
	o.put(Wildcard, "new", "1", "new1")
	step := o.next(&state)
	since := time.Now().Round(0)
	o.RollBack(o.PinFormer(step.Formers), since)
	back := o.next(&state)
	s, _ := o.Snapshot(true)
	if s.Of() != o.view.Generation() || !s.RolledBack.Equal(since) {
		t.Errorf("the snapshot is rolled back since %v, want %v", s.RolledBack, since)
	}
	s.Generations = []GenerationSnapshot{
		{Digest: first, Since: since.Add(-time.Minute), Formers: step.Formers}, {Digest: "2", Since: since.Add(-time.Second), Added: 1, Changed: 1, Formers: back.Formers}, {Digest: first, Since: since},
	}
	var file bytes.Buffer
	if err := s.Encode(&file); err != nil {
		t.Fatal(err)
	}
	read, err := DecodeSnapshot(file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	plain := cmp.Transformer("resource", func(r *wire.Resource) string {
		if r == nil {
			return ""
		}
		return r.Name + " " + string(r.Value())
	})
	if diff := cmp.Diff(s.Generations, read.Generations, plain); diff != "" || !read.RolledBack.Equal(since) {
		t.Errorf("rolled back since %v; generations (-written +read):\n%s", read.RolledBack, diff)
	}

	o.origin = newOrigin(t, staged())
	o.SetConnected(false)
	o.Restore(read, time.Now())
	o.RollBack(nil, read.RolledBack)
	if got := o.view.NewState(0).Digest(); got != first {
		t.Errorf("restored, readers see the generation %s, want %s", got, first)
	}
	o.SetConnected(true)
	for name, content := range map[string]string{"a": "a2", "new": "new1", "b": "b1", "c": "c1"} {
		o.put(Wildcard, name, "2", content)
	}
	o.put(ByName, "gone", "1", "gone1")
	o.SetPhase(acme, Confirmed)
	o.shows("restored", map[string]string{"a": "a1", "b": "b1", "n": "n1", "gone": "-", "new": ""})
	o.RollBack(o.PinFormer(read.Generations[1].Formers), time.Now())
	o.shows("rolled back to what followed it", map[string]string{"a": "a2", "new": "new1"})
	o.Thaw()
	o.shows("thawed", map[string]string{"a": "a2", "new": "new1", "gone": "gone1"})
	o.check()
}

// TestStateLeavesFirstStateOut: first answers, members of a set that is not confirmed, content that may not be kept, and names that
// nobody wants any more are no difference. A set that was forgotten breaks the line.
func TestStateLeavesFirstStateOut(t *testing.T) {
	o := newOrigin(t, staged())
	w := o.view.Watch()
	all := w.SubscribeAll(acme)
	names := o.want(w, "n", "passing")
	state := o.view.NewState(0)
	nothing := func(when string) {
		t.Helper()
		if !state.Changed(state.Of().Revision, o.view.Generation()) {
			t.Errorf("%s: the state is not behind", when)
		}
		if step := o.next(&state); len(step.Formers) > 0 || step.Broken {
			t.Errorf("%s: the step is %+v, want none", when, step)
		}
		if state.Changed(state.Of().Revision, o.view.Generation()) {
			t.Errorf("%s: the state is behind after the step", when)
		}
	}
	o.put(Wildcard, "a", "1", "a1")
	nothing("the first member")
	o.put(Wildcard, "a", "2", "a2")
	o.put(ByName, "n", "1", "n1")
	o.putUncached(ByName, "passing", "1", "p1")
	nothing("not confirmed")
	o.SetPhase(acme, Confirmed)
	o.putUncached(ByName, "passing", "2", "p2")
	o.fail(ByName, "n", codes.Internal, "no")
	nothing("confirmed")
	w.Unsubscribe(acme, names)
	o.TakeDemand()
	o.Forget(acme, names)
	nothing("forgotten")
	o.typeURL = other
	o.put(Wildcard, "x", "1", "x1")
	if state.Changed(state.Of().Revision, o.view.Generation()) {
		t.Error("a type that is not part of it leaves the state behind")
	}
	w.UnsubscribeAll(all)
	o.TakeDemand()
	o.ForgetWildcard(acme)
	if step := o.next(&state); !step.Broken || state.Digest() != "" {
		t.Errorf("the set was forgotten: the step is %+v, the digest %q", step, state.Digest())
	}
}

// TestB2_StatesOfReplicas: equal content has an equal digest, in whatever order it came, and after it changed and changed back.
func TestB2_StatesOfReplicas(t *testing.T) {
	one, two := newOrigin(t, staged()), newOrigin(t, staged())
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
		t.Errorf("replicas see %s and %s, want one digest", a.Digest(), b.Digest())
	}
	one.put(Wildcard, "a", "2", "other")
	one.next(&a)
	one.put(Wildcard, "a", "1", "a")
	if one.next(&a); a.Digest() != b.Digest() {
		t.Errorf("changed back, it is %s, want %s", a.Digest(), b.Digest())
	}
}

// TestH13_RollbackAtAnyTime: whatever an origin says and clients want, a rollback has readers see what they saw when the generation
// was served, as far as it is not first state. Nothing of it changes until the thaw, and then readers see what those of an origin do
// that was never rolled back.
func TestH13_RollbackAtAnyTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newRolledBack(t)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			h.step(t)
			h.back.check()
		}
		h.back.thaws()
		h.back.check()
		got, want := sight(h.back.view.Generation()), sight(h.plain.view.Generation())
		for key := range want {
			if got[key] != want[key] {
				t.Fatalf("thawed, readers see %q of %s, those of an origin that was not rolled back %q", got[key], key, want[key])
			}
		}
		if got, want := h.back.typ().Wildcard.Sum(), h.plain.typ().Wildcard.Sum(); got != want {
			t.Fatalf("thawed, the version is %v, that of an origin that was not rolled back %v", got, want)
		}
	})
}

// A rolledBack is an origin that is rolled back now and then, beside one that is not.
type rolledBack struct {
	back, plain *origin
	watches     map[*origin]*Watch
	wants       map[*origin]map[string][]*Name
	all         map[*origin]*WildcardWatch

	state *State
	past  []generationSeen
	shown map[string]string // what must not change until the thaw; nil if it is not rolled back
}

// A generationSeen is what readers saw, and what it had of what differs in the next one.
type generationSeen struct {
	seen     map[string]string
	passes   map[string]bool
	lastGood bool // of members
	formers  []Former
}

func newRolledBack(t tester) *rolledBack {
	h := &rolledBack{
		back: newOrigin(t, staged()), plain: newOrigin(t, staged()),
		watches: map[*origin]*Watch{}, wants: map[*origin]map[string][]*Name{}, all: map[*origin]*WildcardWatch{},
	}
	for _, o := range []*origin{h.back, h.plain} {
		h.watches[o], h.wants[o] = o.view.Watch(), map[string][]*Name{}
		h.all[o] = h.watches[o].SubscribeAll(acme)
		o.TakeDemand()
	}
	h.state = h.back.view.NewState(0)
	return h
}

// step has something happen, and checks what readers see of it.
func (h *rolledBack) step(t *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	kind := rapid.SampledFrom([]Kind{Wildcard, ByName}).Draw(t, "kind")
	version := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version")
	step := rapid.SampledFrom([]string{"put", "put", "put", "put", "remove", "want", "want", "forget", "confirm", "reconnect", "back", "back", "thaw",
		"trim", "uncached", "expire", "members"}).Draw(t, "step")
	was := generationSeen{seen: sight(h.back.view.Generation()), passes: passing(h.back.view.Generation()), lastGood: h.back.typ().hasLastGood(Wildcard)}
	switch step {
	case "back":
		if len(h.past) > 0 {
			h.rollBack(t, rapid.IntRange(0, len(h.past)-1).Draw(t, "to"))
		}
	case "thaw":
		h.back.thaws()
		h.shown = nil
	default:
		for _, o := range []*origin{h.back, h.plain} {
			h.happens(o, step, kind, name, version)
		}
	}
	for i := range h.past {
		h.past[i].lastGood = h.past[i].lastGood && step != "members" // the set begins anew: its first members stay
	}
	h.unchanged(t, step, name)
	next, changed := h.state.Next(h.back.view.Generation())
	if h.state = next; changed.Broken {
		h.past = nil
	} else if len(changed.Formers) > 0 {
		was.formers = changed.Formers
		h.past = append(h.past, was)
	}
}

func (h *rolledBack) happens(o *origin, step string, kind Kind, name, version string) {
	if step == "members" { // those who follow them leave, and return
		h.watches[o].UnsubscribeAll(h.all[o])
		o.TakeDemand()
		o.ForgetWildcard(acme)
		h.all[o] = h.watches[o].SubscribeAll(acme)
		o.TakeDemand()
		return
	}
	o.random(step, kind, name, version, h.watches[o], h.wants[o])
}

// rollBack returns to one of the past generations.
func (h *rolledBack) rollBack(t *rapid.T, to int) {
	var formers []Former
	for _, p := range slices.Backward(h.past[to:]) {
		formers = append(formers, p.formers...)
	}
	h.back.RollBack(h.back.PinFormer(formers), time.Now())
	seen, passes := sight(h.back.view.Generation()), passing(h.back.view.Generation())
	of := h.past[to]
	for _, f := range formers {
		key := [...]string{"member ", "named "}[f.Kind] + f.Name
		got, is := seen[key]
		want, was := of.seen[key]
		first := f.Kind == ByName && (!is || !was) || f.Kind == Wildcard && (!of.lastGood || !h.back.typ().hasLastGood(Wildcard))
		if got != want && !first && !passes[key] && !of.passes[key] {
			t.Fatalf("rolled back, readers see %q of %s, want %q", got, key, want)
		}
	}
	h.keep(seen, passes)
}

// keep remembers what must not change.
func (h *rolledBack) keep(seen map[string]string, passes map[string]bool) {
	h.shown = seen
	maps.DeleteFunc(h.shown, func(key, _ string) bool { return passes[key] })
}

// unchanged fails the test if anything changed that must wait for the thaw.
func (h *rolledBack) unchanged(t *rapid.T, step, name string) {
	if h.shown == nil {
		return
	}
	seen, passes := sight(h.back.view.Generation()), passing(h.back.view.Generation())
	first := h.back.typ().Phase < Confirmed
	for key, content := range h.shown {
		member := strings.Contains(key, "member ")
		forgotten := step == "forget" && strings.HasSuffix(key, "named "+name) || step == "members" && member
		if got := seen[key]; got != content && !passes[key] && !forgotten && (!first || !member) {
			t.Fatalf("after %s of %s, readers see %q of %s, want %q", step, name, got, key, content)
		}
	}
	h.keep(seen, passes)
}
