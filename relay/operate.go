package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/upstream"
)

// A holder keeps removals back: a view's loop, or a directory for all its views.
type holder interface {
	Holds(context.Context) []upstream.Hold
	Release(context.Context, upstream.HoldChoice) []upstream.Hold
	Discard(context.Context, upstream.HoldChoice) []upstream.Hold
}

// An operated view is what an operator's commands reach of an origin.
type operated struct {
	origin  int
	group   string // of the view; empty for a directory
	view    *cache.View
	source  int
	control *upstream.Control // nil for a directory
	holder  holder
}

// operated returns all views, and the directories, in the order of origins and groups.
func (g *groups) operated() (all []operated) {
	g.mu.Lock()
	for _, gr := range g.byKey {
		for i, c := range gr.controls {
			all = append(all, operated{origin: i, group: gr.key, view: gr.view, source: i, control: c, holder: c})
		}
	}
	for key, s := range g.shared {
		all = append(all, operated{origin: key.origin, group: cmp.Or(key.features, "all"), view: s.view, control: s.control, holder: s.control})
	}
	g.mu.Unlock()
	for i, o := range g.origins {
		if h, ok := o.(holder); ok {
			all = append(all, operated{origin: i, holder: h})
		}
	}
	slices.SortStableFunc(all, func(a, b operated) int { return cmp.Or(a.origin-b.origin, cmp.Compare(a.group, b.group)) })
	return all
}

