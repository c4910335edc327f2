package operator

import (
	"cmp"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream/reconcile"
)

// HeldRows returns rows for changes that wait upstream of the view of a group.
func HeldRows(origin, group string, holds []reconcile.Hold) (rows []admin.PendingChange) {
	for _, h := range holds {
		shown := min(len(h.Names), admin.MaxPendingNames)
		row := admin.PendingChange{
			Origin: origin, Group: group, TypeURL: h.TypeURL, Change: string(h.Kind), Reason: string(h.Reason),
			Count: len(h.Names), Names: h.Names[:shown], Since: h.Since, By: admin.ByRelay, Reported: h.Reported,
			Ends: admin.EndsByOrigin,
		}
		if h.Details != nil {
			row.Details = h.Details[:shown]
		}
		if h.Reason == reconcile.Dropped {
			row.By = cmp.Or(h.By, "operator")
		}
		switch {
		case h.ByOperator:
			row.Ends = admin.EndsByOperator
		case !h.Until.IsZero():
			row.Ends, row.Until = admin.EndsByDeadline, h.Until
		}
		rows = append(rows, row)
	}
	return rows
}

// EditedByHold returns the differences of changes that wait upstream of a view, or of all views of a directory.
func EditedByHold(origin string, section rollout.SectionKey, h reconcile.Hold) (all []Edited) {
	for i, name := range h.Names {
		if h.Reason == reconcile.Interval || h.Changes == nil {
			return nil // the list has the states of these
		}
		d := pending.Difference{Key: h.TypeURL, Name: name, Was: h.Changes[i].Was, Is: h.Changes[i].Is}
		if d.Was == nil && d.Is == nil {
			continue // only clients that have reported it have it
		}
		all = append(all, Edited{Origin: origin, Difference: rollout.Difference{Section: section, Difference: d}})
	}
	return all
}

// Newest returns differences, of several of one resource only the first one: that of the mechanism which sees it first.
func Newest(all []Edited) (newest []Edited) {
	type key struct {
		origin, key, name string
		section           rollout.SectionKey
	}
	seen := make(map[key]bool)
	for _, e := range all {
		of := key{e.Origin, e.Key, e.Name, e.Section}
		if !seen[of] {
			seen[of] = true
			newest = append(newest, e)
		}
	}
	return newest
}

// A Wait is why all changes of an origin wait that clients do not receive yet.
type Wait struct {
	Reason       string // one of admin.PendingReasons
	Since, Until time.Time
	Ends         string // if Until is zero
	By, Note     string
	Part         string // of a rollout, to whose changes this applies; empty for those that are in no edition
	Names        int    // number of names of the part that wait
	AllParts     bool   // it applies to all changes
}

// WithheldRows returns rows for the differences between what clients receive and the newest state of an origin that belong
// to the part of a wait. It selects those of a group, a type and a name.
func WithheldRows(all []Edited, why Wait, c admin.PendingChoice) []admin.PendingChange {
	type key struct{ origin, group, typeURL, change string }
	byKey := make(map[key]*admin.PendingChange)
	names := make(map[key][]string)
	var order []key
	for _, e := range all {
		typeURL, _, _ := cache.SplitCollection(e.Key)
		name, _ := wire.SplitParameters(e.Name)
		if e.Part != why.Part && !why.AllParts || c.Group != "" && !nodegroup.Is(c.Group, e.Section.Group) || cmp.Or(c.Type, typeURL) != typeURL || cmp.Or(c.Name, name) != name {
			continue
		}
		k := key{e.Origin, e.Section.Group, typeURL, string(kindOf(e.Difference.Difference))}
		if byKey[k] == nil {
			order = append(order, k)
			byKey[k] = &admin.PendingChange{
				Origin: k.origin, Group: k.group, Part: why.Part, TypeURL: k.typeURL, Change: k.change, Reason: why.Reason,
				Since: why.Since, Until: why.Until, Ends: why.Ends, By: cmp.Or(why.By, admin.ByRelay), Note: why.Note,
			}
			if !why.Until.IsZero() {
				byKey[k].Ends = admin.EndsByDeadline
			}
		}
		names[k] = append(names[k], name)
	}
	var rows []admin.PendingChange
	for _, k := range order {
		row := byKey[k]
		slices.Sort(names[k])
		row.Names = slices.Compact(names[k]) // a name may be in several collections
		row.Count = len(row.Names)
		row.Names = row.Names[:min(row.Count, admin.MaxPendingNames)]
		rows = append(rows, *row)
	}
	return rows
}

// maxListedNames is the number of names that a list of pending changes has at most, unless it has very many rows.
const maxListedNames = 10_000

// LimitNames reduces the names of rows, which keep their counts, if there are more than maxListedNames in total. Otherwise
// the changes of many groups would be a large response.
func LimitNames(rows []admin.PendingChange) {
	total := 0
	for _, r := range rows {
		total += len(r.Names)
	}
	if total <= maxListedNames {
		return
	}
	most := max(maxListedNames/len(rows), 3)
	for i := range rows {
		r := &rows[i]
		r.Names = r.Names[:min(len(r.Names), most)]
		r.Details = r.Details[:min(len(r.Details), most)]
	}
}

// kindOf returns what a difference does with a resource that clients receive.
func kindOf(d pending.Difference) reconcile.Kind {
	switch {
	case d.Is == nil:
		return reconcile.Removal
	case d.Was == nil:
		return reconcile.Addition
	}
	return reconcile.Update
}

// SortPending sorts rows by origin, group, type in the order in which xDS sends types, reason and change.
func SortPending(rows []admin.PendingChange) {
	slices.SortStableFunc(rows, func(a, b admin.PendingChange) int {
		return cmp.Or(
			cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Group, b.Group),
			wire.CompareTypes(a.TypeURL, b.TypeURL),
			cmp.Compare(a.Part, b.Part),
			slices.Index(admin.PendingReasons, a.Reason)-slices.Index(admin.PendingReasons, b.Reason),
			cmp.Compare(a.Change, b.Change), a.Since.Compare(b.Since))
	})
}
