package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/generations"
	"github.com/xdstender/tender/relay/logqueue"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/operator"
	"github.com/xdstender/tender/relay/page"
	"github.com/xdstender/tender/relay/peers"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// newAdmin returns the server of the admin API and of probes.
func (r *Relay) newAdmin() *admin.Server {
	all := r.fleet()
	cfg := admin.Config{
		Ready:    r.notReady,
		Status:   r.status,
		Pending:  r.operations.listPending,
		Rollouts: r.operations.rolloutStatus,
		Fleet:    all,
		GRPC:     operator.NewServer(all),
		Pages:    r.pages,
		Settings: r.settingsText,
		Commands: r.operations.commands(),
		Tier:     r.tier(),
		Summary:  r.summary,
		Metrics:  r.exporters.metrics.Handler(),
		Debug:    r.settings.debug,
		Logger:   r.log,
		Action:   r.exporters.emitAction,

		RolloutDiff: r.operations.rolloutDiff,
		PendingDiff: r.operations.pendingDiff,
		ThawDiff:    r.operations.thawDiff,

		Generations:  r.operations.listGenerations,
		RollbackDiff: r.operations.rollbackDiff,
	}
	if cfg.Tier != nil {
		cfg.Snapshot = r.groups.giveState
	}
	if r.decisions != nil {
		cfg.Decided = r.decisions.decided
	}
	if clients := r.credentials.Clients; clients != nil {
		cfg.TLS = &admin.TLS{
			Config:   clients.Config("h2", "http/1.1"),
			Operator: r.credentials.Authorizer.Operator,
			IsNamed:  clients.IsNamed,

			HandshakeFailed: r.server.Guard().HandshakeFailed,
		}
	}
	return admin.New(cfg)
}

// commands returns the operator commands. All but those on rollouts can be forwarded to peers (--tier).
func (op *operations) commands() []admin.Command {
	audit := admin.NewCommand("audit", func(ctx context.Context, of admin.AuditScope) (admin.Audits, error) {
		if err := of.Check(); err != nil {
			return admin.Audits{}, err
		}
		return op.auditOrigins(ctx, of.Scope)
	})
	audit.Timeout = admin.AuditTime
	pending := admin.NewCommand("pending", op.listPending)
	pending.Reads = true
	commands := []admin.Command{
		admin.NewCommand("freeze", op.freeze),
		admin.NewCommand("thaw", op.thaw),
		admin.NewCommand("rollback", op.rollback),
		pending,
		admin.NewCommand("pass", op.pass),
		admin.NewCommand("drop", op.drop),
		audit,
	}
	if op.level != nil {
		commands = append(commands, admin.NewCommand("loglevel", op.level.set))
	}
	for i := range commands {
		commands[i].Forwarded = true
	}
	return append(commands, op.rolloutCommands()...)
}

// settingsText returns the configuration without secrets, one variable per line.
func (r *Relay) settingsText() string {
	var lines strings.Builder
	for _, s := range r.table {
		fmt.Fprintf(&lines, "%s=%s (%s)\n", s.Variable, s.Value, s.Source)
	}
	return lines.String()
}

// AdminAddrs returns the addresses of the admin listeners: first the plaintext listeners on loopback, then those with
// TLS.
func (r *Relay) AdminAddrs() []net.Addr {
	return addrs(slices.Concat(r.listeners.admin, r.listeners.adminTLS))
}

// ProbeAddrs returns the addresses of TENDER_PROBE_LISTEN, which serve /livez, /readyz and /metrics.
func (r *Relay) ProbeAddrs() []net.Addr { return addrs(r.listeners.probes) }

// endAdmin stops the admin server. Until then, probes report a draining relay.
func (r *Relay) endAdmin() {
	r.pages.Close()
	ctx, cancel := context.WithTimeout(context.Background(), otherCallsTimeout)
	defer cancel()
	if r.admin.Shutdown(ctx) != nil {
		_ = r.admin.Close() // its listeners are closed, and nothing else can fail
	}
}

// Ready returns nil if the relay is ready to serve clients, as /readyz does. Otherwise it returns an error with the
// reason: the relay has no configuration to serve yet, or it is draining. Losing the connection to a control plane does
// not make a ready relay unready (B.8).
func (r *Relay) Ready() error {
	if reasons := r.notReady(); len(reasons) > 0 {
		return errors.New(strings.Join(reasons, "; "))
	}
	return nil
}

