package generations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/pending"
)

// An origin may send one change of its configuration in several responses. These constants determine which responses
// are recorded as one generation.
const (
	quiet     = time.Second            // a generation is complete after this time without changes
	quietMost = 10 * time.Second       // a generation is recorded after this time even if changes continue
	pause     = 100 * time.Millisecond // minimum time between two reads of the view
)

// A Key identifies a line.
type Key struct {
	Origin string
	Group  string // node group, for display
	Shared bool   // the line contains names that several groups share
}

// A Line contains the generations that readers received from one source of a view.
type Line struct {
	Key
	store  *Store
	view   *cache.View
	source int // index of the source in the view

	// Guarded by Store.mu.
	state   *cache.State  // newest generation
	newest  Generation    // description of state, without Digest
	past    []*generation // earlier generations, oldest first
	dropped bool          // generations older than past were dropped
}

// Open adds a line that starts with the current generation of the view. restored contains the generations of the
// snapshot from which the view was restored, if any; the last one is the current generation. The caller must call Run,
// which removes the line when it returns.
func (s *Store) Open(key Key, view *cache.View, source int, restored []cache.GenerationSnapshot) *Line {
	now := time.Now()
	l := &Line{Key: key, store: s, view: view, source: source, state: view.NewState(source), newest: Generation{Since: now}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, l)
	for i, g := range restored {
		known := Generation{Digest: g.Digest, Since: restated(g.Since, now), Added: g.Added, Changed: g.Changed, Removed: g.Removed}
		if i == len(restored)-1 {
			l.newest = known
			break
		}
		known.Until = restated(restored[i+1].Since, now)
		s.add(&generation{line: l, Generation: known, formers: g.Formers})
	}
	return l
}

// restated returns t with a reading of the monotonic clock, as package cache does. Later changes of the wall clock then
// do not affect comparisons with t.
func restated(t, now time.Time) time.Time { return now.Add(t.Sub(now)) }

// Run records each new generation until ctx ends, and then removes the line from the store.
func (l *Line) Run(ctx context.Context) {
	watch := l.view.Observe()
	defer l.close()
	defer watch.Close()
	for ctx.Err() == nil {
		if l.settle(ctx, watch) {
			continue
		}
		select {
		case <-watch.C:
		case <-ctx.Done():
		}
		sleep(ctx, pause) // read the view once for many changes in a short time
	}
}

// settle reports whether the view has changed since the newest generation. If so, it waits for further changes (see
// quiet) and records them as one generation.
func (l *Line) settle(ctx context.Context, watch *cache.Watch) bool {
	state := l.current()
	seen := l.view.Generation()
	if !state.Changed(state.Of().Revision, seen) {
		l.note(seen, time.Now()) // release the old cache generation, which may hold endpoints in memory
		return false
	}
	changed := time.Now()
	for most := changed.Add(quietMost); ctx.Err() == nil; sleep(ctx, pause) {
		until := changed.Add(quiet)
		if until.After(most) {
			until = most
		}
		now := l.view.Generation()
		if state.Changed(seen.Revision, now) {
			changed = time.Now()
		} else if seen = now; !time.Now().Before(until) {
			break
		}
		seen = now
		select {
		case <-watch.C:
		case <-time.After(time.Until(until)):
		case <-ctx.Done():
		}
	}
	l.note(seen, changed)
	return true
}

// sleep waits for a duration, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// current returns the state of the newest recorded generation.
func (l *Line) current() *cache.State {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	return l.state
}

// note records the generation that readers receive since a time. First state, such as the first response for a name,
// starts no new generation: it becomes part of the newest one.
func (l *Line) note(to *cache.Generation, since time.Time) {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	next, step := l.state.Next(to)
	switch {
	case step.Broken:
		s.clear(l)
		l.newest = Generation{Since: since}
	case len(step.Formers) > 0:
		left := l.newest
		left.Digest, left.Until = l.state.Digest(), since
		l.newest = Generation{Since: since, Added: step.Added, Changed: step.Changed, Removed: step.Removed}
		s.add(&generation{line: l, Generation: left, formers: step.Formers})
	}
	l.state = next
}

// close removes the line and its generations from the store.
func (l *Line) close() {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear(l)
	s.lines = slices.DeleteFunc(s.lines, func(other *Line) bool { return other == l })
}

// Digest returns the digest of the current state of the view, including changes that are not recorded yet.
func (l *Line) Digest() string {
	next, _ := l.current().Next(l.view.Generation())
	return next.Digest()
}

