package telemetry

import (
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream"
)

// A kind is a kind of instrument.
type kind string

const (
	counter kind = "counter" // monotonic
	sum     kind = "sum"     // a current quantity that can be summed over labels
	gauge   kind = "gauge"   // a current state that cannot be summed

	histogram kind = "histogram" // a distribution of durations
)

// A row defines an instrument: its name, labels and meaning.
type row struct {
	name string // in OpenTelemetry
	kind kind
	// unit is s, By, or the counted thing in braces. Prometheus omits units in braces.
	unit   string
	labels string // names, separated by spaces
	help   string

	// read calls put once per combination of label values.
	read func(r *Reading, put put)
}

// A put records a value with the values of the row's labels, in their order.
type put func(value float64, labels ...string)

// table has all instruments, in the order of metrics.md.
var table = []row{
	{"tender.build.info", gauge, "", "version", "Always 1, with the running version as label.", func(r *Reading, put put) {
		put(1, r.Status.Relay.Version)
	}},
	{"tender.ready", gauge, "", "", "1 if the relay is ready, as in /readyz, else 0.",
		scalar(func(r *Reading) float64 { return boolValue(r.Status.Relay.Ready) })},
	{"tender.memory.utilization", gauge, "", "",
		"Share of GOMEMLIMIT that the process uses, from 0 to 1; 0 without a limit. The log warns above 0.8.",
		scalar(func(r *Reading) float64 { return r.Memory })},
	{"tender.log.dropped", counter, "{record}", "level",
		"Log records that were dropped because nobody read the log, or its disk was full. The level is that of the record, " +
			"or audit for actions of operators.", func(r *Reading, put put) {
			if r.Status.Log != nil {
				for level, n := range r.Status.Log.Dropped {
					put(float64(n), level)
				}
			}
		}},
	{"tender.log.stalled", gauge, "s", "",
		"Time since the output of the log last took a part of the waiting records; 0 if none waits.",
		func(r *Reading, put put) {
			if r.Status.Log != nil {
				put(r.Status.Log.StalledSeconds)
			}
		}},

	{"tender.origin.connected", gauge, "", "origin", "1 if the active target is connected, else 0.",
		origins(func(o *Origin) float64 { return boolValue(o.Status.Connected) })},
	{"tender.origin.connections", counter, "{connection}", "origin", "Connections to the origin that were opened.",
		origins(func(o *Origin) float64 { return float64(o.Connected) })},
	{"tender.origin.connections.lost", counter, "{connection}", "origin", "Connections to the origin that were lost.",
		origins(func(o *Origin) float64 { return float64(o.Lost) })},
	{"tender.origin.failovers", counter, "{failover}", "origin", "Changes from one target of the origin to another.",
		origins(func(o *Origin) float64 { return float64(o.Failovers) })},
	{"tender.origin.addresses.failed", sum, "{address}", "origin",
		"Targets, and addresses of their names, that the relay does not use because connections or all streams to them " +
			"failed. The status has the errors.",
		origins(func(o *Origin) float64 { return float64(len(o.Status.FailedAddresses)) })},
	{"tender.origin.names", sum, "{name}", "origin",
		"Names of the origin that clients subscribe to, which TENDER_MAX_ORIGIN_NAMES bounds.",
		origins(func(o *Origin) float64 { return float64(o.Names) })},
	{"tender.origin.streams", counter, "{stream}", "origin", "Upstream ADS streams that were opened.",
		origins(func(o *Origin) float64 { return float64(o.Streams) })},
	{"tender.origin.streams.ended", counter, "{stream}", "origin reason",
		"Upstream ADS streams, and attempts to open one, that ended. The reason is closed, resync, not_reading, " +
			"open_timeout or a gRPC status code.", func(r *Reading, put put) {
			for _, o := range r.Origins {
				for reason, n := range o.Ended {
					put(float64(n), o.Status.Name, reason)
				}
			}
		}},
	{"tender.origin.responses", counter, "{response}", "origin type", "Responses of the origin that the relay accepted.",
		originTypes(func(s upstream.TypeStats) int64 { return s.Responses })},
	{"tender.origin.nacks", counter, "{response}", "origin type",
		"Responses of the origin that the relay refused; the log has the reasons.",
		originTypes(func(s upstream.TypeStats) int64 { return s.Refused })},
	{"tender.pending.changes", sum, "{change}", "origin reason",
		"Changes of the origin that clients do not receive yet (tender pending), over all groups. The reason is suspect, " +
			"second-look, large-removal, replacement, breaking, required, growth, dropped, interval, frozen, rolled-back, stage or halted.", pendingChanges},
	{"tender.origin.deletions.held", counter, "{resource}", "origin", "Removals that were held.",
		origins(func(o *Origin) float64 { return float64(o.Held) })},
	{"tender.origin.deletions.applied", counter, "{resource}", "origin",
		"Removals that were inferred, part of the first responses of a stream, or held, and were applied. Held updates do " +
			"not count.",
		origins(func(o *Origin) float64 { return float64(o.Applied) })},
	{"tender.origin.deletions.dropped", counter, "{resource}", "origin",
		"Removals that an operator dropped (tender drop); the resources stay.",
		origins(func(o *Origin) float64 { return float64(o.Dropped) })},
	{"tender.origin.isolated", sum, "{subscription}", "origin",
		"Subscriptions, over all views, that have upstream streams of their own because the origin ends each stream that " +
			"carries them. The status has their names.",
		origins(func(o *Origin) float64 { return float64(o.Isolated) })},
	{"tender.origin.audits", counter, "{view}", "origin",
		"Views that were compared with the origin on another stream (tender audit).",
		origins(func(o *Origin) float64 { return float64(o.Audits) })},
	{"tender.origin.drifted", counter, "{resource}", "origin",
		"Resources that differed in such a comparison, or existed on one side only.",
		origins(func(o *Origin) float64 { return float64(o.Drifted) })},
	{"tender.origin.frozen", gauge, "", "origin",
		"1 if an operator stopped the distribution of the origin's changes (tender freeze, tender rollback), else 0.",
		origins(func(o *Origin) float64 { return boolValue(o.Status.Frozen) })},

	{"tender.origin.files", sum, "{file}", "origin state",
		"Files of a directory. The state is good or bad: a bad file cannot be read, or repeats names of another file. The " +
			"log and the status have the reasons.", func(r *Reading, put put) {
			for _, o := range r.Origins {
				if d := o.Status.Directory; d != nil {
					put(float64(d.FileCount-d.BadCount), o.Status.Name, "good")
					put(float64(d.BadCount), o.Status.Name, "bad")
				}
			}
		}},

	{"tender.rollout.state", gauge, "", "origin state",
		"1 for the state of the origin's most urgent part, else 0: current (all clients have the state of the origin), gathering " +
			"(changes), held (before the first stage), rolling or halted. Metrics of rollouts exist only with TENDER_ROLLOUT.",
		rolloutStates},
	{"tender.rollout.stage", gauge, "", "origin", "Stages that receive the edition.",
		rollouts(func(_ *Reading, s *rollout.Status) float64 { return float64(s.Stage) })},
	{"tender.rollout.clients", sum, "{client}", "origin cohort",
		"Connected clients. The cohort is the number of a stage of TENDER_ROLLOUT, from 1, or rest.", cohortClients},
	{"tender.rollout.answers", sum, "{client}", "origin cohort outcome",
		"Clients that receive the edition and subscribe to a changed resource. The outcome is accepted, rejected or " +
			"unanswered.", cohortAnswers},
	{"tender.rollout.age", gauge, "s", "origin", "Age of the oldest change that not all clients receive; 0 without one.",
		rollouts(func(r *Reading, s *rollout.Status) float64 { return since(r, s.Oldest) })},
	{"tender.rollout.waiting", gauge, "", "origin reason",
		"1 for the condition that the rollout waits for besides time, else 0. The reason is origin (connected and " +
			"confirmed), hold (TENDER_MASS_DELETE_HOLD), approval, answers (of clients) or check.", rolloutAwaits},
	{"tender.rollout.check.failing", gauge, "s", "origin",
		"Time since TENDER_ROLLOUT_CHECK last returned a result about an open edition; 0 if it does, or without an edition.",
		rollouts(checkFailing)},
	{"tender.rollout.halted.time", gauge, "s", "origin",
		"When the rollout halted, in seconds since 1970; 0 if it is not halted.",
		rollouts(haltedTime)},
	{"tender.rollout.unobserved", gauge, "", "origin",
		"1 if a stage of the edition ended without a client that accepted it, or the local Envoy did not judge it, else 0.",
		rollouts(func(_ *Reading, s *rollout.Status) float64 { return boolValue(s.Unobserved) })},
	{"tender.rollout.cold", gauge, "", "origin",
		"1 if the relay started without a snapshot and has promoted no edition to all clients since, else 0. All clients " +
			"received the state of the origin at the start.",
		rollouts(func(_ *Reading, s *rollout.Status) float64 { return boolValue(s.Cold) })},
	{"tender.rollouts", counter, "{edition}", "origin outcome",
		"Editions by outcome: promoted (to all clients), halted, reverted (by the origin), superseded (by newer changes) or " +
			"undone (these are also halted).", rolloutOutcomes},

	{"tender.view.connected", gauge, "", "group origin",
		"1 if the upstream stream of the view is open, else 0. For the label other, 1 if all are open.",
		views(func(v *admin.View) float64 { return boolValue(v.Connected) }, minValue)},
	{"tender.view.stale", gauge, "s", "group origin",
		"Seconds since the view lost its origin; 0 while it is connected. For the label other, the maximum.",
		views(func(v *admin.View) float64 { return v.StaleSeconds }, maxValue)},
	{"tender.view.resources", sum, "{resource}", "group origin type", "Resources in the cache, by wildcard and by name.",
		viewTypes(func(t *admin.Type) float64 { return float64(t.Entries) })},
	{"tender.view.size", sum, "By", "group origin type",
		"Encoded size of these resources. Groups share the memory of equal resources.",
		viewTypes(func(t *admin.Type) float64 { return float64(t.Bytes) })},
	{"tender.tls.expiry", gauge, "s", "file",
		"Expiry of the certificate in use, in seconds since 1970; for several CAs, the latest. The label is the variable " +
			"that names the file.", func(r *Reading, put put) {
			for _, f := range r.Status.Files {
				if !f.NotAfter.IsZero() {
					put(float64(f.NotAfter.Unix()), f.Files[0].Variable)
				}
			}
		}},
	{"tender.tls.refusals", counter, "{change}", "file",
		"Changed credential files that could not be used; the previous content stays in use. The log has the reasons.",
		func(r *Reading, put put) {
			for _, f := range r.Status.Files {
				put(float64(f.Refused), f.Files[0].Variable)
			}
		}},
	{"tender.generations", sum, "{generation}", "",
		"Earlier generations for tender rollback, over all views.",
		scalar(func(r *Reading) float64 { return float64(r.Generations) })},
	{"tender.generations.size", sum, "By", "",
		"Memory that only earlier generations need, at most 64 MiB.",
		scalar(func(r *Reading) float64 { return float64(r.GenerationBytes) })},
	{"tender.snapshots", counter, "{snapshot}", "", "Snapshots of views that were written to disk.",
		scalar(func(r *Reading) float64 { return float64(r.Snapshots.Written) })},
	{"tender.snapshots.failed", counter, "{snapshot}", "",
		"Snapshots that were not written because of an error; the log has the reasons.",
		scalar(func(r *Reading) float64 { return float64(r.Snapshots.Failures) })},
	{"tender.snapshots.unusable", gauge, "", "",
		"1 if the directory of snapshots cannot be used: its file system fails or hangs; the log has the reason.",
		scalar(func(r *Reading) float64 { return boolValue(r.Snapshots.Fault != "") })},
	{"tender.snapshots.restored", counter, "{view}", "", "Views that were restored from a snapshot.",
		scalar(func(r *Reading) float64 { return float64(r.Snapshots.Restored) })},
	{"tender.snapshots.refused", counter, "{snapshot}", "reason", "Snapshots that could not be used.",
		func(r *Reading, put put) {
			for reason, n := range r.Snapshots.Refused {
				put(float64(n), string(reason))
			}
		}},
	{"tender.audit.passes", counter, "{pass}", "", "Passes of the drift audit over all views.",
		scalar(func(r *Reading) float64 { return float64(r.AuditPasses) })},
	{"tender.audit.faults", counter, "{fault}", "group part",
		"Inconsistencies that the drift audit found in the wildcard sets of a view, its resources by name, their errors, " +
			"or its subscriptions. Each is a defect of the relay or of the machine.", func(r *Reading, put put) {
			sums := make(map[AuditFault]int64)
			for of, n := range r.AuditFaults {
				sums[AuditFault{groupLabel(of.Group), of.Part}] += n
			}
			for of, n := range sums {
				put(float64(n), of.Group, of.Part)
			}
		}},
	{"tender.validation.checked", counter, "{resource}", "",
		"Different resources that TENDER_VALIDATE decoded and checked.", func(r *Reading, put put) {
			if v := r.Status.Validation; v != nil {
				put(float64(v.Checked))
			}
		}},
	{"tender.validation.findings", sum, "{finding}", "type kind",
		"Findings of validation now. Resources of the kinds undecodable, missing_reference and removed_reference are " +
			"broken. Other kinds are invalid (a validator rejects a value), unknown (a " +
			"field or an enum value) and unchecked (too large, or nested too deeply).", validationFindings},

	{"tender.client.connections", sum, "{connection}", "", "Open client connections.",
		scalar(func(r *Reading) float64 { return float64(r.Server.Connections) })},
	{"tender.client.unread", sum, "By", "",
		"Memory of client requests that are not processed yet, as counted for the limit of buffered requests.",
		scalar(func(r *Reading) float64 { return float64(r.Server.Unread) })},
	{"tender.client.streams", sum, "{stream}", "", "Open client streams, and polls that wait.",
		scalar(func(r *Reading) float64 { return float64(r.Server.Streams) })},
	{"tender.client.streams.waiting", sum, "{stream}", "",
		"First responses that wait because many clients connected at once.",
		scalar(func(r *Reading) float64 { return float64(r.Server.Waiting) })},
	{"tender.client.streams.accepted", counter, "{stream}", "", "Accepted client streams and polls.",
		scalar(func(r *Reading) float64 { return float64(r.Server.Accepted) })},
	{"tender.client.streams.ended", counter, "{stream}", "reason",
		"Client streams that ended. The reason is one of these: client, drained, aged, stalled (the client did not read), " +
			"silent (it sent no request), cold (the relay had no state). Others are refused (a limit), invalid, return (the " +
			"client has to reconnect), denied (no permission), chain (a cycle or a long chain of relays) and other.",
		func(r *Reading, put put) {
			for why, n := range r.Server.Ended {
				put(float64(n), why.String())
			}
		}},
	{"tender.client.refusals", counter, "{refusal}", "limit",
		"Connections, stream requests and polls above a limit, by the variable of the limit, or a word if it is constant.",
		putCauses[guard.Limit]},
	{"tender.client.denials", counter, "{request}", "reason",
		"Requests that TENDER_AUTHZ, TENDER_SECRETS or TENDER_TLS_TRUST_DOMAINS denies. The reason is identity (no rule " +
			"matches), node, type, name (an xdstp name), secret, or trust_domain (the CA may not issue the certificate: the " +
			"handshake fails, also for operators). After name and secret, an aggregated stream stays open.",
		putCauses[guard.Denial]},
	{"tender.client.requests.invalid", counter, "{request}", "reason",
		"Invalid requests; each ends its stream or its poll. The reason is malformed, not_utf8 (such as a name), node, type " +
			"(missing, or of another service), method (not served) or compressed. Others are load_report, poll and other. The " +
			"log and the status have examples.",
		putCauses[guard.Invalid]},
	{"tender.client.handshakes.failed", counter, "{handshake}", "reason",
		"Failed TLS handshakes, also of operators. The reason is no_certificate, unknown_ca, expired, bad_certificate, " +
			"plaintext, or unsupported (version, cipher suite or protocol). Others are rejected_by_client (it may not trust the " +
			"relay), timeout, closed (such as TCP checks of balancers) and other. The log and the status have examples.",
		putCauses[guard.HandshakeFailure]},
	{"tender.client.accepts.failed", counter, "{attempt}", "reason",
		"Failed attempts to accept a connection; the client waits. The reason is file_descriptors (none is free) or other.",
		putCauses[guard.AcceptFailure]},
	{"tender.client.requests.throttled", counter, "{request}", "",
		"Requests that were delayed by the rate limit of their stream.",
		scalar(func(r *Reading) float64 { return float64(r.Server.Throttled) })},
	{"tender.client.changes.coalesced", counter, "{change}", "",
		"Changes that were merged with an earlier change that the stream had not received yet.",
		scalar(func(r *Reading) float64 { return float64(r.Server.Coalesced) })},
	{"tender.client.compression.saved", counter, "By", "",
		"Bytes by which compression made the sent responses smaller (TENDER_COMPRESSION).",
		scalar(func(r *Reading) float64 { return float64(r.Server.Saved) })},
	{"tender.client.turns", counter, "{turn}", "outcome",
		"Passes over a stream after a change or a request. The outcome is sent, or idle if there was nothing to send.",
		func(r *Reading, put put) {
			put(float64(r.Server.Turns-r.Server.IdleTurns), "sent")
			put(float64(r.Server.IdleTurns), "idle")
		}},
	{"tender.client.group.streams", sum, "{stream}", "group",
		"Client streams after their first request, and polls that wait.", func(r *Reading, put put) {
			for _, g := range r.Groups {
				put(float64(g.Streams), groupLabel(g.Key))
			}
		}},
	{"tender.client.subscriptions", sum, "{subscription}", "group type kind",
		"Subscriptions of clients. The kind is wildcard or name; a name of two streams counts twice.",
		func(r *Reading, put put) {
			for _, g := range r.Groups {
				for label, of := range byLabel(g.Interest, cache.InterestStats.Plus) {
					put(float64(of.Wildcards), groupLabel(g.Key), label, "wildcard")
					put(float64(of.Names), groupLabel(g.Key), label, "name")
				}
			}
		}},
	{"tender.client.responses", counter, "{response}", "group type",
		"Responses that were sent to clients, on streams and to polls (deliveries).",
		groupTypes(func(s downstream.TypeStats) int64 { return s.Responses })},
	{"tender.client.sent", counter, "By", "group type",
		"Size of these responses, without gRPC framing and before compression.",
		groupTypes(func(s downstream.TypeStats) int64 { return s.Bytes })},
	{"tender.client.acks", counter, "{response}", "group type", "Responses that clients accepted (ACK), each once.",
		groupTypes(func(s downstream.TypeStats) int64 { return s.Acks })},
	{"tender.client.nacks", counter, "{response}", "group type",
		"Responses that clients rejected (NACK); the log has the reasons.",
		groupTypes(func(s downstream.TypeStats) int64 { return s.Nacks })},
	{"tender.client.lag", gauge, "s", "group type",
		"Age of the oldest change that a client of the group has not accepted; 0 without one.",
		groupClients(func(t *admin.TypeTotals) float64 { return t.LagSeconds })},
	{"tender.client.lagging", sum, "{stream}", "group type",
		"Client streams with a change that was not sent yet or not accepted.",
		groupClients(func(t *admin.TypeTotals) float64 { return float64(t.Lagging) })},
	{"tender.client.rejecting", sum, "{stream}", "group type",
		"Client streams that reject a resource in its current version.",
		groupClients(func(t *admin.TypeTotals) float64 { return float64(t.Rejecting) })},
	{"tender.client.fanouts.unmeasured", counter, "{change}", "group type reason",
		"Changes whose fan-out was not measured. The reason is unanswered (a client did not answer for a minute) or " +
			"crowded (16 changes of the type were being measured).", func(r *Reading, put put) {
			for _, g := range r.Groups {
				for label, stats := range byLabel(g.Types, downstream.TypeStats.Plus) {
					put(float64(stats.GivenUp), groupLabel(g.Key), label, "unanswered")
					put(float64(stats.Unfollowed), groupLabel(g.Key), label, "crowded")
				}
			}
		}},
}

