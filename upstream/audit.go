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
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream/reconcile"
)

// An audit compares a view with its origin (B.43). A second sync starts with an empty view and uses its own streams to
// the same target. It requests exactly what the view has requested. Then the two views are compared.

const (
	// auditTick is the interval between comparisons while responses are outstanding.
	auditTick = reconcile.SettleQuiet

	// auditQuiet is the time that a difference must remain unchanged, and the time without a new name, before the
	// audit reports the difference. It must be longer than the delay between the two streams for one change.
	auditQuiet = 5 * time.Second

	// auditChangingMax is the time without a new name after which the audit ends, even if resources still change.
	auditChangingMax = 3 * auditQuiet

	// auditMax is the maximum duration of an audit.
	auditMax = reconcile.ConfirmMax
)

// Errors of [Control.Audit], in addition to the error of its context. An audit that returns an error has no result.
var (
	// ErrNoAudit: the origin is a directory, which one reader reads for all views.
	ErrNoAudit = errors.New("the origin is a directory, which is read for all views at once")
	// ErrNotConnected: the view has no open stream to the origin.
	ErrNotConnected = errors.New("the view is not connected to its origin")
	// ErrAuditEnded: the origin closed the second stream, or did not respond on it.
	ErrAuditEnded = errors.New("the origin does not answer a second stream")
)