// status returns the state of the relay, its origins and its views.
func (r *Relay) status() admin.Status {
	now := time.Now()
	notReady := r.notReady()
	s := admin.Status{
		Relay: admin.Relay{
			Version:       r.version,
			GoVersion:     runtime.Version(),
			NodeID:        r.settings.nodeID,
			Identifier:    r.identifier,
			StartedAt:     r.started,
			UptimeSeconds: now.Sub(r.started).Seconds(),
			Ready:         len(notReady) == 0,
			NotReady:      append([]string{}, notReady...),
			Streams:       r.Streams(),
			NodeGroupBy:   append([]string{}, r.settings.groupBy...),
			SnapshotFault: r.SnapshotStats().Fault,
			Taken:         r.groups.shownState(now),
		},
		Views: r.groups.viewStatuses(now),
		Files: r.credentialStatus(),
		Log:   logStatus(r.logQueue),

		Refusals:   r.refusals(),
		Validation: r.validation(),
	}
	equal := r.groups.equalGroups()
	for i, o := range r.origins {
		status := o.status()
		status.Name = r.settings.origins[i].Name
		status.Freeze = r.groups.decisions.shownFreeze(i)
		status.Frozen = status.Freeze != nil
		status.Rollout = r.groups.rollouts.status(i)
		status.HaltedAbove = r.groups.halts.shown(i)
		status.Pending = r.operations.pendingNumbers(i, o.Stats().Pending, s.Views)
		if status.Directory == nil {
			status.EqualGroups = equal[status.Name]
		}
		s.Origins = append(s.Origins, status)
	}
	return s
}

// logStatus returns the state of the output of the log, or nil without a queue.
func logStatus(q *logqueue.Queue) *admin.Log {
	if q == nil {
		return nil
	}
	stats := q.Stats()
	log := &admin.Log{Dropped: make(map[string]int64), StalledSeconds: stats.Stalled.Seconds()}
	stats.Dropped.Each(func(c logqueue.Class, n int64) { log.Dropped[c.String()] = n })
	return log
}

// refusals returns why clients were refused.
func (r *Relay) refusals() []admin.Refusal {
	all := []admin.Refusal{}
	for _, c := range r.server.Guard().Counters.Refusals() {
		all = append(all, admin.Refusal{
			Kind: c.Cause.Kind(), Reason: c.Cause.String(), Count: c.Count, At: c.At, Peer: c.Peer, Error: c.Err,
		})
	}
	return all
}

// status returns the state of the origin without its name.
func (o sessionOrigin) status() admin.Origin {
	s := o.Status()
	out := admin.Origin{
		Connected: s.Connected, Since: s.Since, StreamsWaiting: s.Waiting, LastErrorAt: s.Failure.At,
	}
	if s.Failure.Err != nil {
		out.LastError = s.Failure.Err.Error()
	}
	for _, t := range s.Targets {
		out.Targets = append(out.Targets, admin.Target{Target: t.Target, Active: t.Active, State: stateName(t.State)})
	}
	for _, f := range s.Failed {
		out.FailedAddresses = append(out.FailedAddresses, admin.FailedAddress{
			Target: f.Target, Address: f.Address, Since: f.At, Error: f.Err.Error(),
		})
	}
	return out
}

// stateName returns the gRPC connectivity state in lower case, for JSON.
func stateName(s connectivity.State) string {
	return map[connectivity.State]string{
		connectivity.Idle:             "idle",
		connectivity.Connecting:       "connecting",
		connectivity.Ready:            "ready",
		connectivity.TransientFailure: "transient_failure",
		connectivity.Shutdown:         "shutdown",
	}[s]
}

// status returns the state of the directory without its name.
func (o filesOrigin) status() admin.Origin {
	s := o.Status()
	dir := &admin.Directory{FileCount: s.Files, BadCount: len(s.Bad), Bad: []admin.BadFile{}}
	for _, f := range s.Bad[:min(len(s.Bad), admin.MaxBadFiles)] {
		dir.Bad = append(dir.Bad, admin.BadFile{File: f.File, Error: f.Err.Error(), LastGood: f.LastGood})
	}
	out := admin.Origin{
		Connected: true,
		Targets:   []admin.Target{{Target: "file://" + o.Dir(), Active: true, State: "directory"}},
		Directory: dir,
	}
	if s.Err != nil {
		out.LastError, out.LastErrorAt = s.Err.Error(), s.At
	}
	return out
}