// operate waits until no other command is carried out; the caller calls done at the end.
func (g *groups) operate(ctx context.Context) (done func(), err error) {
	select {
	case <-g.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case g.operating <- struct{}{}:
		return func() { <-g.operating }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// isFrozen reports whether an operator has stopped the distribution of an origin's changes.
func (g *groups) isFrozen(origin int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.frozen[origin]
}

// setFrozen has views that are made from now on be frozen, or not.
func (g *groups) setFrozen(origin int, frozen bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.frozen[origin] = frozen
}

// findOrigin returns the number of an origin, -1 for an empty name.
func (r *Relay) findOrigin(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	var names []string
	for i := range r.origins {
		if r.cfg.originName(i) == name {
			return i, nil
		}
		names = append(names, r.cfg.originName(i))
	}
	return 0, admin.Refuse(http.StatusNotFound, fmt.Errorf("there is no origin %q: there are %s", name, strings.Join(names, ", ")))
}

func (r *Relay) freeze(ctx context.Context, of admin.FreezeScope) (admin.Freezes, error) {
	return r.setFrozen(ctx, of, true)
}

func (r *Relay) thaw(ctx context.Context, of admin.FreezeScope) (admin.Freezes, error) {
	return r.setFrozen(ctx, of, false)
}

// setFrozen stops the distribution of changes, or goes on with it.
func (r *Relay) setFrozen(ctx context.Context, of admin.FreezeScope, frozen bool) (admin.Freezes, error) {
	only, err := r.findOrigin(of.Origin)
	if err != nil {
		return admin.Freezes{}, err
	}
	done, err := r.groups.operate(ctx)
	if err != nil {
		return admin.Freezes{}, err
	}
	defer done()
	ctx = context.WithoutCancel(ctx) // all views, or none
	var answer admin.Freezes
	for i := range r.origins {
		f := admin.Freeze{Origin: r.cfg.originName(i)}
		for _, o := range r.groups.viewsOf(i) {
			f.Views++
			f.Withheld += o.view.Withheld(o.source)
		}
		if only < 0 || only == i {
			r.setOriginFrozen(ctx, i, frozen)
		}
		f.Frozen = r.groups.isFrozen(i)
		answer.Origins = append(answer.Origins, f)
	}
	return answer, nil
}

// viewsOf returns the views of an origin.
func (g *groups) viewsOf(origin int) []operated {
	return slices.DeleteFunc(g.operated(), func(o operated) bool { return o.origin != origin || o.control == nil })
}

// setOriginFrozen stops the distribution of an origin's changes, or goes on with it: first for
// the views that are made from now on.
func (r *Relay) setOriginFrozen(ctx context.Context, origin int, frozen bool) {
	name := slog.String("origin", r.cfg.originName(origin))
	do := (*upstream.Control).Thaw
	if r.groups.setFrozen(origin, frozen); frozen {
		do = (*upstream.Control).Freeze
		r.log.Warn("changes of the origin are no longer distributed, until tender thaw", name)
	} else {
		r.log.Warn("changes of the origin are distributed", name)
	}
	for _, o := range r.groups.viewsOf(origin) {
		do(o.control, ctx)
	}
}

// warnFrozen says which origins are frozen when the relay ends: the one that comes after it
// is not.
func (r *Relay) warnFrozen() {
	for i := range r.origins {
		if r.groups.isFrozen(i) {
			r.log.Warn("the relay ends while it is frozen: the one that takes its place will not be", slog.String("origin", r.cfg.originName(i)))
		}
	}
}

// holds returns what is held back, and what was discarded.
func (r *Relay) holds(ctx context.Context) admin.Holds {
	answer := admin.Holds{Holds: []admin.Hold{}}
	for _, o := range r.groups.operated() {
		answer.Holds = append(answer.Holds, r.shownHolds(o, o.holder.Holds(ctx))...)
	}
	return answer
}

func (r *Relay) release(ctx context.Context, of admin.HoldScope) (admin.Holds, error) {
	return r.decide(ctx, of, holder.Release)
}

func (r *Relay) discard(ctx context.Context, of admin.HoldScope) (admin.Holds, error) {
	if of.Discarded {
		return admin.Holds{}, admin.Refuse(http.StatusBadRequest, errors.New("discarded: what was discarded can only be released"))
	}
	return r.decide(ctx, of, holder.Discard)
}

// decide carries out a decision about what is held back in a scope.
func (r *Relay) decide(ctx context.Context, of admin.HoldScope, decision func(holder, context.Context, upstream.HoldChoice) []upstream.Hold) (admin.Holds, error) {
	answer := admin.Holds{Holds: []admin.Hold{}}
	if of.Scope == (admin.Scope{}) && !of.All {
		return answer, admin.Refuse(http.StatusBadRequest, errors.New("name an origin, a group or a type, or set all"))
	}
	chosen, typeURL, err := r.choose(of.Scope)
	if err != nil {
		return answer, err
	}
	choice := upstream.HoldChoice{TypeURL: typeURL, Discarded: of.Discarded}
	done, err := r.groups.operate(ctx)
	if err != nil {
		return answer, err
	}
	defer done()
	for _, o := range chosen {
		answer.Holds = append(answer.Holds, r.shownHolds(o, decision(o.holder, ctx, choice))...)
	}
	return answer, nil
}

// choose returns what of the views, and of the directories, is in a scope, and its type URL;
// empty for all types.
func (r *Relay) choose(of admin.Scope) (chosen []operated, typeURL string, err error) {
	origin, err := r.findOrigin(of.Origin)
	if err != nil {
		return nil, "", err
	}
	chosen = slices.DeleteFunc(r.groups.operated(), func(o operated) bool {
		return origin >= 0 && o.origin != origin || of.Group != "" && o.group != of.Group
	})
	if long, ok := schema.TypeURLFor(of.Type); ok {
		return chosen, long, nil
	}
	return chosen, of.Type, nil
}

// shownHolds returns holds as people are shown them.
func (r *Relay) shownHolds(o operated, holds []upstream.Hold) (shown []admin.Hold) {
	for _, h := range holds {
		shown = append(shown, admin.Hold{
			Origin: r.cfg.originName(o.origin), Group: o.group, TypeURL: h.TypeURL, Count: len(h.Names),
			Names: h.Names[:min(len(h.Names), admin.MaxHoldNames)], Since: h.Since, Until: h.Until, Discarded: h.Discarded,
		})
	}
	return shown
}
