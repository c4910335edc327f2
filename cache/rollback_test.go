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

// rollbackConfig returns a configuration in which changes of acme and of clusters are rolled back.
func rollbackConfig() Config {
	return Config{Waits: func(typeURL string) bool { return slices.Contains([]string{acme, wire.ClusterType}, typeURL) }}
}

// next moves a state to the newest generation of the view, and returns the step.
func (o *origin) next(s **State) (step Step) {
	*s, step = (*s).Next(o.view.Generation())
	return step
}

// newRollbackOrigin is newConfirmedOrigin for a view with rollbackConfig. It also returns the state of the view.
func newRollbackOrigin(t tester) (*frozenOrigin, *State) {
	o := newConfirmedOrigin(t, rollbackConfig())
	return o, o.view.NewState(0)
}

// TestH13_RollbackShowsAnEarlierState: readers are sent the difference only. Later changes of the origin wait until the
// thaw, but the first response for a name passes.
func TestH13_RollbackShowsAnEarlierState(t *testing.T) {
	o, state := newRollbackOrigin(t)
	before := state.Digest()
	o.put(Wildcard, "a", "2", "a2")
	o.put(Wildcard, "new", "1", "new1")
	o.remove(Wildcard, "b")
	o.put(ByName, "n", "2", "n2")
	o.put(ByName, "gone", "1", "gone1")
	step := o.next(&state)
	if step.Added != 2 || step.Changed != 2 || step.Removed != 1 || step.Broken {
		t.Errorf("step has %d added, %d changed, %d removed, broken %t; want 2, 2, 1 and false", step.Added, step.Changed,
			step.Removed, step.Broken)
	}
	e := o.PinFormer(step.Formers)
	if len(e.Changes[acme]) != 5 {
		t.Errorf("edition changes %v, want 5 resources", e.Changes)
	}
	o.wantVisible("pinned", map[string]string{"a": "a2"})
	o.checkEntries()
	at, since := o.view.Generation().Seq, time.Now()
	o.RollBack(e, since)
	wantLog(t, o.typ().Wildcard.Since(at), "a", "b", "-new")
	o.wantVisible("rolled back", map[string]string{"a": "a1", "b": "b1", "c": "c1", "n": "n1", "gone": "-", "new": ""})
	o.next(&state)
	if got := state.Digest(); got != before {
		t.Errorf("rolled back: readers see the generation %s, want %s", got, before)
	}
	o.put(Wildcard, "a", "3", "a3")
	o.put(Wildcard, "c", "2", "c2")
	o.subscribe(o.view.Watch(), "late")
	o.put(ByName, "late", "1", "late1")
	o.wantVisible("rolled back", map[string]string{"a": "a1", "c": "c1", "late": "late1"})
	if is := o.view.Generation().First(); !is.RolledBack.Equal(since) || !is.Frozen.IsZero() || o.view.Withheld(0) != 6 {
		t.Errorf("source %+v, %d names withheld; want it rolled back, not frozen, and 6 names", is, o.view.Withheld(0))
	}
	o.checkEntries()
	o.Thaw()
	o.wantVisible("thawed",
		map[string]string{"a": "a3", "b": "", "c": "c2", "n": "n2", "gone": "gone1", "new": "new1", "late": "late1"})
	if is := o.view.Generation().First(); !is.RolledBack.IsZero() || o.view.Withheld(0) != 0 {
		t.Errorf("thawed: source %+v, %d names withheld", is, o.view.Withheld(0))
	}
	o.checkEntries()
}

// TestH13_RollbackLeavesEndpoints: endpoints are not part of a generation. Their changes pass, and their removals wait
// for the thaw, so that no cluster loses its endpoints when it is served again.
func TestH13_RollbackLeavesEndpoints(t *testing.T) {
	o, _ := newRollbackOrigin(t)
	o.confirm(wire.EndpointType, "e", "kept")
	o.confirm(other, "x")
	o.confirm(wire.ClusterType, "c")
	state := o.view.NewState(0)
	o.put(Wildcard, "c", "2", "c2")
	step := o.next(&state)
	o.RollBack(o.PinFormer(step.Formers), time.Now())
	for _, o.typeURL = range []string{wire.EndpointType, other} {
		for e := range o.typ().Wildcard.Since(0) {
			o.put(Wildcard, e.Name.String(), "2", e.Name.String()+"2")
		}
	}
	o.wantVisible("rolled back", map[string]string{"x": "x2"})
	o.typeURL = wire.EndpointType
	o.remove(Wildcard, "e")
	o.wantVisible("rolled back", map[string]string{"e": "e2", "kept": "kept2"})
	o.typeURL = wire.ClusterType
	o.wantVisible("rolled back", map[string]string{"c": "c1"})
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"c": "c2"})
	o.typeURL = wire.EndpointType
	o.wantVisible("thawed", map[string]string{"e": "", "kept": "kept2"})
	o.checkEntries()
}

