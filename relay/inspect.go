package relay

import (
	"cmp"
	"context"
	"slices"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/operator"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A holder holds changes: the control of a view, or a directory for all of its views.
type holder interface {
	Operate(context.Context, reconcile.Command) []reconcile.Hold
}

// A commandTarget is a view or a directory to which operator commands apply.
type commandTarget struct {
	origin       int
	group        string // of the view; empty for a directory
	shared       bool   // it is a shared view
	snapshotName string // the group in snapshots
	view         *cache.View
	source       int
	control      *upstream.Control // nil for a directory
	holder       holder
}

// section returns the key of the view in editions.
func (o *commandTarget) section() rollout.SectionKey {
	return rollout.SectionKey{Group: o.group, Shared: o.shared}
}

// commandTargets returns all views and directories, ordered by origin and group.
func (g *groups) commandTargets() (all []commandTarget) {
	g.mu.Lock()
	for _, gr := range g.byKey {
		for i, c := range gr.controls {
			all = append(all, commandTarget{
				origin: i, group: gr.key, snapshotName: gr.key, view: gr.view, source: i, control: c, holder: c,
			})
		}
		for i, c := range gr.sharing {
			if c != nil {
				all = append(all, commandTarget{origin: i, group: gr.key, holder: c})
			}
		}
	}
	for key, s := range g.shared {
		all = append(all, commandTarget{
			origin: key.origin, group: key.label(), shared: true, snapshotName: key.snapshotName(),
			view: s.view, control: s.control, holder: s.control,
		})
	}
	g.mu.Unlock()
	for i, o := range g.origins {
		if h, ok := o.(holder); ok {
			all = append(all, commandTarget{origin: i, holder: h})
		}
	}
	slices.SortStableFunc(all, func(a, b commandTarget) int {
		return cmp.Or(a.origin-b.origin, cmp.Compare(a.group, b.group))
	})
	return all
}

// viewsOf returns the views of an origin.
func (g *groups) viewsOf(origin int) []commandTarget {
	return slices.DeleteFunc(g.commandTargets(), func(t commandTarget) bool {
		return t.origin != origin || t.control == nil
	})
}

// allViews returns the views of groups, and then the shared views that have resources, each sorted by key.
func (g *groups) allViews() []operator.View {
	var ofGroups, ofShared []operator.View
	g.mu.Lock()
	for _, gr := range g.byKey {
		ofGroups = append(ofGroups, operator.View{
			Key: gr.key, View: gr.view, Streams: gr.streams, Counts: &gr.counts, Node: gr.node,
		})
	}
	for key, s := range g.shared {
		if s.view.Generation().Types() > 0 {
			ofShared = append(ofShared, operator.View{Key: key.label(), View: s.view, Shared: true, Origin: key.origin})
		}
	}
	g.mu.Unlock()
	for _, views := range [][]operator.View{ofGroups, ofShared} {
		slices.SortFunc(views, func(a, b operator.View) int { return cmp.Or(cmp.Compare(a.Key, b.Key), a.Origin-b.Origin) })
	}
	return append(ofGroups, ofShared...)
}
