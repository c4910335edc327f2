package telemetry

import (
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream"
)

// A kind is a kind of instrument.
type kind string

const (
	counter kind = "counter" // only grows
	sum     kind = "sum"     // of what there is now; sums over labels make sense
	gauge   kind = "gauge"   // a state; sums make none

	histogram kind = "histogram" // how many durations were how long
)

// A row is one instrument: the one place where its name, its labels and what it means are
// written.
type row struct {
	name string // as OpenTelemetry has it
	kind kind
	// unit is s, By, or what is counted, in braces, which is no part of the name.
	unit   string
	labels string // names, separated by spaces
	help   string

	// read puts a value for each set of labels, in their order.
	read func(r *Reading, put put)
}

// A put takes a value and the values of the row's labels.
type put func(value float64, labels ...string)

// table has all instruments, in the order of metrics.md.
var table = []row{
	{"tender.build.info", gauge, "", "version", "Always 1; the label says which version runs.", func(r *Reading, put put) {
		put(1, r.Status.Relay.Version)
	}},
	{"tender.ready", gauge, "", "", "1 if the relay is ready, as /readyz says, else 0.",
		one(func(r *Reading) float64 { return number(r.Status.Relay.Ready) })},
	{"tender.memory.utilization", gauge, "", "", "How much of GOMEMLIMIT the process uses: 1 is all of it; 0 if there is no limit. The log warns from 0.8 on.",
		one(func(r *Reading) float64 { return r.Memory })},

	{"tender.origin.connected", gauge, "", "origin", "1 if there is a connection to the target in use, else 0.",
		origins(func(o *Origin) float64 { return number(o.Status.Connected) })},
	{"tender.origin.connections", counter, "{connection}", "origin", "Connections to the origin that came to be.",
		origins(func(o *Origin) float64 { return float64(o.Connected) })},
	{"tender.origin.connections.lost", counter, "{connection}", "origin", "Of these, those that ended.",
		origins(func(o *Origin) float64 { return float64(o.Lost) })},
	{"tender.origin.failovers", counter, "{failover}", "origin", "Changes from one target of the origin to another.",
		origins(func(o *Origin) float64 { return float64(o.Failovers) })},
	{"tender.origin.names", sum, "{name}", "origin", "Names that clients want of the origin now: what TENDER_MAX_ORIGIN_NAMES bounds.",
		origins(func(o *Origin) float64 { return float64(o.Names) })},
	{"tender.origin.streams", counter, "{stream}", "origin", "ADS streams to the origin that were opened.",
		origins(func(o *Origin) float64 { return float64(o.Streams) })},
	{"tender.origin.streams.ended", counter, "{stream}", "origin reason",
		"ADS streams to the origin, and attempts to open one, that ended. The reason is closed, resync, not_reading, open_timeout or a gRPC status code.", func(r *Reading, put put) {
			for _, o := range r.Origins {
				for reason, n := range o.Ended {
					put(float64(n), o.Status.Name, reason)
				}
			}
		}},
	{"tender.origin.responses", counter, "{response}", "origin type", "Responses of the origin that were taken.",
		originTypes(func(s upstream.TypeStats) int64 { return s.Responses })},
	{"tender.origin.nacks", counter, "{response}", "origin type", "Responses of the origin that were refused; the log has the reasons.",
		originTypes(func(s upstream.TypeStats) int64 { return s.Refused })},
	{"tender.origin.deletions.holding", sum, "{resource}", "origin", "Removals that are held back now, since they are many and may not be meant. Any is worth an alarm.",
		origins(func(o *Origin) float64 { return float64(o.Holding) })},
	{"tender.origin.deletions.held", counter, "{resource}", "origin", "Removals that were held back.",
		origins(func(o *Origin) float64 { return float64(o.Held) })},
	{"tender.origin.deletions.applied", counter, "{resource}", "origin", "Removals that were inferred, or said in the first answers of a connection, and were carried out, at once or after the hold.",
		origins(func(o *Origin) float64 { return float64(o.Applied) })},
	{"tender.origin.deletions.discarded", counter, "{resource}", "origin", "Removals that an operator discarded: the resources are kept.",
		origins(func(o *Origin) float64 { return float64(o.Discarded) })},
	{"tender.origin.audits", counter, "{view}", "origin", "Views that were compared with what the origin says on another stream (tender audit).",
		origins(func(o *Origin) float64 { return float64(o.Audits) })},
	{"tender.origin.drifted", counter, "{resource}", "origin", "Resources that such a comparison found to be another, or on one side only.",
		origins(func(o *Origin) float64 { return float64(o.Drifted) })},
	{"tender.origin.frozen", gauge, "", "origin", "1 if an operator has stopped the distribution of the origin's changes (tender freeze, tender rollback), else 0.",
		origins(func(o *Origin) float64 { return number(o.Status.Frozen) })},

	{"tender.origin.files", sum, "{file}", "origin state", "Files of a directory. The state is good, or bad: the file cannot be read, or has names that another file has; the log and the status have the reasons.", func(r *Reading, put put) {
		for _, o := range r.Origins {
			if d := o.Status.Directory; d != nil {
				put(float64(d.FileCount-d.BadCount), o.Status.Name, "good")
				put(float64(d.BadCount), o.Status.Name, "bad")
			}
		}
	}},

	{"tender.rollout.state", gauge, "", "origin state", "1 for the state of the origin's rollout, else 0: current (all clients are served what the origin has), gathering (changes), held (before the first stage), rolling or halted. Of rollouts there are metrics only if TENDER_ROLLOUT is on.", rolloutStates},
	{"tender.rollout.stage", gauge, "", "origin", "How many stages are served the edition.",
		rollouts(func(_ *Reading, s *rollout.Status) float64 { return float64(s.Stage) })},
	{"tender.rollout.clients", sum, "{client}", "origin cohort", "Clients that are connected. The cohort is the number of a stage of TENDER_ROLLOUT from 1 on, or rest.", cohortClients},
	{"tender.rollout.answers", sum, "{client}", "origin cohort outcome", "Clients that are served the edition and want something that it changes. The outcome is accepted, refused or unanswered.", cohortAnswers},
	{"tender.rollout.age", gauge, "s", "origin", "For how long the oldest change has waited to be served to all clients; 0 if none waits.",
		rollouts(func(r *Reading, s *rollout.Status) float64 { return since(r, s.Oldest) })},
	{"tender.rollout.waiting", gauge, "", "origin reason", "1 for what the rollout waits for besides time, else 0. The reason is origin (to be connected, and to confirm what it has), hold (TENDER_MASS_DELETE_HOLD), approval, answers (of clients) or check.", rolloutAwaits},
	{"tender.rollout.check.failing", gauge, "s", "origin", "For how long TENDER_ROLLOUT_CHECK has given no answer about editions on their way; 0 if it does, or if there is no edition to ask it about.",
		rollouts(checkFailing)},
	{"tender.rollout.halted.time", gauge, "s", "origin", "When the rollout halted, in seconds since 1970; 0 if it is not halted.",
		rollouts(haltedTime)},
	{"tender.rollout.unobserved", gauge, "", "origin", "1 if a stage of the edition ended without a client that accepted it, else 0.",
		rollouts(func(_ *Reading, s *rollout.Status) float64 { return number(s.Unobserved) })},
	{"tender.rollout.cold", gauge, "", "origin", "1 if the relay began without a snapshot and has promoted no edition since, else 0: what the origin had then went to all clients at once.",
		rollouts(func(_ *Reading, s *rollout.Status) float64 { return number(s.Cold) })},
	{"tender.rollouts", counter, "{edition}", "origin outcome", "Editions, by what became of them: promoted, halted, reverted (by the origin), superseded (by newer changes) or undone (which are halted, too).", rolloutOutcomes},

	{"tender.view.connected", gauge, "", "group origin", "1 if the view's stream to the origin is open, else 0. For several groups with the label other, 1 if all are.",
		views(func(v *admin.View) float64 { return number(v.Connected) }, smaller)},
	{"tender.view.stale", gauge, "s", "group origin", "Seconds since the view lost its origin; 0 if the origin is connected. For several groups with the label other, the maximum.",
		views(func(v *admin.View) float64 { return v.StaleSeconds }, larger)},
	{"tender.view.withheld", sum, "{name}", "group origin reason", "Names of which clients are shown something else than the origin says. The reason is frozen, also after tender rollback; with TENDER_ROLLOUT also rollout (they wait for it) or halted (the rollout is), and then it counts what clients of no stage are shown.", withheld},
	{"tender.view.resources", sum, "{resource}", "group origin type", "Resources held, by wildcard and by name.",
		viewTypes(func(t *admin.Type) float64 { return float64(t.Entries) })},
	{"tender.view.size", sum, "By", "group origin type", "Their size as they are sent. Groups share the memory of equal ones.",
		viewTypes(func(t *admin.Type) float64 { return float64(t.Bytes) })},
	{"tender.tls.expiry", gauge, "s", "file", "When the certificate in force expires, in seconds since 1970; of several CAs, the last of them. The label is the variable that names the file.", func(r *Reading, put put) {
		for _, f := range r.Status.Files {
			if !f.NotAfter.IsZero() {
				put(float64(f.NotAfter.Unix()), f.Files[0].Variable)
			}
		}
	}},
	{"tender.tls.refusals", counter, "{change}", "file", "Changes of files of credentials that could not be used: what was read before stays in force; the log has the reasons.", func(r *Reading, put put) {
		for _, f := range r.Status.Files {
			put(float64(f.Refused), f.Files[0].Variable)
		}
	}},
	{"tender.generations", sum, "{generation}", "", "Earlier configurations that tender rollback can return to, over all views. None are kept if TENDER_MAX_GENERATION_BYTES is 0.",
		one(func(r *Reading) float64 { return float64(r.Generations) })},
	{"tender.generations.size", sum, "By", "", "Memory that only they hold, of at most TENDER_MAX_GENERATION_BYTES.",
		one(func(r *Reading) float64 { return float64(r.GenerationBytes) })},
	{"tender.snapshots", counter, "{snapshot}", "", "Snapshots of views that were written to disk.",
		one(func(r *Reading) float64 { return float64(r.Snapshots.Written) })},
	{"tender.snapshots.failed", counter, "{snapshot}", "", "Snapshots that could not be written; the log has the reasons.",
		one(func(r *Reading) float64 { return float64(r.Snapshots.Failures) })},
	{"tender.snapshots.restored", counter, "{view}", "", "Views that began with a snapshot.",
		one(func(r *Reading) float64 { return float64(r.Snapshots.Restored) })},
	{"tender.snapshots.rejected", counter, "{snapshot}", "reason", "Snapshots that were there and were not used.", func(r *Reading, put put) {
		for reason, n := range r.Snapshots.Rejected {
			put(float64(n), string(reason))
		}
	}},
	{"tender.audit.passes", counter, "{pass}", "", "Passes of the drift audit over all views.",
		one(func(r *Reading) float64 { return float64(r.AuditPasses) })},
	{"tender.audit.faults", counter, "{fault}", "group part", "Contradictions that the drift audit found, in the members of a view, its named resources, the errors of either, or its interest. Any is a defect of the relay or of the machine.", func(r *Reading, put put) {
		sums := make(map[AuditFault]int64)
		for of, n := range r.AuditFaults {
			sums[AuditFault{groupLabel(of.Group), of.Part}] += n
		}
		for of, n := range sums {
			put(float64(n), of.Group, of.Part)
		}
	}},
	{"tender.validation.checked", counter, "{resource}", "", "Different resources that TENDER_VALIDATE decoded and checked.", func(r *Reading, put put) {
		if v := r.Status.Validation; v != nil {
			put(float64(v.Checked))
		}
	}},
	{"tender.validation.findings", sum, "{finding}", "type kind", "Findings of validation now. The kind is undecodable, missing_reference, removed_reference (these three break a resource that is served), held_change (a change is held, since clients could not use the result), invalid (a generated validator refuses a value), unknown (a field or an enum value) or unchecked (too large, or nested too deeply).", validationFindings},

	{"tender.client.connections", sum, "{connection}", "", "Connections of clients that are open.",
		one(func(r *Reading) float64 { return float64(r.Server.Connections) })},
	{"tender.client.unread", sum, "By", "", "Bytes of memory that requests of clients take until they are handled, as far as they count for TENDER_MAX_BUFFERED_REQUEST_BYTES.",
		one(func(r *Reading) float64 { return float64(r.Server.Unread) })},
	{"tender.client.streams", sum, "{stream}", "", "Streams of clients that are open, and polls that are held.",
		one(func(r *Reading) float64 { return float64(r.Server.Streams) })},
	{"tender.client.streams.waiting", sum, "{stream}", "", "First responses that wait for their turn, since many clients came at once.",
		one(func(r *Reading) float64 { return float64(r.Server.Waiting) })},
	{"tender.client.streams.accepted", counter, "{stream}", "", "Streams of clients that were accepted, and polls.",
		one(func(r *Reading) float64 { return float64(r.Server.Accepted) })},
	{"tender.client.streams.ended", counter, "{stream}", "reason",
		"Streams of clients that ended: the reason is client, drained, aged, stalled (it did not read), silent (it sent no request), cold (nothing was known), refused (a limit), invalid, return (it was told to connect again), denied (it may not do what it did), chain (relays in a circle, or too many in a row) or other.", func(r *Reading, put put) {
			for why, n := range r.Server.Ended {
				put(float64(n), why.String())
			}
		}},
	{"tender.client.refusals", counter, "{refusal}", "limit", "Connections, requests of streams and polls that ran into a limit, by the variable that sets it.", func(r *Reading, put put) {
		for limit, n := range r.Server.Refused {
			put(float64(n), limit.String())
		}
	}},
	{"tender.client.denials", counter, "{request}", "reason",
		"What clients tried that TENDER_AUTHZ, TENDER_SECRETS or TENDER_TLS_TRUST_DOMAINS does not allow: the reason is identity (no rule is about it), node (to be that node), type, name (an xdstp name), secret, or trust_domain (a CA may not vouch for the certificate: the handshake fails, also of operators). For name and secret an aggregated stream goes on.", func(r *Reading, put put) {
			for what, n := range r.Server.Denied {
				put(float64(n), what.String())
			}
		}},
	{"tender.client.requests.throttled", counter, "{request}", "", "Requests that were read late, since their stream sent more than allowed.",
		one(func(r *Reading) float64 { return float64(r.Server.Throttled) })},
	{"tender.client.changes.coalesced", counter, "{change}", "", "Changes that were not sent by themselves, since the stream was still to be told of an earlier one.",
		one(func(r *Reading) float64 { return float64(r.Server.Coalesced) })},
	{"tender.client.turns", counter, "{turn}", "outcome", "Looks at a stream because something that it may want has changed, or was asked for. The outcome is sent, or idle where nothing had to be sent.", func(r *Reading, put put) {
		put(float64(r.Server.Turns-r.Server.IdleTurns), "sent")
		put(float64(r.Server.IdleTurns), "idle")
	}},
	{"tender.client.group.streams", sum, "{stream}", "group", "Streams of clients that have said who they are, and polls that are held.", func(r *Reading, put put) {
		for _, g := range r.Groups {
			put(float64(g.Streams), groupLabel(g.Key))
		}
	}},
	{"tender.client.subscriptions", sum, "{subscription}", "group type kind", "Subscriptions of clients. The kind is wildcard or name; a name that two streams want counts twice.", func(r *Reading, put put) {
		for _, g := range r.Groups {
			for label, of := range byLabel(g.Interest, cache.InterestStats.Plus) {
				put(float64(of.Wildcards), groupLabel(g.Key), label, "wildcard")
				put(float64(of.Names), groupLabel(g.Key), label, "name")
			}
		}
	}},
	{"tender.client.responses", counter, "{response}", "group type", "Responses sent to clients, on streams and to polls: deliveries.",
		groupTypes(func(s downstream.TypeStats) int64 { return s.Responses })},
	{"tender.client.sent", counter, "By", "group type", "Their size, without what gRPC adds or takes away.",
		groupTypes(func(s downstream.TypeStats) int64 { return s.Bytes })},
	{"tender.client.acks", counter, "{response}", "group type", "Responses that clients accepted.",
		groupTypes(func(s downstream.TypeStats) int64 { return s.Acks })},
	{"tender.client.nacks", counter, "{response}", "group type", "Responses that clients refused; the log has the reasons.",
		groupTypes(func(s downstream.TypeStats) int64 { return s.Nacks })},
	{"tender.client.lag", gauge, "s", "group type", "For how long the client of the group that is furthest behind has lacked a change; 0 if none lacks anything.",
		groupClients(func(t *admin.TypeTotals) float64 { return t.LagSeconds })},
	{"tender.client.lagging", sum, "{stream}", "group type", "Streams of clients that lack a change: it is to be sent to them, or they have not accepted it.",
		groupClients(func(t *admin.TypeTotals) float64 { return float64(t.Lagging) })},
	{"tender.client.refusing", sum, "{stream}", "group type", "Streams of clients that refuse something that is still what there is.",
		groupClients(func(t *admin.TypeTotals) float64 { return float64(t.Refusing) })},
	{"tender.client.fanouts.unmeasured", counter, "{change}", "group type reason", "Changes whose fan-out was not measured: unanswered, since some client did not answer for a minute, or crowded, since 16 of the type were measured already.", func(r *Reading, put put) {
		for _, g := range r.Groups {
			for label, stats := range byLabel(g.Types, downstream.TypeStats.Plus) {
				put(float64(stats.GivenUp), groupLabel(g.Key), label, "unanswered")
				put(float64(stats.Unfollowed), groupLabel(g.Key), label, "crowded")
			}
		}
	}},
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// one reads a value that has no labels.
func one(value func(*Reading) float64) func(*Reading, put) {
	return func(r *Reading, put put) { put(value(r)) }
}

// validationFindings reads how many findings there are.
func validationFindings(r *Reading, put put) {
	if r.Status.Validation == nil {
		return
	}
	type labels struct{ typ, kind string }
	sums := make(map[labels]int)
	for _, c := range r.Status.Validation.Counts {
		sums[labels{typeLabel(c.TypeURL), string(c.Kind)}] += c.Count
	}
	for of, n := range sums {
		put(float64(n), of.typ, of.kind)
	}
}

// origins reads a value of each origin.
func origins(value func(*Origin) float64) func(*Reading, put) {
	return func(r *Reading, put put) {
		for i := range r.Origins {
			put(value(&r.Origins[i]), r.Origins[i].Status.Name)
		}
	}
}

// originTypes reads a value of each type that an origin has sent.
func originTypes(value func(upstream.TypeStats) int64) func(*Reading, put) {
	return func(r *Reading, put put) {
		for _, o := range r.Origins {
			for label, stats := range byLabel(o.Types, upstream.TypeStats.Plus) {
				put(float64(value(stats)), o.Status.Name, label)
			}
		}
	}
}

// larger and smaller merge the values of gauges with the same labels.
func larger(a, b float64) float64  { return max(a, b) }
func smaller(a, b float64) float64 { return min(a, b) }

// views reads a value of each view. Values with the same labels are merged.
func views(value func(*admin.View) float64, merge func(a, b float64) float64) func(*Reading, put) {
	return func(r *Reading, put put) {
		merged := make(map[[2]string]float64)
		for i := range r.Status.Views {
			v := &r.Status.Views[i]
			labels := [2]string{r.viewLabel(v), v.Origin}
			if before, ok := merged[labels]; ok {
				merged[labels] = merge(before, value(v))
			} else {
				merged[labels] = value(v)
			}
		}
		for labels, value := range merged {
			put(value, labels[:]...)
		}
	}
}

// viewTypes reads a value of each type that a view holds. Values with the same labels are added.
func viewTypes(value func(*admin.Type) float64) func(*Reading, put) {
	return func(r *Reading, put put) {
		sums := make(map[[3]string]float64)
		for i := range r.Status.Views {
			v := &r.Status.Views[i]
			for i := range v.Types {
				sums[[3]string{r.viewLabel(v), v.Origin, typeLabel(v.Types[i].TypeURL)}] += value(&v.Types[i])
			}
		}
		for labels, sum := range sums {
			put(sum, labels[:]...)
		}
	}
}

// groupTypes reads a value of each type that clients of a group were sent.
func groupTypes(value func(downstream.TypeStats) int64) func(*Reading, put) {
	return func(r *Reading, put put) {
		for _, g := range r.Groups {
			for label, stats := range byLabel(g.Types, downstream.TypeStats.Plus) {
				put(float64(value(stats)), groupLabel(g.Key), label)
			}
		}
	}
}

// groupClients reads a value of the clients of a group that subscribed to a type.
func groupClients(value func(*admin.TypeTotals) float64) func(*Reading, put) {
	return func(r *Reading, put put) {
		sums := make(map[[2]string]admin.TypeTotals)
		for _, t := range r.Clients {
			labels := [2]string{r.groupLabel(t.Group), typeLabel(t.TypeURL)}
			sum := sums[labels]
			sums[labels] = admin.TypeTotals{
				Lagging: sum.Lagging + t.Lagging, Refusing: sum.Refusing + t.Refusing, LagSeconds: max(sum.LagSeconds, t.LagSeconds),
			}
		}
		for labels, sum := range sums {
			put(value(&sum), labels[:]...)
		}
	}
}

// instrument makes the row's instrument.
func (r *row) instrument(m metric.Meter) (metric.Float64Observable, error) {
	switch r.kind {
	case counter:
		return m.Float64ObservableCounter(r.name, metric.WithUnit(r.unit), metric.WithDescription(r.help))
	case sum:
		return m.Float64ObservableUpDownCounter(r.name, metric.WithUnit(r.unit), metric.WithDescription(r.help))
	case gauge:
		return m.Float64ObservableGauge(r.name, metric.WithUnit(r.unit), metric.WithDescription(r.help))
	}
	return nil, fmt.Errorf("%s: no kind %q", r.name, r.kind)
}

// attributes returns the row's labels with their values, one for each.
func (r *row) attributes(values []string) []attribute.KeyValue {
	names := strings.Fields(r.labels)
	if len(names) != len(values) {
		panic(fmt.Sprintf("telemetry: %s has the labels %q, and was given %q", r.name, r.labels, values))
	}
	attributes := make([]attribute.KeyValue, len(names))
	for i, name := range names {
		attributes[i] = attribute.String(name, values[i])
	}
	return attributes
}

// prometheus returns the name under which Prometheus finds the row.
func (r *row) prometheus() string {
	name := strings.ReplaceAll(r.name, ".", "_")
	switch r.unit {
	case "s":
		name += "_seconds"
	case "By":
		name += "_bytes"
	}
	if r.kind == counter {
		name += "_total"
	}
	return name
}

// Page returns the table of metrics as deploy/docs has it.
func Page() string {
	var b strings.Builder
	b.WriteString("| Prometheus | OpenTelemetry | Kind | Labels | Meaning |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range rows() {
		labels := "none"
		if r.labels != "" {
			labels = "`" + strings.ReplaceAll(r.labels, " ", "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s |\n", r.prometheus(), r.name, r.kind, labels, r.help)
	}
	return b.String()
}
