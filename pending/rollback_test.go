package pending

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// rollbackConfig returns a configuration in which changes of acme and of clusters are rolled back.
func rollbackConfig() cache.Config {
	return cache.Config{Waits: func(typeURL string) bool { return slices.Contains([]string{acme, wire.ClusterType}, typeURL) }}
}

// next moves a state to the newest generation of the view, and returns the step.
func (o *origin) next(s **cache.State) (step cache.Step) {
	*s, step = (*s).Next(o.view.Generation())
	return step
}

// hasLastGood reports whether the wildcard set is a last good state.
func (o *origin) hasLastGood() bool { return o.typ().Phase == cache.Confirmed || o.typ().Restored }

// newRollbackOrigin is newConfirmedOrigin for a view with rollbackConfig. It also returns the state of the view.
func newRollbackOrigin(t tester) (*frozenOrigin, *cache.State) {
	o := newConfirmedOrigin(t, rollbackConfig())
	return o, o.view.NewState(0)
}

// TestH13_RollbackShowsAnEarlierState: readers are sent the difference only. Later changes of the origin wait until the
// thaw, but the first response for a name passes.
func TestH13_RollbackShowsAnEarlierState(t *testing.T) {
	o, state := newRollbackOrigin(t)
	before := state.Digest()
	o.put(cache.Wildcard, "a", "2", "a2")
	o.put(cache.Wildcard, "new", "1", "new1")
	o.remove(cache.Wildcard, "b")
	o.put(cache.ByName, "n", "2", "n2")
	o.put(cache.ByName, "gone", "1", "gone1")
	step := o.next(&state)
	if step.Added != 2 || step.Changed != 2 || step.Removed != 1 || step.Broken {
		t.Errorf("step has %d added, %d changed, %d removed, broken %t; want 2, 2, 1 and false", step.Added, step.Changed,
			step.Removed, step.Broken)
	}
	at, since := o.view.Generation().Seq, time.Now()
	o.RollBack(step.Formers, since)
	wantLog(t, o.typ().Wildcard.Since(at), "a", "b", "-new")
	o.wantVisible("rolled back", map[string]string{"a": "a1", "b": "b1", "c": "c1", "n": "n1", "gone": "-", "new": ""})
	o.next(&state)
	if got := state.Digest(); got != before {
		t.Errorf("rolled back: readers see the generation %s, want %s", got, before)
	}
	o.put(cache.Wildcard, "a", "3", "a3")
	o.put(cache.Wildcard, "c", "2", "c2")
	o.subscribe(o.view.Watch(), "late")
	o.put(cache.ByName, "late", "1", "late1")
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
	o.put(cache.Wildcard, "c", "2", "c2")
	step := o.next(&state)
	o.RollBack(step.Formers, time.Now())
	for _, o.typeURL = range []string{wire.EndpointType, other} {
		for e := range o.typ().Wildcard.Since(0) {
			o.put(cache.Wildcard, e.Name.String(), "2", e.Name.String()+"2")
		}
	}
	o.wantVisible("rolled back", map[string]string{"x": "x2"})
	o.typeURL = wire.EndpointType
	o.remove(cache.Wildcard, "e")
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
	o.put(cache.Wildcard, "a", "2", "a2")
	step := o.next(&state)
	o.confirm(other, "x")
	o.Freeze()
	o.put(cache.Wildcard, "x", "2", "x2")
	o.RollBack(step.Formers, time.Now())
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
	o.put(cache.Wildcard, "a", "2", "a2")
	o.put(cache.Wildcard, "new", "1", "new1")
	step := o.next(&state)
	since := time.Now().Round(0)
	o.RollBack(step.Formers, since)
	back := o.next(&state)
	s, _ := o.Writer().Snapshot(true)
	if s.Of() != o.view.Generation() || !s.RolledBack.Equal(since) {
		t.Errorf("snapshot is rolled back since %v, want %v", s.RolledBack, since)
	}
	s.Generations = []cache.GenerationSnapshot{
		{Digest: first, Since: since.Add(-time.Minute), Formers: step.Formers},
		{Digest: "2", Since: since.Add(-time.Second), Added: 1, Changed: 1, Formers: back.Formers},
		{Digest: first, Since: since},
	}
	var file bytes.Buffer
	if err := s.Encode(&file); err != nil {
		t.Fatal(err)
	}
	read, err := cache.DecodeSnapshot(file.Bytes())
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
	o.Writer().Restore(read, time.Now())
	o.RollBack(nil, read.RolledBack)
	if got := o.view.NewState(0).Digest(); got != first {
		t.Errorf("restored: readers see the generation %s, want %s", got, first)
	}
	o.SetConnected(true)
	for name, content := range map[string]string{"a": "a2", "new": "new1", "b": "b1", "c": "c1"} {
		o.put(cache.Wildcard, name, "2", content)
	}
	o.put(cache.ByName, "gone", "1", "gone1")
	o.SetPhase(acme, cache.Confirmed)
	o.wantVisible("restored", map[string]string{"a": "a1", "b": "b1", "n": "n1", "gone": "-", "new": ""})
	o.RollBack(read.Generations[1].Formers, time.Now())
	o.wantVisible("rolled back to the next generation", map[string]string{"a": "a2", "new": "new1"})
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"a": "a2", "new": "new1", "gone": "gone1"})
	o.checkEntries()
}