// TestH13_RollbackEndsAFreeze: changes of endpoints pass again.
func TestH13_RollbackEndsAFreeze(t *testing.T) {
	o, state := newRollbackOrigin(t)
	o.put(Wildcard, "a", "2", "a2")
	step := o.next(&state)
	o.confirm(other, "x")
	o.Freeze()
	o.put(Wildcard, "x", "2", "x2")
	o.RollBack(o.PinFormer(step.Formers), time.Now())
	if o.Frozen() || !o.view.Generation().First().Frozen.IsZero() {
		t.Error("still frozen")
	}
	o.wantVisible("rolled back", map[string]string{"x": "x2"})
	o.typeURL = acme
	o.wantVisible("rolled back", map[string]string{"a": "a1"})
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"a": "a2"})
	o.checkEntries()
}

// TestH09_RollbackInASnapshot: a restored view continues the rollback with the complete state of the snapshot, and
// absent resources stay absent. Readers can be returned to each generation in the snapshot.
func TestH09_RollbackInASnapshot(t *testing.T) {
	o, state := newRollbackOrigin(t)
	first := state.Digest()
	o.put(Wildcard, "a", "2", "a2")
	o.put(Wildcard, "new", "1", "new1")
	step := o.next(&state)
	since := time.Now().Round(0)
	o.RollBack(o.PinFormer(step.Formers), since)
	back := o.next(&state)
	s, _ := o.Snapshot(true)
	if s.Of() != o.view.Generation() || !s.RolledBack.Equal(since) {
		t.Errorf("snapshot is rolled back since %v, want %v", s.RolledBack, since)
	}
	s.Generations = []GenerationSnapshot{
		{Digest: first, Since: since.Add(-time.Minute), Formers: step.Formers},
		{Digest: "2", Since: since.Add(-time.Second), Added: 1, Changed: 1, Formers: back.Formers},
		{Digest: first, Since: since},
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

	o.origin = newOrigin(t, rollbackConfig())
	o.SetConnected(false)
	o.Restore(read, time.Now())
	o.RollBack(nil, read.RolledBack)
	if got := o.view.NewState(0).Digest(); got != first {
		t.Errorf("restored: readers see the generation %s, want %s", got, first)
	}
	o.SetConnected(true)
	for name, content := range map[string]string{"a": "a2", "new": "new1", "b": "b1", "c": "c1"} {
		o.put(Wildcard, name, "2", content)
	}
	o.put(ByName, "gone", "1", "gone1")
	o.SetPhase(acme, Confirmed)
	o.wantVisible("restored", map[string]string{"a": "a1", "b": "b1", "n": "n1", "gone": "-", "new": ""})
	o.RollBack(o.PinFormer(read.Generations[1].Formers), time.Now())
	o.wantVisible("rolled back to the next generation", map[string]string{"a": "a2", "new": "new1"})
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"a": "a2", "new": "new1", "gone": "gone1"})
	o.checkEntries()
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

// TestH13_RandomRollbacks applies random steps. After a rollback, readers see the state of the earlier generation,
// except first state. It does not change until the thaw, after which readers see the same state as those of an origin
// that was never rolled back.
func TestH13_RandomRollbacks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newRollbackHistory(t)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			h.step(t)
			h.origin.checkEntries()
		}
		h.origin.checkThaw()
		h.origin.checkEntries()
		got, want := visible(h.origin.view.Generation()), visible(h.plain.view.Generation())
		for key := range want {
			if got[key] != want[key] {
				t.Fatalf("thawed: readers see %q of %s, want %[3]q, as without a rollback", got[key], key, want[key])
			}
		}
		if got, want := h.origin.typ().Wildcard.Sum(), h.plain.typ().Wildcard.Sum(); got != want {
			t.Fatalf("thawed: version %v, want %v, as without a rollback", got, want)
		}
	})
}

// A rollbackHistory applies the same steps to an origin that is rolled back from time to time, and to one that is not.
type rollbackHistory struct {
	origin, plain *origin
	watches       map[*origin]*Watch
	subscribed    map[*origin]map[string][]*Name
	all           map[*origin]*WildcardWatch

	state *State
	past  []pastGeneration
	kept  map[string]string // state that must not change until the thaw; nil if the origin is not rolled back
}

// A pastGeneration is a generation that readers saw, with the formers of the next one.
type pastGeneration struct {
	seen     map[string]string
	passes   map[string]bool
	lastGood bool // of the wildcard set
	formers  []Former
}

