package relay

import (
	"context"
	"time"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/upstream"
)

// rejects tell origins which resources clients reject (TENDER_REPORT_REJECTS). It counts them as operators see them, from
// the state of the streams. Nil tells nothing.
type rejects struct {
	groups     *groups
	rejections func() []downstream.RejectedResource
	wake       chan struct{} // one slot: a client has rejected a response

	told map[*upstream.Control]struct{} // loops with rejections; belongs to run
}

// newRejects returns the rejects of a relay, or nil if they are off. The caller sets rejections before run.
func newRejects(g *groups) *rejects {
	if !g.settings.reportRejects {
		return nil
	}
	return &rejects{groups: g, wake: make(chan struct{}, 1)}
}

// rejected returns the callback for NACKs of clients, or nil.
func (r *rejects) rejected() func() {
	if r == nil {
		return nil
	}
	return func() {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// Clients answer a change within moments of each other, so a NACK is told after settleTime. While clients reject
// resources, the relay looks for changes as often, but for at most one part in lookShare of the time.
const (
	settleTime = time.Second
	lookShare  = 50
)

// run tells origins what clients reject until ctx ends.
func (r *rejects) run(ctx context.Context) {
	if r == nil {
		return
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-r.wake:
		case <-ctx.Done():
			return
		}
		for looking := true; looking; {
			began := time.Now()
			looking = r.look(ctx, began)
			pause.Reset(max(settleTime, lookShare*time.Since(began)))
			select {
			case <-pause.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

// look tells the loops of the views what their clients reject, and reports whether they reject anything.
func (r *rejects) look(ctx context.Context, now time.Time) (any bool) {
	byGroup := make(map[string][]upstream.Rejection)
	for _, rejection := range r.rejections() {
		any = true
		if now.Sub(rejection.First.At) >= settleTime {
			byGroup[rejection.Group] = append(byGroup[rejection.Group], upstream.Rejection{
				TypeURL: rejection.TypeURL, Name: rejection.Name, Resource: rejection.Resource,
				Rejecting: rejection.Rejecting, Clients: rejection.Clients,
				At: rejection.First.At, Err: rejection.First.Detail,
			})
		}
	}
	due := r.groups.rejected(byGroup)
	for control := range r.told {
		if _, still := due[control]; !still {
			control.Report(ctx, nil)
		}
	}
	r.told = make(map[*upstream.Control]struct{}, len(due))
	for control, rejected := range due {
		control.Report(ctx, rejected)
		r.told[control] = struct{}{}
	}
	return any
}

// rejected returns what the loops of views are told, given what the clients of node groups reject. A view has a loop for
// each origin, which knows the resources of its origin. A shared view has the clients of several groups.
func (g *groups) rejected(byGroup map[string][]upstream.Rejection) map[*upstream.Control][]upstream.Rejection {
	due := make(map[*upstream.Control][]upstream.Rejection)
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, rejected := range byGroup {
		gr := g.byKey[key]
		if gr == nil {
			continue
		}
		for _, control := range gr.controls {
			due[control] = rejected
		}
		for _, s := range gr.sharedViews {
			due[s.control] = addRejections(due[s.control], rejected)
		}
	}
	return due
}

// addRejections adds the rejections of the clients of a further group.
func addRejections(all, further []upstream.Rejection) []upstream.Rejection {
	for _, more := range further {
		found := false
		for i := range all {
			if r := &all[i]; r.TypeURL == more.TypeURL && r.Name == more.Name && r.Resource.SameContent(more.Resource) {
				found = true
				r.Rejecting, r.Clients = r.Rejecting+more.Rejecting, r.Clients+more.Clients
				if more.At.Before(r.At) {
					r.At, r.Err = more.At, more.Err
				}
			}
		}
		if !found {
			all = append(all, more)
		}
	}
	return all
}