// TestH13_RandomRollbacks applies random steps. After a rollback, readers see the state of the earlier generation, except first
// state. It does not change until the thaw, after which readers see the same state as those of an origin that was never rolled
// back.
func TestH13_RandomRollbacks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSteps(rt, []string{"a", "b", "c"},
			"put", "put", "put", "put", "remove", "subscribe", "subscribe", "unsubscribe", "confirm", "reconnect",
			"roll back", "roll back", "thaw", "trim", "put uncacheable", "expire", "resubscribe wildcard")
		inBubble(t, rt, func(t tester) {
			p := newOriginPair(t, rollbackConfig())
			h := &rollbackHistory{tester: t, pair: p, origin: p.stopped, state: p.stopped.view.NewState(0)}
			for _, s := range steps {
				h.step(s)
				h.origin.checkEntries()
			}
			h.origin.checkThaw()
			p.checkEqual(t)
		})
	})
}

// A rollbackHistory is a pair of which one origin is rolled back from time to time.
type rollbackHistory struct {
	tester
	*pair
	origin *origin // that is rolled back

	state *cache.State
	past  []pastGeneration
	kept  map[string]string // state that must not change until the thaw; nil if the origin is not rolled back
}

// A pastGeneration is a generation that readers saw, with the formers of the next one.
type pastGeneration struct {
	seen     map[string]string
	passes   map[string]bool
	lastGood bool // of the wildcard set
	formers  []cache.Former
}

// step applies a random step, and checks the state that readers see.
func (h *rollbackHistory) step(s randomStep) {
	before := pastGeneration{
		seen: visible(h.origin.view.Generation()), passes: exempt(h.origin.view.Generation()), lastGood: h.origin.hasLastGood(),
	}
	switch s.do {
	case "roll back":
		if len(h.past) > 0 {
			h.rollBack(s.choice % len(h.past))
		}
	case "thaw":
		h.origin.checkThaw()
		h.kept = nil
	default:
		h.apply(s)
	}
	for i := range h.past {
		// the wildcard set starts again, with its members as first state
		h.past[i].lastGood = h.past[i].lastGood && s.do != "resubscribe wildcard"
	}
	h.checkUnchanged(s)
	next, changed := h.state.Next(h.origin.view.Generation())
	if h.state = next; changed.Broken {
		h.past = nil
	} else if len(changed.Formers) > 0 {
		before.formers = changed.Formers
		h.past = append(h.past, before)
	}
}

// rollBack returns to one of the past generations.
func (h *rollbackHistory) rollBack(to int) {
	var formers []cache.Former
	for _, p := range slices.Backward(h.past[to:]) {
		formers = append(formers, p.formers...)
	}
	h.origin.RollBack(formers, time.Now())
	seen, passes := visible(h.origin.view.Generation()), exempt(h.origin.view.Generation())
	past := h.past[to]
	for _, f := range formers {
		key := [...]string{"member ", "named "}[f.Kind] + f.Name
		got, present := seen[key]
		want, existed := past.seen[key]
		first := f.Kind == cache.ByName && (!present || !existed) ||
			f.Kind == cache.Wildcard && (!past.lastGood || !h.origin.hasLastGood())
		if got != want && !first && !passes[key] && !past.passes[key] {
			h.Fatalf("rolled back: readers see %q of %s, want %q", got, key, want)
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
func (h *rollbackHistory) checkUnchanged(s randomStep) {
	if h.kept == nil {
		return
	}
	seen, passes := visible(h.origin.view.Generation()), exempt(h.origin.view.Generation())
	first := h.origin.typ().Phase < cache.Confirmed
	for key, content := range h.kept {
		member := strings.Contains(key, "member ")
		dropped := s.do == "unsubscribe" && strings.HasSuffix(key, "named "+s.name) || s.do == "resubscribe wildcard" && member
		if got := seen[key]; got != content && !passes[key] && !dropped && (!first || !member) {
			h.Fatalf("%+v: readers see %q of %s, want %q", s, got, key, content)
		}
	}
	h.record(seen, passes)
}
