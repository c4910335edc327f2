package upstream

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// The audit of a view against its origin (B.43): a second sync, which begins with
// nothing, asks the same target on streams of its own for just what the first has asked
// for, and what the two hold is compared.

const (
	// auditTick is how often the two are compared while anything is still to come.
	auditTick = reconcile.SettleQuiet

	// auditQuiet is how long a difference must have stood, with both sides saying the same
	// all the while, and for how long no further name must have come: what has changed
	// reaches one stream before the other.
	auditQuiet = 5 * time.Second

	// auditPatience is how long no further name must have come before the audit ends although
	// resources still change.
	auditChangingMax = 3 * auditQuiet

	// auditMax is how long an audit takes at most.
	auditMax = reconcile.ConfirmMax
)

// Errors from [Control.Audit], beside that of its context. With any of them nothing is
// known about the view.
var (
	// ErrNoAudit: the view is kept like a directory, of which there is one reader.
	ErrNoAudit = errors.New("the origin is a directory, which is read for all views at once")
	// ErrNotConnected: the view has no stream to the origin that it could be compared by.
	ErrNotConnected = errors.New("the view is not connected to its origin")
	// ErrAuditEnded: the origin ended the second stream, or said nothing on it.
	ErrAuditEnded = errors.New("the origin does not answer a second stream")
)

// Audit asks the origin, beside the view's own streams, for all that the view has asked it
// for, or for one type of it, and compares the answers with what the view holds, whether or
// not that is frozen. It changes nothing. A difference counts once both sides have said the
// same for 5s; the audit ends when no other is left, and no further name has come for as
// long; after 15s without one although resources still change; and after 60s. One audit at a time is made of an origin: others wait.
//
// The origin sees the same node again, once or twice. It takes as much memory as the view.
//
// Errors: ErrNoAudit, ErrNotConnected, ErrAuditEnded, that of ctx.
func (c *Control) Audit(ctx context.Context, typeURL string) (Audit, error) {
	var s *Session
	err := ErrNotConnected // the loop has ended
	c.do(ctx, func(l Controlled) {
		err = ErrNoAudit
		if v, ok := l.(*viewSync); ok {
			s, err = v.session, nil
		}
	})
	if err != nil {
		return Audit{}, cmp.Or(ctx.Err(), err)
	}
	select {
	case s.auditSlot <- struct{}{}:
		defer func() { <-s.auditSlot }()
	case <-ctx.Done():
		return Audit{}, ctx.Err()
	}
	a := &audit{control: c}
	err = ErrNotConnected
	c.do(ctx, func(l Controlled) { err = a.plan(l.(*viewSync), typeURL) })
	if err != nil {
		return Audit{}, cmp.Or(ctx.Err(), err)
	}
	return a.run(ctx)
}

// An audit is one comparison. It belongs to the goroutine that called for it.
type audit struct {
	control      *Control
	session      *Session
	target       int
	auditSession *Session // of the second sync
	node         *corepb.Node
	sets         []*auditedSet

	startedAt, endedAt time.Time
	here, there        *cache.Generation // that were compared last
	differences        map[resourceID]*discrepancy
	known              int       // how many answers there were on the second stream
	lastGrowth         time.Time // since when there are no more
}

// An audited is what the view asks for of a type, but for its names: the members, or a
// collection; or all names of a type.
type auditedSet struct {
	typeURL string
	key     string   // of the view
	glob    string   // empty for names
	names   []string // of those
	equal   int
}

// A resourceID is one resource of what is audited.
type resourceID struct {
	of   *auditedSet
	name string
}

// A discrepancy is a resource that is not the same on both sides, and since when it has
// not been in this way.
type discrepancy struct {
	here, there *cache.Entry // nil if it is not there
	kind        DifferenceKind
	since       time.Time
	held        bool
}

