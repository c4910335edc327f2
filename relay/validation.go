package relay

import (
	"slices"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/lint"
	"github.com/xdstender/tender/upstream/reconcile"
)

// newLinter returns the linter of all views, or nil if TENDER_VALIDATE is off. It must not run before r.groups is set.
func (r *Relay) newLinter() *lint.Linter {
	if r.settings.validate == ValidateOff {
		return nil
	}
	cfg := r.settings.lint
	cfg.Views, cfg.Logger = func() []lint.View { return r.groups.lintedViews() }, r.log
	return lint.New(cfg)
}

// newChecker returns the function that finds changes that break clients, or nil unless TENDER_VALIDATE is hold.
func newChecker(s *settings, linter *lint.Linter) reconcile.Checker {
	if s.validate != ValidateHold {
		return nil
	}
	return func(res *wire.Resource) reconcile.Facts {
		facts := linter.Facts(res)
		found := reconcile.Facts{Clusters: linter.Clusters(facts), OnDemand: facts.OnDemand}
		if i := slices.IndexFunc(facts.Findings, func(f lint.Finding) bool { return f.Kind == lint.Undecodable }); i >= 0 {
			found.Undecodable = facts.Findings[i].Detail
		}
		return found
	}
}

// lintedViews returns the views of all node groups, one for each cohort. They include the names that groups share.
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

// validation returns the findings, or nil if nothing is checked.
func (r *Relay) validation() *admin.Validation {
	if r.linter == nil {
		return nil
	}
	return admin.NewValidation(r.settings.validate, r.linter.Report())
}
