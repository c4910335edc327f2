package relay

import (
	"slices"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/lint"
	"github.com/xdstender/tender/upstream/reconcile"
)

// newLinter returns what checks the resources of all views; nil if nothing does. It may be used once r.groups is set.
func (r *Relay) newLinter() *lint.Linter {
	if r.cfg.Validate == ValidateOff {
		return nil
	}
	views := func() []lint.View { return r.groups.lintedViews() }
	return lint.New(lint.Config{Views: views, Static: r.cfg.StaticClusters, Logger: r.log})
}

// checker returns what finds changes that break clients, to hold them; nil if none are held.
func (r *Relay) checker() reconcile.Checker {
	if r.cfg.Validate != ValidateHold {
		return nil
	}
	return func(res *wire.Resource) reconcile.Facts {
		facts := r.linter.Facts(res)
		is := reconcile.Facts{Clusters: r.linter.Clusters(facts), OnDemand: facts.OnDemand}
		if i := slices.IndexFunc(facts.Findings, func(f lint.Finding) bool { return f.Kind == lint.Undecodable }); i >= 0 {
			is.Undecodable = facts.Findings[i].Detail
		}
		return is
	}
}

// lintedViews returns the views of all groups, and of each cohort of a group. They have what groups share, too.
func (g *groups) lintedViews() (views []lint.View) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, gr := range g.byKey {
		for cohort := range gr.view.Cohorts() + 1 {
			views = append(views, lint.View{View: gr.view.Cohort(cohort), Group: gr.key})
		}
	}
	return views
}

// validation returns what the checks found, and the changes that are held for it; nil if nothing is checked.
func (r overview) validation() *admin.Validation {
	if r.linter == nil {
		return nil
	}
	report := r.linter.Report()
	if r.cfg.Validate == ValidateHold {
		report.Add(r.groups.heldChanges()...)
	}
	return admin.NewValidation(r.cfg.Validate, report)
}

// heldChanges returns the changes that are held since they break clients.
func (g *groups) heldChanges() (all []lint.GroupFinding) {
	for _, o := range g.commandTargets() {
		for _, h := range o.holder.Broken() {
			for i, name := range h.Names {
				all = append(all, lint.GroupFinding{Group: o.group, Finding: lint.Finding{
					TypeURL: h.TypeURL, Name: name, Kind: lint.Held, Detail: h.Reasons[i],
				}})
			}
		}
	}
	return all
}
