package generations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
)

// When a generation counts: the origin may say in several messages what belongs together.
const (
	quiet     = time.Second      // nothing has changed for so long
	quietMost = 10 * time.Second // or something has gone on changing for so long
	pause     = 100 * time.Millisecond
)

// A Key names a line.
type Key struct {
	Origin string
	Group  string // as people are shown it
	Shared bool   // of names that groups share
}

// A Line has the generations that readers of one source of a view were served.
type Line struct {
	Key
	store  *Store
	view   *cache.View
	source int

	// Guarded by Store.mu.
	state   *cache.State // that is served
	newest  Generation   // what is known of it; without its digest
	past    []*generation
	dropped bool // there were older ones
}

// Open begins a line with what readers see now. A snapshot that was restored to the view may have had earlier generations. The
// caller calls Run, which ends the line.
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

// restated returns a time as the clock has it now, by the monotonic clock from now on (as package cache does).
func restated(t, now time.Time) time.Time { return now.Add(t.Sub(now)) }

// Run notes each new generation until ctx ends, and then gives up the line.
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
		sleep(ctx, pause) // of many changes at once, one look is for all
	}
}

// settle waits until the view has settled, if anything of it has changed, and notes the generation. It reports whether there
// was something.
func (l *Line) settle(ctx context.Context, watch *cache.Watch) bool {
	state := l.current()
	seen := l.view.Generation()
	if !state.Changed(state.Of().Revision, seen) {
		l.note(seen, time.Now()) // so that it does not keep former endpoints in memory
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

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (l *Line) current() *cache.State {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	return l.state
}

// note takes what readers see since a time. If they see first state beside what they saw, that belongs to the same generation.
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

// close gives up the line.
func (l *Line) close() {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear(l)
	s.lines = slices.DeleteFunc(s.lines, func(other *Line) bool { return other == l })
}

// Digest returns the digest of what readers see now.
func (l *Line) Digest() string {
	next, _ := l.current().Next(l.view.Generation())
	return next.Digest()
}

// Generations returns the generations, the newest first. A change that is not a generation yet belongs to the newest.
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

// Snapshot adds to the snapshot that take returns the generations of the line: those that may be stored with their content, and
// for which those after them may be.
func (l *Line) Snapshot(sensitive bool, take func() *cache.Snapshot) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	s := take()
	now := time.Now()
	next, step := l.state.Next(s.Of())
	add := func(g Generation, formers []cache.Former) {
		s.Generations = append(s.Generations, cache.GenerationSnapshot{
			Digest: g.Digest, Since: restated(g.Since, now), Added: g.Added, Changed: g.Changed, Removed: g.Removed, Formers: formers,
		})
	}
	for _, g := range l.past {
		add(g.Generation, g.formers)
	}
	newest := l.newest
	if newest.Digest = l.state.Digest(); len(step.Formers) > 0 {
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

// A Target is a generation to return to. It is immutable.
type Target struct {
	Generation
	base    *cache.State   // that was served when the target was found
	formers []cache.Former // of all generations between the two
}

// Errors of At and Find.
var (
	ErrForgotten = errors.New("the generations that were served then are not kept any more")
	ErrUnknown   = errors.New("no such generation")
)

// At returns the generation that was served at a time. A view that is younger was served its first one. Errors: ErrForgotten.
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

// Find returns the newest generation whose digest begins with a text, and until when it was served. Errors: ErrUnknown.
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

// target returns one of the past generations, or the newest. Store.mu must be held.
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

// Edition returns the edition that shows the target, of the writer of the line's source. Only the writer's goroutine may call it.
func (t *Target) Edition(w *cache.Writer) *cache.Edition {
	_, step := t.base.Next(w.View().Generation())
	return w.PinFormer(append(step.Formers, t.formers...))
}