func newRollbackHistory(t tester) *rollbackHistory {
	h := &rollbackHistory{
		origin: newOrigin(t, rollbackConfig()), plain: newOrigin(t, rollbackConfig()),
		watches: map[*origin]*Watch{}, subscribed: map[*origin]map[string][]*Name{}, all: map[*origin]*WildcardWatch{},
	}
	for _, o := range []*origin{h.origin, h.plain} {
		h.watches[o], h.subscribed[o] = o.view.Watch(), map[string][]*Name{}
		h.all[o] = h.watches[o].SubscribeAll(acme)
		o.TakeDemand()
	}
	h.state = h.origin.view.NewState(0)
	return h
}

// step applies a random step, and checks the state that readers see.
func (h *rollbackHistory) step(t *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	kind := rapid.SampledFrom([]Kind{Wildcard, ByName}).Draw(t, "kind")
	version := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version")
	step := rapid.SampledFrom([]string{
		"put", "put", "put", "put", "remove", "subscribe", "subscribe", "unsubscribe", "confirm", "reconnect",
		"roll back", "roll back", "thaw", "trim", "put uncacheable", "expire", "resubscribe wildcard",
	}).Draw(t, "step")
	before := pastGeneration{seen: visible(h.origin.view.Generation()), passes: exempt(h.origin.view.Generation()),
		lastGood: h.origin.typ().hasLastGood(Wildcard)}
	switch step {
	case "roll back":
		if len(h.past) > 0 {
			h.rollBack(t, rapid.IntRange(0, len(h.past)-1).Draw(t, "to"))
		}
	case "thaw":
		h.origin.checkThaw()
		h.kept = nil
	default:
		for _, o := range []*origin{h.origin, h.plain} {
			h.applyStep(o, step, kind, name, version)
		}
	}
	for i := range h.past {
		// the wildcard set starts again, with its members as first state
		h.past[i].lastGood = h.past[i].lastGood && step != "resubscribe wildcard"
	}
	h.checkUnchanged(t, step, name)
	next, changed := h.state.Next(h.origin.view.Generation())
	if h.state = next; changed.Broken {
		h.past = nil
	} else if len(changed.Formers) > 0 {
		before.formers = changed.Formers
		h.past = append(h.past, before)
	}
}

func (h *rollbackHistory) applyStep(o *origin, step string, kind Kind, name, version string) {
	if step == "resubscribe wildcard" {
		h.all[o] = o.resubscribeAll(h.watches[o], h.all[o], acme)
		return
	}
	o.randomStep(step, kind, name, version, h.watches[o], h.subscribed[o])
}

// rollBack returns to one of the past generations.
func (h *rollbackHistory) rollBack(t *rapid.T, to int) {
	var formers []Former
	for _, p := range slices.Backward(h.past[to:]) {
		formers = append(formers, p.formers...)
	}
	h.origin.RollBack(h.origin.PinFormer(formers), time.Now())
	seen, passes := visible(h.origin.view.Generation()), exempt(h.origin.view.Generation())
	past := h.past[to]
	for _, f := range formers {
		key := [...]string{"member ", "named "}[f.Kind] + f.Name
		got, present := seen[key]
		want, existed := past.seen[key]
		first := f.Kind == ByName && (!present || !existed) ||
			f.Kind == Wildcard && (!past.lastGood || !h.origin.typ().hasLastGood(Wildcard))
		if got != want && !first && !passes[key] && !past.passes[key] {
			t.Fatalf("rolled back: readers see %q of %s, want %q", got, key, want)
		}
	}
	h.record(seen, passes)
}

// record stores the state that must not change until the thaw.
func (h *rollbackHistory) record(seen map[string]string, passes map[string]bool) {
	h.kept = seen
	maps.DeleteFunc(h.kept, func(key, _ string) bool { return passes[key] })
}

// checkUnchanged fails the test if a change that must wait for the thaw has passed.
func (h *rollbackHistory) checkUnchanged(t *rapid.T, step, name string) {
	if h.kept == nil {
		return
	}
	seen, passes := visible(h.origin.view.Generation()), exempt(h.origin.view.Generation())
	first := h.origin.typ().Phase < Confirmed
	for key, content := range h.kept {
		member := strings.Contains(key, "member ")
		dropped := step == "unsubscribe" && strings.HasSuffix(key, "named "+name) || step == "resubscribe wildcard" && member
		if got := seen[key]; got != content && !passes[key] && !dropped && (!first || !member) {
			t.Fatalf("after %s of %s, readers see %q of %s, want %q", step, name, got, key, content)
		}
	}
	h.record(seen, passes)
}
