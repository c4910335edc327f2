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
	// auditInterval is the time between two audits of all views.
	auditInterval = time.Minute

	// An audit works for auditWork in each auditTick, so that it uses at most 0.5% of one core for any number and size of
	// views.
	auditTick = time.Second
	auditWork = 5 * time.Millisecond

	// maxAuditLines is the maximum number of faults of a view that a pass logs.
	maxAuditLines = 10
)

// AuditStats has the counters of the drift audit since the start of the relay (B.43). The type is not stable.
type AuditStats struct {
	Passes int64 // completed passes over all views
	Faults int64 // faults, summed over passes; any fault is a defect of the relay or of the machine

	// Where has the number of faults by the node group and the part of its view.
	Where map[telemetry.AuditFault]int64
}

// An auditor checks all views for inconsistent state, one view after the other, at intervals.
type auditor struct {
	groups *groups
	log    *slog.Logger

	passes atomic.Int64

	mu     sync.Mutex
	faults map[telemetry.AuditFault]int64 // guarded by mu
}

// An auditedView is a view with the key of its node group and the label of that group in metrics.
type auditedView struct {
	*cache.View
	group, label string
}

// stats returns the counters. It may be called from any goroutine.
func (a *auditor) stats() AuditStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := AuditStats{Passes: a.passes.Load(), Where: maps.Clone(a.faults)}
	for _, n := range a.faults {
		s.Faults += n
	}
	return s
}

// count counts a fault in a view of the node group with this label in metrics.
func (a *auditor) count(label string, f cache.Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.faults == nil {
		a.faults = make(map[telemetry.AuditFault]int64)
	}
	a.faults[telemetry.AuditFault{Group: label, Part: f.Part}]++
}

// run audits all views at intervals until ctx ends.
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

// audit checks one view and returns its faults. Each pass counts all faults, so the metric grows until the relay is
// restarted. It logs only faults that are not in known.
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

// auditedViews returns the views of all groups, and all shared views.
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

// sleep waits for d. It returns false if ctx ends first.
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

// pacer returns a function that an audit must call after each piece of work. It waits for the next auditTick after
// auditWork has passed, and returns false once ctx has ended.
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
