package relay

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/telemetry"
)

const (
	// auditInterval is how often all views are audited, if that takes no longer.
	auditInterval = time.Minute

	// Of each auditTick, an audit works for auditWork: it takes at most half a percent of
	// one core, however many views there are and however large they are.
	auditTick = time.Second
	auditWork = 5 * time.Millisecond

	// maxAuditLines is how many faults of a view are logged in each pass.
	maxAuditLines = 10
)

// AuditStats is what the drift audit has done since the relay began (B.43). It is not stable.
type AuditStats struct {
	Passes int64 // over all views
	Faults int64 // found, in each pass; anything but zero is a defect of the relay or of the machine

	// Where counts the faults by where they were found.
	Where map[telemetry.AuditFault]int64
}

// An auditor checks all views, one after the other and again and again, for inconsistent state.
type auditor struct {
	groups *groups
	log    *slog.Logger

	passes atomic.Int64

	mu     sync.Mutex
	faults map[telemetry.AuditFault]int64 // guarded by mu
}

// An auditedView is a view of a node group.
type auditedView struct {
	*cache.View
	group, label string
}

func (a *auditor) stats() AuditStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := AuditStats{Passes: a.passes.Load(), Where: maps.Clone(a.faults)}
	for _, n := range a.faults {
		s.Faults += n
	}
	return s
}

// count counts a fault in a view of a node group with this label of metrics.
func (a *auditor) count(label string, f cache.Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.faults == nil {
		a.faults = make(map[telemetry.AuditFault]int64)
	}
	a.faults[telemetry.AuditFault{Group: label, Part: f.Part}]++
}

// run audits until ctx ends.
func (a *auditor) run(ctx context.Context) {
	logged := make(map[*cache.View]map[cache.Fault]struct{})
	for sleep(ctx, auditInterval) {
		known := logged
		logged = make(map[*cache.View]map[cache.Fault]struct{})
		for _, v := range a.groups.auditedViews() {
			if faults := a.audit(v, known[v.View], pacer(ctx)); len(faults) > 0 {
				logged[v.View] = faults
			}
		}
		if ctx.Err() == nil {
			a.passes.Add(1)
		}
	}
}

// audit checks one view and returns its faults. Each pass counts all of them, so that the metric grows until the relay
// is restarted; the log has only those that are not known.
func (a *auditor) audit(v auditedView, known map[cache.Fault]struct{}, pace func() bool) map[cache.Fault]struct{} {
	found, lines := make(map[cache.Fault]struct{}), 0
	for f := range v.Audit(pace) {
		found[f] = struct{}{}
		a.count(v.label, f)
		if _, is := known[f]; is {
			continue
		}
		if lines++; lines <= maxAuditLines {
			a.log.Error("cached state is inconsistent; restart the relay and report this",
				slog.String("group", v.group), slog.String("type_url", f.Key), slog.String("part", f.Part),
				slog.String("name", f.Name), slog.String("fault", f.Problem))
		}
	}
	if more := lines - maxAuditLines; more > 0 {
		a.log.Error("cached state is inconsistent in more places than are logged",
			slog.String("group", v.group), slog.Int("more", more))
	}
	return found
}

// auditedViews returns the views of all groups, and those of the names that groups share.
func (g *groups) auditedViews() (views []auditedView) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, gr := range g.byKey {
		views = append(views, auditedView{gr.view, gr.key, gr.label})
	}
	for _, s := range g.shared {
		views = append(views, auditedView{s.view, sharedGroup, sharedGroup})
	}
	return views
}

// sleep waits, and reports whether ctx still lives then.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// pacer returns what an audit has to call after each piece of work: it waits once the share
// of a tick has been worked.
func pacer(ctx context.Context) func() bool {
	began := time.Now()
	return func() bool {
		if time.Since(began) < auditWork {
			return true
		}
		defer func() { began = time.Now() }()
		return sleep(ctx, auditTick)
	}
}
