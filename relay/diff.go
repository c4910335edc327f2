package relay

import (
	"context"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/operator"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream"
)

// A viewEdition is the edition that a command would serve to the clients of one view.
type viewEdition struct {
	origin  string
	part    rollout.PartKey
	control *upstream.Control
	edition func(*cache.Writer) *cache.Edition // called by the goroutine of the view
}

// diffOf returns the changes of editions for clients, resource by resource.
func (r operations) diffOf(ctx context.Context, all []viewEdition, c admin.RolloutChoice) (admin.RolloutDiff, error) {
	var edited []operator.Edited
	for _, v := range all {
		v.control.Edit(ctx, func(w *cache.Writer) {
			for d := range v.edition(w).Diff() {
				difference := rollout.Difference{Part: v.part, Difference: d}
				edited = append(edited, operator.Edited{Origin: v.origin, Difference: difference})
			}
		})
	}
	return operator.RolloutDiff(edited, c)
}

// dryRun returns the diff of editions for the response to a dry run, which has at most admin.MaxDryRunChanges changes.
func (r operations) dryRun(ctx context.Context, all []viewEdition) (*admin.RolloutDiff, error) {
	diff, err := r.diffOf(ctx, all, admin.RolloutChoice{Page: admin.Page{Limit: admin.MaxDryRunChanges}})
	return &diff, err
}

// thawDiff returns the changes of a thaw for clients.
func (r operations) thawDiff(ctx context.Context, c admin.RolloutChoice) (admin.RolloutDiff, error) {
	only, done, err := r.lockOrigin(ctx, c.Origin)
	if err != nil {
		return admin.RolloutDiff{}, err
	}
	defer done()
	return r.diffOf(ctx, r.thawEditions(ctx, only), c)
}

// thawEditions returns the editions that a thaw of one origin, or of all origins for -1, would serve.
func (r operations) thawEditions(ctx context.Context, only int) (all []viewEdition) {
	for i, o := range r.origins {
		if _, frozen := r.groups.decisions.freezeOf(i); !frozen || only >= 0 && only != i {
			continue
		}
		edition := (*cache.Writer).PinThawed
		if files, ok := o.(filesOrigin); ok {
			edition = files.Thawing(ctx)
		}
		for _, v := range r.groups.inspector().viewsOf(i) {
			all = append(all, viewEdition{r.cfg.OriginName(i), v.part(), v.control, edition})
		}
	}
	return all
}