// Audit compares the view, frozen or not, with the responses of the origin to a second client. It requests all
// resources that the view has requested. If typeURL is not empty, it requests only that type. It changes nothing.
//
// A difference is reported once both sides have not changed for 5s. The audit ends when all differences are that old
// and no new name has arrived for 5s. It ends earlier if the responses are complete and nothing differs. If resources
// still change, it ends after 15s without a new name, or after 60s in total. A session runs one audit at a time; others
// wait.
//
// The origin receives one or two additional streams of the same node. An audit needs as much memory as the view.
//
// Errors: ErrNoAudit, ErrNotConnected, ErrAuditEnded, the error of ctx.
func (c *Control) Audit(ctx context.Context, typeURL string) (Audit, error) {
	var s *Session
	err := ErrNotConnected // the loop has ended if do does not call the function
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

// An audit is one comparison. It belongs to the goroutine that called Audit.
type audit struct {
	control      *Control
	session      *Session
	target       int
	auditSession *Session // of the second sync
	node         *corepb.Node
	sets         []*auditedSet

	startedAt, endedAt time.Time
	here, there        *cache.Generation           // the generations that were compared last
	differences        map[resourceID]*discrepancy // of the last comparison
	known              int                         // names in the responses on the second stream
	lastGrowth         time.Time                   // when known last grew; zero before the second stream is open
}

// An auditedSet is one set that the view has requested of a type: the wildcard set, a collection, or all names.
type auditedSet struct {
	typeURL string
	key     string   // type URL or collection, as the key in the view
	glob    string   // "*" or the glob of a collection; empty for names
	names   []string // sorted; only for names
	equal   int      // resources without a difference in the last comparison
}

// A resourceID identifies one resource in an audit.
type resourceID struct {
	of   *auditedSet
	name string
}

// A discrepancy is a resource that differs, and the time since it differs in this way.
type discrepancy struct {
	here, there *cache.Entry // nil if missing
	kind        DifferenceKind
	since       time.Time
	held        bool // see Difference.Held
}

// plan records the subscriptions of the view. Only the loop of the view may call it.
func (a *audit) plan(v *viewSync, typeURL string) error {
	a.session, a.target, a.node = v.session, v.target, v.node
	for _, s := range v.trunk.ordered() { // an isolated subscription would end the stream of the audit
		if typeURL == "" || s.typeURL == typeURL {
			a.sets = append(a.sets, s.auditedSets()...)
		}
	}
	l := &v.trunk.byRole[main]
	if len(a.sets) == 0 {
		return nil
	}
	if !l.open {
		return ErrNotConnected
	}
	a.auditSession = v.session.newAuditSession(v.target, l.sotw != nil)
	return nil
}

// auditedSets returns the sets of the type that the view has requested.
func (s *subscription) auditedSets() (asked []*auditedSet) {
	if s.wildcardRole != noStream {
		asked = append(asked, &auditedSet{typeURL: s.typeURL, key: s.typeURL, glob: wire.Wildcard})
	}
	for glob, c := range s.collections {
		asked = append(asked, &auditedSet{typeURL: s.typeURL, key: c.key, glob: glob})
	}
	if len(s.names) > 0 {
		names := slices.Sorted(maps.Keys(s.wantedNames()))
		asked = append(asked, &auditedSet{typeURL: s.typeURL, key: s.typeURL, names: names})
	}
	return asked
}

// newAuditSession returns a session that shares only the connection to a target with s. Its streams cause no failover,
// and s does not count them. The caller must not close it.
func (s *Session) newAuditSession(target int, sotw bool) *Session {
	cfg := s.cfg
	cfg.Targets, cfg.Prewarm, cfg.Logger = s.cfg.Targets[target:target+1], nil, slog.New(slog.DiscardHandler)
	cfg.Protocol = ProtocolDelta
	if sotw {
		cfg.Protocol = ProtocolSotW
	}
	second := &Session{
		cfg: cfg, conns: s.conns[target : target+1], links: make([]link, 1),
		noDeltaLogged: make([]atomic.Bool, 1), limiter: newStreamLimiter(&Config{}),
	}
	never := make(chan struct{})
	second.targetChange.Store(&never)
	return second
}

// run runs the second sync and the comparison.
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
	go func() { // run waits for it below
		defer close(ended)
		a.auditSession.Sync(mirroring, a.node, pending.New(w, nil), a.auditSession.cfg.Logger, NewControl(false, nil).WithoutClients())
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

// compareUntilQuiet compares the two views until done returns true.
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
			continue // the stream is being opened
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

// streamError returns an error if a stream of the second sync ended, unless the second sync itself reopens it.
func (a *audit) streamError() error {
	for reason := range a.auditSession.Stats().Ended {
		if reason == EndResync {
			continue // the second sync itself reopened it
		}
		if f := a.auditSession.failure.Load(); f != nil {
			return fmt.Errorf("%w: %w", ErrAuditEnded, f.Err)
		}
		return fmt.Errorf("%w: it was %s", ErrAuditEnded, reason)
	}
	return nil
}

// viewGeneration returns the current generation of the view. It returns ErrNotConnected if the view has no open stream
// to the audited target.
func (a *audit) viewGeneration(ctx context.Context) (g *cache.Generation, err error) {
	err = ErrNotConnected
	a.control.do(ctx, func(l Controlled) {
		if v := l.(*viewSync); v.trunk.byRole[main].open && v.target == a.target {
			g, err = v.w.Generation(), nil
		}
	})
	return g, cmp.Or(ctx.Err(), err)
}

// compare updates the differences between two generations. It keeps the age of differences that have not changed.
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
			id := resourceID{of, name}
			a.compareResource(id, mine[name], theirs[name], was[id], now)
		}
	}
	if grown > a.known {
		a.known, a.lastGrowth = grown, now
	}
}

// entries returns the present resources of a generation by subscribed name, and the number of names with a response. A
// response is a resource, a removal or an error.
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

// compareResource compares one resource. was is its difference at the last comparison; nil if there was none.
func (a *audit) compareResource(id resourceID, here, there *cache.Entry, was *discrepancy, now time.Time) {
	kind := difference(here, there)
	if kind == "" {
		id.of.equal++
		return
	}
	d := &discrepancy{here: here, there: there, kind: kind, since: now}
	if was != nil && resourceOf(was.here) == resourceOf(here) && resourceOf(was.there) == resourceOf(there) {
		d.since = was.since
	}
	a.differences[id] = d
}

// difference returns how two resources differ; "" if they are equal.
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
		return OtherContent // the cached bytes do not match their digest
	case mine.OriginVersion != theirs.OriginVersion && !here.HasVersion(theirs.Version):
		return OtherVersion
	}
	return ""
}

