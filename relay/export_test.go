package relay

import "github.com/xdstender/tender/cache"

// AuditEvery is the time between two audits.
const AuditEvery = auditInterval

// AuditedViews returns the views that an audit checks.
func (r *Relay) AuditedViews() (views []*cache.View) {
	for _, a := range r.groups.auditedViews() {
		views = append(views, a.View)
	}
	return views
}