// plan takes over what the view has asked for. It is called by the view's loop.
func (a *audit) plan(v *viewSync, typeURL string) error {
	a.session, a.target, a.node = v.session, v.target, v.node
	for _, s := range v.ordered() {
		if typeURL == "" || s.typeURL == typeURL {
			a.sets = append(a.sets, s.auditedSets()...)
		}
	}
	l := &v.byRole[main]
	if len(a.sets) == 0 {
		return nil
	}
	if !l.open {
		return ErrNotConnected
	}
	a.auditSession = v.session.newAuditSession(v.target, l.sotw != nil)
	return nil
}

// audited returns what is asked for of the type.
func (s *subscription) auditedSets() (asked []*auditedSet) {
	if s.wildcardRole != noStream {
		asked = append(asked, &auditedSet{typeURL: s.typeURL, key: s.typeURL, glob: wire.Wildcard})
	}
	for glob, c := range s.collections {
		asked = append(asked, &auditedSet{typeURL: s.typeURL, key: c.key, glob: glob})
	}
	if len(s.names) > 0 {
		asked = append(asked, &auditedSet{typeURL: s.typeURL, key: s.typeURL, names: slices.Sorted(maps.Keys(s.wantedNames()))})
	}
	return asked
}

// second returns a session that shares the connection to a target and nothing else: what
// becomes of its streams moves no view to another target, and is not counted.
func (s *Session) newAuditSession(target int, sotw bool) *Session {
	cfg := s.cfg
	cfg.Targets, cfg.Prewarm, cfg.Logger = s.cfg.Targets[target:target+1], nil, slog.New(slog.DiscardHandler)
	cfg.Protocol = ProtocolDelta
	if sotw {
		cfg.Protocol = ProtocolSotW
	}
	second := &Session{cfg: cfg, conns: s.conns[target : target+1], noDeltaLogged: make([]atomic.Bool, 1), links: make([]link, 1), limiter: newStreamLimiter(&Config{})}
	never := make(chan struct{})
	second.targetChange.Store(&never)
	return second
}

// run makes the audit, and ends the second sync.
func (a *audit) run(ctx context.Context) (Audit, error) {
	a.startedAt, a.differences = time.Now(), make(map[resourceID]*discrepancy)
	a.endedAt = a.startedAt
	if len(a.sets) == 0 {
		return a.result(), nil
	}
	view, w := cache.New(cache.Config{})
	watch := view.Watch()
	for _, of := range a.sets {
		if of.glob != "" {
			watch.SubscribeAll(of.key)
		} else {
			watch.Subscribe(of.key, of.names)
		}
	}
	mirroring, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { // awaited below
		defer close(ended)
		a.auditSession.Sync(mirroring, a.node, w, a.auditSession.cfg.Logger, NewControl(false, nil))
	}()
	err := a.compareUntilQuiet(ctx, view)
	end()
	<-ended
	if err != nil {
		return Audit{}, err
	}
	result := a.result()
	a.session.counters.countAudit(result)
	return result, nil
}

// compareUntilQuiet compares the two until nothing more is to be expected.
func (a *audit) compareUntilQuiet(ctx context.Context, view *cache.View) error {
	tick := time.NewTicker(auditTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-a.control.ended:
			return ErrNotConnected
		case <-ctx.Done():
			return ctx.Err()
		}
		now, there := time.Now(), view.Generation()
		if err := a.streamError(); err != nil {
			return err
		}
		if !there.First().Connected {
			continue // the stream is opened, or it ends
		}
		if a.lastGrowth.IsZero() {
			a.lastGrowth = now
		}
		here, err := a.viewGeneration(ctx)
		if err != nil {
			return err
		}
		a.compare(here, there, now)
		if a.done(there, now) {
			return a.review(ctx, there, now)
		}
	}
}

// refusal returns why the origin ended a stream, if it did.
func (a *audit) streamError() error {
	for reason := range a.auditSession.Stats().Ended {
		if reason == EndResync {
			continue // the second sync itself needed another one
		}
		if f := a.auditSession.failure.Load(); f != nil {
			return fmt.Errorf("%w: %w", ErrAuditEnded, f.Err)
		}
		return fmt.Errorf("%w: it was %s", ErrAuditEnded, reason)
	}
	return nil
}

