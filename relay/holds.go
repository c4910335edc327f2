package relay

import (
	"context"
	"errors"
	"net/http"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/upstream/reconcile"
)

// holds has the operations on changes that are held back.
type holds struct{ operations }

// list returns the held changes and the discarded removals.
func (r holds) list(ctx context.Context) admin.Holds {
	answer := admin.Holds{Holds: []admin.Hold{}}
	for _, o := range r.groups.inspector().commandTargets() {
		answer.Holds = append(answer.Holds, r.shownHolds(o, o.holder.Operate(ctx, reconcile.Command{}))...)
	}
	return answer
}

// release applies the held or discarded changes in a scope.
func (r holds) release(ctx context.Context, of admin.HoldScope) (admin.Holds, error) {
	return r.decide(ctx, of, reconcile.Release)
}

// discard drops the held changes in a scope. The resources are kept.
func (r holds) discard(ctx context.Context, of admin.HoldScope) (admin.Holds, error) {
	if of.Discarded {
		return admin.Holds{}, admin.Refuse(http.StatusBadRequest,
			errors.New("discarded: a discarded removal can only be released"))
	}
	return r.decide(ctx, of, reconcile.Discard)
}

// decide releases or discards the held changes in a scope.
func (r holds) decide(ctx context.Context, of admin.HoldScope, do reconcile.Action) (admin.Holds, error) {
	answer := admin.Holds{Holds: []admin.Hold{}}
	if err := of.Check(); err != nil {
		return answer, err
	}
	if of.Scope == (admin.Scope{}) && !of.All {
		return answer, admin.Refuse(http.StatusBadRequest, errors.New("name an origin, a group or a type, or set all"))
	}
	chosen, typeURL, err := r.choose(of.Scope)
	if err != nil {
		return answer, err
	}
	command := reconcile.Command{Do: do, TypeURL: typeURL, Discarded: of.Discarded}
	done, err := r.lockCommands(ctx)
	if err != nil {
		return answer, err
	}
	defer done()
	for _, o := range chosen {
		answer.Holds = append(answer.Holds, r.shownHolds(o, o.holder.Operate(ctx, command))...)
	}
	if len(answer.Holds) > 0 {
		answer.Warning = r.groups.decisionStore().saveNew(context.WithoutCancel(ctx), true)
	}
	return answer, nil
}

// shownHolds returns held changes in the form of the admin API.
func (r holds) shownHolds(o commandTarget, all []reconcile.Hold) (shown []admin.Hold) {
	for _, h := range all {
		shown = append(shown, admin.Hold{
			Origin: r.cfg.OriginName(o.origin), Group: o.group, TypeURL: h.TypeURL, Count: len(h.Names),
			Names:  h.Names[:min(len(h.Names), admin.MaxHoldNames)],
			Broken: h.Breaking, Reasons: h.Reasons[:min(len(h.Reasons), admin.MaxHoldNames)],
			Since: h.Since, Until: h.Until, Reported: h.Reported, Discarded: h.Discarded,
		})
	}
	return shown
}