// viewStatuses returns the state of the views, by group and origin.
func (g *groups) viewStatuses(now time.Time) []admin.View {
	views, controls := []admin.View{}, g.controls()
	for _, s := range g.allViews() {
		generation := s.View.Generation()
		types := typesOf(generation)
		for i := range g.origins {
			if s.Shared && i != s.Origin {
				continue
			}
			source := i
			if s.Shared {
				source = 0
			}
			v := admin.View{
				Group: s.Key, GroupName: nodegroup.Name(s.Key), Origin: g.settings.origins[i].Name, Shared: s.Shared, Streams: s.Streams, Types: types[source],
			}
			addSourceStatus(&v, generation.Source(source), now)
			v.Isolated = isolatedStatus(controls[viewKey{s.Key, s.Shared, i}])
			if f, frozen := g.decisions.freezeOf(i); frozen && f.Since.Before(v.FrozenAt) {
				v.FrozenAt = f.Since // the view was created, or the relay restarted, during the freeze
			}
			if v.Pending = s.View.Withheld(source); !s.Shared {
				// Not zero only with rollouts: a freeze withholds shared names in the shared view.
				v.Pending += s.View.Withheld(g.router.sharedSource(i))
			}
			if v.Types == nil {
				v.Types = []admin.Type{}
			}
			views = append(views, v)
		}
	}
	return views
}

// A viewKey identifies the view of one origin for a node group, or a shared view.
type viewKey struct {
	group  string
	shared bool
	origin int
}

// controls returns the controls of all views.
func (g *groups) controls() map[viewKey]*upstream.Control {
	all := make(map[viewKey]*upstream.Control)
	for _, t := range g.commandTargets() {
		if t.control != nil {
			all[viewKey{t.group, t.shared, t.origin}] = t.control
		}
	}
	return all
}

// isolatedStatus returns the isolated subscriptions of a view. The control may be nil.
func isolatedStatus(c *upstream.Control) (out []admin.Isolation) {
	if c == nil {
		return nil
	}
	for _, i := range c.Isolated() {
		out = append(out, admin.Isolation{
			TypeURL: i.TypeURL, Names: i.Names, Count: i.Count, Since: i.Since, Error: i.Err.Error(),
		})
	}
	return out
}

// addSourceStatus sets the fields of v that describe the connection to the origin.
func addSourceStatus(v *admin.View, from *cache.Source, now time.Time) {
	v.Connected, v.Since, v.ControlPlane = from.Connected, from.Since, from.Identifier
	v.FrozenAt = from.Frozen
	if stale := from.Stale(now); stale > 0 {
		v.Stale, v.StaleSeconds = true, stale.Seconds()
	}
}

// typesOf returns the state of the types in a generation, by the source of their wildcard set. The resources of
// collections count for their type.
func typesOf(g *cache.Generation) map[int][]admin.Type {
	byURL := make(map[string]*admin.Type)
	sources := make(map[string]int)
	for t := range g.ChangedSince(0) {
		typeURL, _, collection := cache.SplitCollection(t.URL)
		out := byURL[typeURL]
		if out == nil {
			short, _ := schema.ShortName(typeURL)
			out = &admin.Type{TypeURL: typeURL, Name: short, Phase: cache.Unknown.String()}
			byURL[typeURL] = out
		}
		out.Entries += t.Wildcard.Count() + t.ByName.Count()
		out.Bytes += t.Wildcard.Bytes() + t.ByName.Bytes()
		if t.Changed().After(out.ChangedAt) {
			out.ChangedAt = t.Changed()
		}
		if collection {
			continue
		}
		sources[typeURL] = t.Source()
		out.Phase = t.Phase.String()
		if t.Phase == cache.Unknown && t.Wildcard.Count() == 0 && t.ByName.Count() > 0 {
			out.Phase = admin.PhaseByName
		}
		if t.Phase > cache.Unknown {
			out.Version = t.Wildcard.Sum().Version(t.Wildcard.System())
		}
	}
	types := make(map[int][]admin.Type)
	for typeURL, t := range byURL {
		types[sources[typeURL]] = append(types[sources[typeURL]], *t)
	}
	for _, of := range types {
		slices.SortFunc(of, func(a, b admin.Type) int { return cmp.Compare(a.TypeURL, b.TypeURL) })
	}
	return types
}

// fleet returns the queries about clients and resources for operators.
func (r *Relay) fleet() *operator.Fleet {
	return &operator.Fleet{
		NodeID: r.settings.nodeID, Server: r.server, Views: r.groups.allViews, Origins: r.settings.originNames(), Route: r.groups.router.origin,
		Journal: r.groups.journal,
	}
}