// held returns what the origin has said to the view.
func (a *audit) viewGeneration(ctx context.Context) (g *cache.Generation, err error) {
	err = ErrNotConnected
	a.control.do(ctx, func(l Controlled) {
		if v := l.(*viewSync); v.byRole[main].open && v.target == a.target {
			g, err = v.w.Generation(), nil
		}
	})
	return g, cmp.Or(ctx.Err(), err)
}

// compare looks for differences, and for how long they have been such.
func (a *audit) compare(here, there *cache.Generation, now time.Time) {
	if here == a.here && there == a.there {
		return
	}
	a.here, a.there = here, there
	was, grown := a.differences, 0
	a.differences = make(map[resourceID]*discrepancy)
	for _, of := range a.sets {
		mine, _ := of.entries(here)
		theirs, answers := of.entries(there)
		of.equal = 0
		grown += answers
		names := maps.Clone(mine)
		maps.Copy(names, theirs)
		for name := range names {
			a.compareResource(resourceID{of, name}, mine[name], theirs[name], was, now)
		}
	}
	if grown > a.known {
		a.known, a.lastGrowth = grown, now
	}
}

// entries returns the resources that a generation holds, by what they were asked for as, and how
// many names it knows anything of.
func (of *auditedSet) entries(g *cache.Generation) (present map[string]*cache.Entry, known int) {
	t := g.Type(of.key)
	present = make(map[string]*cache.Entry)
	if of.glob != "" {
		for e := range t.Wildcard.Since(0) {
			if e.Present() {
				present[e.Name.String()] = e
			}
		}
		return present, len(present)
	}
	for e := range t.ByName.Since(0) {
		if _, asked := slices.BinarySearch(of.names, e.Name.String()); asked && e.Present() {
			present[e.Name.String()] = e
		}
		known++
	}
	for range t.Errors(cache.ByName).Since(0) {
		known++
	}
	return present, known
}

// look compares one resource.
func (a *audit) compareResource(id resourceID, here, there *cache.Entry, was map[resourceID]*discrepancy, now time.Time) {
	kind := difference(here, there)
	if kind == "" {
		id.of.equal++
		return
	}
	d := &discrepancy{here: here, there: there, kind: kind, since: now}
	if before := was[id]; before != nil && resourceOf(before.here) == resourceOf(here) && resourceOf(before.there) == resourceOf(there) {
		d.since = before.since
	}
	a.differences[id] = d
}

// difference returns in what two resources differ; nothing if they do not.
func difference(here, there *cache.Entry) DifferenceKind {
	switch {
	case here == nil:
		return MissingHere
	case there == nil:
		return MissingThere
	}
	mine, theirs := here.Resource, there.Resource
	switch {
	case !mine.SameContent(theirs):
		return OtherContent
	case !mine.ContentDropped() && !theirs.ContentDropped() && !bytes.Equal(mine.Body(), theirs.Body()):
		return OtherContent // what is held is not what its digest was made of
	case mine.OriginVersion != theirs.OriginVersion && !here.HasVersion(theirs.Version):
		return OtherVersion
	}
	return ""
}

// over reports whether nothing more is to be expected.
func (a *audit) done(there *cache.Generation, now time.Time) bool {
	switch {
	case now.Sub(a.startedAt) >= auditMax, now.Sub(a.lastGrowth) >= auditChangingMax:
		return true
	case len(a.differences) == 0 && a.settled(there):
		return true
	case !a.quiet(now):
		return false
	}
	for _, d := range a.differences {
		if !d.stable(now) {
			return false
		}
	}
	return true
}

// quiet reports whether the origin seems to have said all.
func (a *audit) quiet(now time.Time) bool { return now.Sub(a.lastGrowth) >= auditQuiet }

// stands reports whether the difference is older than a change may be on its way.
func (d *discrepancy) stable(now time.Time) bool { return now.Sub(d.since) >= auditQuiet }

