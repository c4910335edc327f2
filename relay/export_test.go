package relay

import "github.com/xdstender/tender/cache"

// AuditEvery is the time between two audits, for tests outside the package.
const AuditEvery = auditInterval

// AuditedViews returns the views that the audit checks.
func (r *Relay) AuditedViews() (views []*cache.View) {
	for _, a := range r.groups.auditedViews() {
		views = append(views, a.View)
	}
	return views
}