// sample returns a sample for the history of the status page.
func (r *Relay) sample() page.Sample {
	s := page.Sample{At: time.Now(), Streams: r.Streams(), Counts: make(map[page.GroupType]page.Counts)}
	for _, g := range r.groups.allViews() {
		if g.Shared {
			continue // its clients are counted in their own groups
		}
		for typeURL, stats := range g.Counts.Types() {
			s.Counts[page.GroupType{Group: g.Key, TypeURL: typeURL}] = page.Counts{
				Deliveries: stats.Responses, Rejections: stats.Nacks,
			}
			s.Latency = s.Latency.Plus(stats.Propagation)
		}
	}
	return s
}

// A logLevel is the log level of the relay, which operators can change.
type logLevel struct {
	log   *slog.Logger
	level *slog.LevelVar
	mu    sync.Mutex // serializes changes
}

// set changes the log level. It logs the change at the more verbose of both levels, so that the message is not
// filtered.
func (l *logLevel) set(ctx context.Context, to admin.LogLevel) (admin.LogLevelChange, error) {
	var level slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, to.Level) ||
		level.UnmarshalText([]byte(to.Level)) != nil {
		return admin.LogLevelChange{}, admin.Refuse(http.StatusBadRequest,
			fmt.Errorf("level=%.32q: want debug, info, warn or error", to.Level))
	}
	if err := to.Check(); err != nil {
		return admin.LogLevelChange{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.level.Level()
	logChange := func() {
		l.log.LogAttrs(ctx, max(slog.LevelInfo, min(before, level)), "log level changed",
			slog.String("before", strings.ToLower(before.String())), slog.String("now", to.Level))
	}
	if level > before {
		logChange()
	}
	if l.level.Set(level); level <= before {
		logChange()
	}
	return admin.LogLevelChange{Level: to.Level, Before: strings.ToLower(before.String())}, nil
}

// tier returns the client for the peers of the relay, or nil if TENDER_PEERS is off.
func (r *Relay) tier() admin.Tier {
	if tier := r.peers(); tier != nil {
		return tier
	}
	return nil
}

// peers returns the other relays of the tier, or nil without peers.
func (r *Relay) peers() *peers.Tier {
	if len(r.settings.peers.Targets) == 0 {
		return nil
	}
	cfg := r.settings.peers
	cfg.TLS = r.credentials.Peers
	return peers.New(cfg)
}

// pageConfig returns the data sources of the status page.
func (r *Relay) pageConfig() page.Config {
	cfg := page.Config{
		Status: r.status, Fleet: r.fleet(), History: &r.history, Pending: r.operations.allPending,
		Rollouts: r.groups.rollouts.statuses, Logger: r.log,
	}
	if tier := r.tier(); tier != nil {
		cfg.Tier = func(ctx context.Context) admin.TierStatus { return tier.Status(ctx, r.summary()) }
	}
	return cfg
}

// summary returns the state of the relay that its peers show (--tier).
func (r *Relay) summary() *admin.TierSummary {
	status := r.status()
	s := &admin.TierSummary{
		Instance: r.instance, NodeID: r.settings.nodeID, Version: r.version, Ready: status.Relay.Ready,
		Streams: status.Relay.Streams,
		Frozen:  []string{}, Views: []admin.TierView{}, Origins: status.TierOrigins(),
	}
	if clients, err := r.fleet().Clients(admin.ClientQuery{Sort: admin.ByLag}); err == nil {
		s.Rejecting, s.Lagging, s.Below = clients.Totals.Rejecting, clients.Totals.Lagging, clients.Totals.Below
	}
	for _, o := range status.Origins {
		for reason, n := range o.Pending {
			if reason != string(reconcile.Dropped) {
				s.Pending += n
			}
		}
		if o.Frozen {
			s.Frozen = append(s.Frozen, o.Name)
		}
	}
	digests := r.groups.generationDigests()
	s.Omitted = max(len(status.Views)-admin.MaxTierViews, 0)
	for _, v := range status.Views[:len(status.Views)-s.Omitted] {
		shown := admin.TierView{Group: v.Group, Origin: v.Origin, Shared: v.Shared, Versions: map[string]string{}}
		for _, t := range v.Types {
			if t.Version != "" {
				shown.Versions[t.TypeURL] = contentVersion(t.Version)
			}
		}
		shown.Generation = digests[generations.Key{Origin: v.Origin, Group: v.Group, Shared: v.Shared}]
		s.Views = append(s.Views, shown)
	}
	return s
}

// contentVersion returns the part of a version that identifies the content: the text after the last "~" (B.2). The text
// before may differ between replicas.
func contentVersion(version string) string { return version[strings.LastIndexByte(version, '~')+1:] }