// settled reports whether the first answer to each wildcard seems complete.
func (a *audit) settled(there *cache.Generation) bool {
	for _, of := range a.sets {
		if of.glob != "" && there.Type(of.key).Phase == cache.Unknown {
			return false
		}
	}
	return true
}

// review drops what the view has ceased to ask for meanwhile, doubts what the origin may be
// about to say, and finds out which differences are no news to the view.
func (a *audit) review(ctx context.Context, there *cache.Generation, now time.Time) error {
	if len(a.differences) > 0 && !there.First().Responded {
		return fmt.Errorf("%w: it said nothing for %v", ErrAuditEnded, now.Sub(a.lastGrowth).Round(time.Second))
	}
	for _, d := range a.differences {
		if d.kind == MissingThere && !a.quiet(now) {
			d.since = now
		}
	}
	err := ErrNotConnected
	a.control.do(ctx, func(l Controlled) {
		a.markHeld(l.(*viewSync))
		err = nil
	})
	a.endedAt = now
	return cmp.Or(ctx.Err(), err)
}

// ask is the part of review for which the view's loop is asked.
func (a *audit) markHeld(v *viewSync) {
	type resource struct{ typeURL, name string }
	held := make(map[resource]bool) // whether since the change breaks clients
	for _, h := range v.Operate(reconcile.Command{}) {
		for _, name := range h.Names {
			of := resource{h.TypeURL, name}
			held[of] = held[of] || h.Broken
		}
	}
	wanted := make(map[*auditedSet]func(name string) bool)
	for _, of := range a.sets {
		wanted[of] = v.subscribedTo(of)
	}
	for id, d := range a.differences {
		if !wanted[id.of](id.name) {
			delete(a.differences, id)
		}
		broken, is := held[resource{id.of.typeURL, id.name}]
		d.held = is && (d.kind == MissingThere || broken)
	}
}

// asksFor returns whether the view asks the origin for a resource now.
func (v *viewSync) subscribedTo(of *auditedSet) func(name string) bool {
	s := v.subs[of.typeURL]
	switch of.glob {
	case "":
		names := s.wantedNames()
		return func(name string) bool { _, is := names[name]; return is }
	case wire.Wildcard:
		return func(string) bool { return s.wildcardRole != noStream }
	}
	return func(string) bool { return s.collections[of.glob] != nil }
}

// result returns what was found.
func (a *audit) result() Audit {
	result := Audit{Target: a.session.cfg.Targets[a.target], Took: a.endedAt.Sub(a.startedAt)}
	types := make(map[string]*TypeAudit)
	for _, of := range a.sets {
		if types[of.typeURL] == nil {
			types[of.typeURL] = &TypeAudit{TypeURL: of.typeURL}
		}
		types[of.typeURL].Equal += of.equal
	}
	for id, d := range a.differences {
		t := types[id.of.typeURL]
		if !d.stable(a.endedAt) {
			t.Changing++
			continue
		}
		t.Differences = append(t.Differences, Difference{
			Name: id.name, Glob: id.of.glob, Kind: d.kind, Here: versionOf(d.here), There: versionOf(d.there), Held: d.held,
		})
	}
	for _, typeURL := range slices.Sorted(maps.Keys(types)) {
		t := types[typeURL]
		slices.SortFunc(t.Differences, func(a, b Difference) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Glob, b.Glob))
		})
		result.Types = append(result.Types, *t)
	}
	return result
}

// audited counts an audit.
func (c *counters) countAudit(a Audit) {
	c.update(func(s *Stats) {
		s.Audits++
		for _, t := range a.Types {
			s.Drifted += int64(len(t.Differences))
		}
	})
}

// versionOf returns the version that the origin gave; nothing if it did not.
func versionOf(e *cache.Entry) string {
	if e == nil {
		return ""
	}
	return e.Resource.OriginVersion
}

// resourceOf returns the resource of an entry that may be nil.
func resourceOf(e *cache.Entry) *wire.Resource {
	if e == nil {
		return nil
	}
	return e.Resource
}