// Generations returns the generations, newest first. A change that is not recorded yet is part of the newest.
func (l *Line) Generations() []Generation {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	next, _ := l.state.Next(l.view.Generation())
	newest := l.newest
	newest.Digest = next.Digest()
	all := []Generation{newest}
	for _, g := range slices.Backward(l.past) {
		all = append(all, g.Generation)
	}
	return all
}

// Snapshot calls take and adds the generations of the line to the snapshot that it returns, unless it returns nil. It omits
// generations with content that may not be stored, and all earlier ones: a generation can be restored only together with all
// later ones.
//
// take may wait. It must take the snapshot of a generation of the view that is current when it is called, or later.
func (l *Line) Snapshot(sensitive bool, take func() *cache.Snapshot) {
	// The state of the line is read first, so that it is not newer than the snapshot. What the line records meanwhile is then a
	// part of the newest generation, like a change that is not recorded yet.
	l.store.mu.Lock()
	state, newest, past := l.state, l.newest, slices.Clone(l.past)
	l.store.mu.Unlock()
	s := take()
	if s == nil {
		return
	}
	now := time.Now()
	next, step := state.Next(s.Of())
	if step.Broken { // as in note
		step, newest, past = cache.Step{}, Generation{Since: now}, nil
	}
	add := func(g Generation, formers []cache.Former) {
		s.Generations = append(s.Generations, cache.GenerationSnapshot{
			Digest: g.Digest, Since: restated(g.Since, now), Added: g.Added, Changed: g.Changed, Removed: g.Removed, Formers: formers,
		})
	}
	for _, g := range past {
		add(g.Generation, g.formers)
	}
	if newest.Digest = state.Digest(); len(step.Formers) > 0 {
		add(newest, step.Formers)
		newest = Generation{Since: now, Added: step.Added, Changed: step.Changed, Removed: step.Removed}
	}
	newest.Digest = next.Digest()
	add(newest, nil)
	for i, g := range slices.Backward(s.Generations) { // each needs those after it
		if slices.ContainsFunc(g.Formers, func(f cache.Former) bool { return !f.Storable(sensitive) }) {
			s.Generations = s.Generations[i+1:]
			return
		}
	}
}

// A Target is a generation to which an operator returns. It is immutable, and stays valid when the store drops the
// generation.
type Target struct {
	Generation
	base    *cache.State   // newest generation when the target was found
	formers []cache.Former // differences from base back to the target, newest generation first
}

// Errors of At and Find.
var (
	// ErrForgotten is returned by At if the store has dropped the generation.
	ErrForgotten = errors.New("the generations that were served then are not kept any more")
	// ErrUnknown is returned by Find if no generation has the digest.
	ErrUnknown = errors.New("no such generation")
)

// At returns the generation that clients received at a time. It returns the first generation if the line is younger.
// The error wraps ErrForgotten.
func (l *Line) At(t time.Time) (*Target, error) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	oldest := l.newest.Since
	if !t.Before(oldest) {
		return l.target(len(l.past)), nil
	}
	for i, g := range slices.Backward(l.past) {
		if oldest = g.Since; !t.Before(oldest) {
			return l.target(i), nil
		}
	}
	if l.dropped {
		return nil, fmt.Errorf("%w: the oldest of group %q is of %s", ErrForgotten, l.Group, oldest.Local().Format(time.DateTime))
	}
	return l.target(0), nil
}

// Find returns the newest generation whose digest begins with the argument. The error is ErrUnknown.
func (l *Line) Find(digest string) (*Target, error) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if strings.HasPrefix(l.state.Digest(), digest) {
		return l.target(len(l.past)), nil
	}
	for i, g := range slices.Backward(l.past) {
		if strings.HasPrefix(g.Digest, digest) {
			return l.target(i), nil
		}
	}
	return nil, ErrUnknown
}

// target returns the generation past[i], or the newest if i is len(past). Store.mu must be held.
func (l *Line) target(i int) *Target {
	t := &Target{Generation: l.newest, base: l.state}
	if t.Digest = l.state.Digest(); i < len(l.past) {
		t.Generation = l.past[i].Generation
	}
	for _, g := range slices.Backward(l.past[i:]) {
		t.formers = append(t.formers, g.formers...)
	}
	return t
}

// Edition returns an edition in which readers receive the target. l must be in front of the writer of the line's source; only its
// goroutine may call Edition.
func (t *Target) Edition(l *pending.List) *pending.Edition {
	return l.PinFormer(t.Formers(l.Writer().View()))
}

// Formers returns the resources of a view that differ from the target, with their states in it. If a resource is there several
// times, its last state is that of the target. v must be the view of the line.
func (t *Target) Formers(v *cache.View) []cache.Former {
	_, step := t.base.Next(v.Generation())
	return append(step.Formers, t.formers...)
}
