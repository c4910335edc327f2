package relay

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/operator"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream"
)

// operations has the methods that commands and queries of the admin API share: they find origins and views, lock out
// other commands, and return diffs. freezes, holds, rollbacks, audits and rolloutOperations embed it. The methods
// of all these may be called from any goroutine.
type operations struct{ *Relay }

// findOrigin returns the index of an origin, or -1 for an empty name.
func (r operations) findOrigin(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	names := r.cfg.OriginNames()
	if i := slices.Index(names, name); i >= 0 {
		return i, nil
	}
	return 0, admin.Refuse(http.StatusNotFound,
		fmt.Errorf("there is no origin %q; the origins are %s", name, strings.Join(names, ", ")))
}

// lockCommands waits until the relay has started and no other command runs. The caller must call done after its
// command.
func (r operations) lockCommands(ctx context.Context) (done func(), err error) {
	select {
	case <-r.groups.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case r.commandSlot <- struct{}{}:
		return func() { <-r.commandSlot }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// lockOrigin returns the index of an origin, or -1 for an empty name, and waits until no other command runs. The caller
// must call done after its command.
func (r operations) lockOrigin(ctx context.Context, origin string) (only int, done func(), err error) {
	if only, err = r.findOrigin(origin); err != nil {
		return 0, nil, err
	}
	done, err = r.lockCommands(ctx)
	return only, done, err
}

// choose returns the views and directories in a scope, and its type URL, which is empty for all types.
func (r operations) choose(of admin.Scope) (chosen []commandTarget, typeURL string, err error) {
	origin, err := r.findOrigin(of.Origin)
	if err != nil {
		return nil, "", err
	}
	chosen = slices.DeleteFunc(r.groups.inspector().commandTargets(), func(o commandTarget) bool {
		return origin >= 0 && o.origin != origin || of.Group != "" && o.group != of.Group
	})
	if long, ok := schema.TypeURLFor(of.Type); ok {
		return chosen, long, nil
	}
	return chosen, of.Type, nil
}

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