// waitsAs reports whether a resource waits for stages, in the state of the origin; nil is that it does not exist.
func (id resourceID) waitsAs(l *pending.List, there *wire.Resource) bool {
	kind := cache.ByName
	if id.of.glob != "" {
		kind = cache.Wildcard
	}
	waiting, waits := l.GetStaged(kind, id.of.key, id.name)
	if waiting == nil || there == nil {
		return waits && waiting == there
	}
	return waiting.SameContent(there)
}

// done reports whether the audit has its result.
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

// quiet reports whether no new name has arrived for so long that the responses of the origin count as complete.
func (a *audit) quiet(now time.Time) bool { return now.Sub(a.lastGrowth) >= auditQuiet }

// stable reports whether the difference is too old to be a change in flight.
func (d *discrepancy) stable(now time.Time) bool { return now.Sub(d.since) >= auditQuiet }

// settled reports whether the first response to each wildcard and each glob counts as complete.
func (a *audit) settled(there *cache.Generation) bool {
	for _, of := range a.sets {
		if of.glob != "" && there.Type(of.key).Phase == cache.Unknown {
			return false
		}
	}
	return true
}

// review finalizes the differences. It drops those of resources that the view no longer requests, and marks those that
// pending or dropped removals explain. A resource that the origin may still send counts as changing.
func (a *audit) review(ctx context.Context, there *cache.Generation, now time.Time) error {
	if len(a.differences) > 0 && !there.First().Responded {
		return fmt.Errorf("%w: no response for %v", ErrAuditEnded, now.Sub(a.lastGrowth).Round(time.Second))
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

// markHeld is the part of review that reads the state of the view. Only the loop of the view may call it.
func (a *audit) markHeld(v *viewSync) {
	type resource struct{ typeURL, name string }
	held := make(map[resource]bool) // true if the resource itself is held, and not only its removal
	for typeURL, name := range v.pending.Names() {
		held[resource{typeURL, name}] = true
	}
	for _, h := range v.Operate(reconcile.Command{}) {
		for _, name := range h.Names {
			of := resource{h.TypeURL, name}
			held[of] = held[of] || h.Kind != reconcile.Removal && (h.Details != nil || h.Reason == reconcile.Replacement)
		}
	}
	a.dropExplained(v)
	for id, d := range a.differences {
		content, is := held[resource{id.of.typeURL, id.name}]
		d.held = is && (d.kind == MissingThere || content)
	}
}

// dropExplained drops the differences of resources that the view no longer requests, and of those that it has in the state of the
// origin, for its cohorts first.
func (a *audit) dropExplained(v *viewSync) {
	wanted := make(map[*auditedSet]func(name string) bool)
	for _, of := range a.sets {
		wanted[of] = v.subscribedTo(of)
	}
	for id, d := range a.differences {
		if !wanted[id.of](id.name) {
			delete(a.differences, id)
		} else if id.waitsAs(v.pending, resourceOf(d.there)) {
			delete(a.differences, id)
			id.of.equal++
		}
	}
}

// subscribedTo returns a function that reports whether the view requests a resource of a set.
func (v *viewSync) subscribedTo(of *auditedSet) func(name string) bool {
	s := v.trunk.subs[of.typeURL]
	if s == nil {
		return func(string) bool { return false } // isolated since
	}
	switch of.glob {
	case "":
		names := s.wantedNames()
		return func(name string) bool { _, is := names[name]; return is }
	case wire.Wildcard:
		return func(string) bool { return s.wildcardRole != noStream }
	}
	return func(string) bool { return s.collections[of.glob] != nil }
}

// result returns the result of the audit.
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

// countAudit counts an audit.
func (c *counters) countAudit(a Audit) {
	c.update(func(s *Stats) {
		s.Audits++
		for _, t := range a.Types {
			s.Drifted += int64(len(t.Differences))
		}
	})
}

// versionOf returns the version that the origin sent; "" for a nil entry.
func versionOf(e *cache.Entry) string {
	if e == nil {
		return ""
	}
	return e.Resource.OriginVersion
}

// resourceOf returns the resource of an entry; nil for a nil entry.
func resourceOf(e *cache.Entry) *wire.Resource {
	if e == nil {
		return nil
	}
	return e.Resource
}