// boolValue returns 1 for true and 0 for false.
func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// scalar reads a value without labels.
func scalar(value func(*Reading) float64) func(*Reading, put) {
	return func(r *Reading, put put) { put(value(r)) }
}

// validationFindings reads the number of findings by type and kind.
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

// putCauses reads the number of refusals by each cause of one kind.
func putCauses[C guard.Cause](r *Reading, put put) {
	for cause, n := range r.Server.Refused {
		if _, is := cause.(C); is {
			put(float64(n), cause.String())
		}
	}
}

// origins reads a value per origin.
func origins(value func(*Origin) float64) func(*Reading, put) {
	return func(r *Reading, put put) {
		for i := range r.Origins {
			put(value(&r.Origins[i]), r.Origins[i].Status.Name)
		}
	}
}

// originTypes reads a value per origin and type.
func originTypes(value func(upstream.TypeStats) int64) func(*Reading, put) {
	return func(r *Reading, put put) {
		for _, o := range r.Origins {
			for label, stats := range byLabel(o.Types, upstream.TypeStats.Plus) {
				put(float64(value(stats)), o.Status.Name, label)
			}
		}
	}
}

// maxValue and minValue merge values of gauges with the same labels.
func maxValue(a, b float64) float64 { return max(a, b) }
func minValue(a, b float64) float64 { return min(a, b) }

