package relay

import (
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/lint"
)

// newLinter returns what checks the resources of all views; nil if nothing does.
func (r *Relay) newLinter() *lint.Linter {
	if r.cfg.Validate == ValidateOff {
		return nil
	}
	return lint.New(lint.Config{Views: r.groups.linted, Static: r.cfg.StaticClusters, Logger: r.log})
}

// linted returns the views of all groups, and of each cohort of a group. They have what groups share, too.
func (g *groups) linted() (views []lint.View) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, gr := range g.byKey {
		for cohort := range gr.view.Cohorts() + 1 {
			views = append(views, lint.View{View: gr.view.Cohort(cohort), Group: gr.key})
		}
	}
	return views
}

// validation returns what the checks found; nil if there are none.
func (r *Relay) validation() *admin.Validation {
	if r.linter == nil {
		return nil
	}
	return admin.NewValidation(r.cfg.Validate, r.linter.Report())
}
