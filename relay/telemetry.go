package relay

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/operator"
	"github.com/xdstender/tender/relay/telemetry"
)

// exporters export the metrics, spans and events of a relay.
type exporters struct {
	environment *telemetry.Environment

	metrics *telemetry.Telemetry
	tracer  *telemetry.Tracer // nil if tracing is off
	events  *telemetry.Events // nil if no events are exported
}

// telemetryConfig returns the source, the resource attributes and the exporters of metrics and spans.
func (r *Relay) telemetryConfig() telemetry.Config {
	return telemetry.Config{Read: r.reading, Version: r.version, Instance: r.identifier, Environment: r.exporters.environment}
}

// readEnvironment reads the OTEL_… variables, and logs those that it ignores.
func (e *exporters) readEnvironment(log *slog.Logger) {
	e.environment = telemetry.ReadEnvironment()
	for _, line := range e.environment.Ignored {
		log.Warn("variable of OpenTelemetry ignored", slog.String("detail", line))
	}
}

// deliveryTraces returns the settings of delivery spans, or nil if tracing is off.
func deliveryTraces(s *settings, tracer *telemetry.Tracer) *downstream.Traces {
	if tracer == nil {
		return nil
	}
	traces := s.traces
	traces.Delivered = tracer.Delivered
	return &traces
}

// lastExportTimeout bounds how long the last export of metrics, spans and events delays the shutdown.
const lastExportTimeout = 2 * time.Second

// shutdown exports metrics, spans and events for the last time.
func (e *exporters) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), lastExportTimeout)
	defer cancel()
	_ = e.tracer.Shutdown(ctx) // OpenTelemetry logs its errors
	_ = e.events.Shutdown(ctx)
	if e.metrics != nil { // it is nil if New failed
		_ = e.metrics.Shutdown(ctx)
	}
	telemetry.FlushConsole(ctx)
}

// emitAction exports the audit record of an operator command as a log event.
func (e *exporters) emitAction(ctx context.Context, a admin.Action) {
	event := telemetry.Event{
		Name: telemetry.ActionEvent, At: a.At, Body: "operator action", Failed: a.Error != "", Status: a.Code,
		Attributes: map[string]string{
			"tender.command": a.Command, "enduser.id": a.Operator, "client.address": a.From, "tender.via": a.Via,
			"tender.reason": a.Reason, "tender.arguments": string(a.Arguments), "error.message": a.Error,
		},
	}
	if a.DryRun {
		event.Attributes["tender.dry_run"] = "true"
	}
	if event.Failed {
		event.Attributes["error.type"] = strconv.Itoa(a.Code)
	}
	e.events.Emit(ctx, event)
}

// reading returns the counters of the relay. It visits all streams, which takes 25 ms for 10,000 streams.
func (r *Relay) reading() telemetry.Reading {
	audit := r.Audit()
	out := telemetry.Reading{
		At:          time.Now(),
		Status:      r.status(),
		Memory:      readMemory().utilization(),
		Server:      r.server.Stats(),
		Snapshots:   r.SnapshotStats(),
		AuditPasses: audit.Passes,
		AuditFaults: audit.Where,
		Clients:     operator.Totals(r.server.Clients()),
		Rollouts:    r.groups.rollouts.statuses(),
	}
	if r.groups.generations != nil {
		out.Generations, out.GenerationBytes = r.groups.generations.Stats()
	}
	for i, o := range r.origins {
		out.Origins = append(out.Origins, telemetry.Origin{
			Status: out.Status.Origins[i], Names: r.groups.quotas[i].Used(), Stats: o.Stats(),
		})
	}
	out.Groups, out.Named = r.groups.metrics()
	return out
}

// metrics returns the counters of node groups, one entry per value of the label group, and the keys that are values of
// it.
func (g *groups) metrics() (all []telemetry.Group, named map[string]bool) {
	g.mu.Lock()
	named, other := g.labels.Labels() // under the same lock as byKey, so that the counters of a removed group count once
	groups := make([]*group, 0, len(g.byKey))
	streams := make([]int, 0, len(g.byKey))
	for _, gr := range g.byKey {
		groups, streams = append(groups, gr), append(streams, gr.streams)
	}
	g.mu.Unlock()
	for i, gr := range groups {
		of := telemetry.Group{Key: gr.label, Streams: streams[i], Types: gr.counts.Types(), Interest: gr.view.Interest()}
		if gr.label == telemetry.Other {
			other = other.Plus(of)
		} else {
			all = append(all, of)
		}
	}
	if len(other.Types)+len(other.Interest)+other.Streams > 0 {
		all = append(all, other)
	}
	return all, named
}
