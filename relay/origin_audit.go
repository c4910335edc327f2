package relay

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/upstream"
)

// audits has the operations that compare views with the responses of their origins.
type audits struct{ operations }

// auditOrigins compares views with the responses of their origins on a second stream (B.43). It audits origins in
// parallel, and the views of an origin one after the other. A directory cannot be audited.
func (r audits) auditOrigins(ctx context.Context, of admin.Scope) (admin.Audits, error) {
	answer := admin.Audits{Views: []admin.ViewAudit{}}
	chosen, typeURL, err := r.choose(of)
	if err != nil {
		return answer, err
	}
	var (
		byOrigin = make([][]admin.ViewAudit, len(r.origins))
		running  sync.WaitGroup
	)
	for i, o := range r.origins {
		if _, files := o.(filesOrigin); files && of.Origin != "" && of.Origin == r.cfg.OriginName(i) {
			return answer, admin.Refuse(http.StatusBadRequest, fmt.Errorf("origin %q: %w", of.Origin, upstream.ErrNoAudit))
		} else if files {
			continue
		}
		running.Go(func() { // awaited below
			for _, v := range chosen {
				if v.origin != i || v.control == nil {
					continue
				}
				if found, any := r.auditView(ctx, v, typeURL); any {
					byOrigin[i] = append(byOrigin[i], found)
				}
			}
		})
	}
	running.Wait()
	for _, views := range byOrigin {
		answer.Views = append(answer.Views, views...)
	}
	return answer, nil
}

// auditView audits one view. any is false if the view has no subscriptions to audit.
func (r audits) auditView(ctx context.Context, v commandTarget, typeURL string) (shown admin.ViewAudit, any bool) {
	shown = admin.ViewAudit{Origin: r.cfg.OriginName(v.origin), Group: v.group}
	found, err := v.control.Audit(ctx, typeURL)
	if err != nil {
		shown.Error = err.Error()
		return shown, true
	}
	shown.Target, shown.Seconds = found.Target, found.Took.Seconds()
	for _, t := range found.Types {
		shown.Types = append(shown.Types, shownAudit(t))
	}
	return shown, len(shown.Types) > 0
}

// shownAudit returns the result of an audit for a type in the form of the admin API.
func shownAudit(t upstream.TypeAudit) admin.TypeAudit {
	shown := admin.TypeAudit{TypeURL: t.TypeURL, Equal: t.Equal, Changing: t.Changing}
	counts := map[upstream.DifferenceKind]*int{
		upstream.OtherContent: &shown.Content,
		upstream.OtherVersion: &shown.Version,
		upstream.MissingHere:  &shown.MissingHere,
		upstream.MissingThere: &shown.MissingThere,
	}
	for i, d := range t.Differences {
		*counts[d.Kind]++
		if i < admin.MaxDifferences {
			shown.Differences = append(shown.Differences, admin.Difference{
				Name: d.Name, Kind: d.Kind, AskedAs: d.Glob, Here: d.Here, There: d.There, Held: d.Held,
			})
		}
	}
	return shown
}