// views reads a value per view, and merges values with the same labels.
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

// viewTypes reads a value per view and type, and sums values with the same labels.
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

// groupTypes reads a value per node group and type.
func groupTypes(value func(downstream.TypeStats) int64) func(*Reading, put) {
	return func(r *Reading, put put) {
		for _, g := range r.Groups {
			for label, stats := range byLabel(g.Types, downstream.TypeStats.Plus) {
				put(float64(value(stats)), groupLabel(g.Key), label)
			}
		}
	}
}

// groupClients reads a value of the clients per node group and type.
func groupClients(value func(*admin.TypeTotals) float64) func(*Reading, put) {
	return func(r *Reading, put put) {
		sums := make(map[[2]string]admin.TypeTotals)
		for _, t := range r.Clients {
			labels := [2]string{r.groupLabel(t.Group), typeLabel(t.TypeURL)}
			sum := sums[labels]
			sums[labels] = admin.TypeTotals{
				Lagging: sum.Lagging + t.Lagging, Rejecting: sum.Rejecting + t.Rejecting,
				LagSeconds: max(sum.LagSeconds, t.LagSeconds),
			}
		}
		for labels, sum := range sums {
			put(value(&sum), labels[:]...)
		}
	}
}

// instrument creates the instrument of the row.
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

// attributes returns the labels of the row with their values.
func (r *row) attributes(values []string) []attribute.KeyValue {
	names := strings.Fields(r.labels)
	if len(names) != len(values) {
		panic(fmt.Sprintf("telemetry: %s has the labels %q, got the values %q", r.name, r.labels, values))
	}
	attributes := make([]attribute.KeyValue, len(names))
	for i, name := range names {
		attributes[i] = attribute.String(name, values[i])
	}
	return attributes
}

// prometheus returns the name of the metric in Prometheus.
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

// Page returns the list of metrics in deploy/docs/metrics.md.
func Page() string {
	var b strings.Builder
	for _, r := range rows() {
		kind := string(r.kind)
		if r.labels != "" {
			kind += " by `" + strings.ReplaceAll(r.labels, " ", "`, `") + "`"
		}
		b.WriteString(humanize.Wrap(fmt.Sprintf("`%s` (`%s`), %s. %s", r.prometheus(), r.name, kind, r.help), "- ", "  "))
	}
	return b.String()
}
