package relay

import (
	"context"
	"time"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/operator"
	"github.com/xdstender/tender/relay/telemetry"
)

// telemetryConfig says whose the metrics and spans are.
func (r *Relay) telemetryConfig() telemetry.Config {
	return telemetry.Config{Read: r.reading, Version: r.version, Instance: r.identifier}
}

// traces returns how deliveries are shown; nil if they are not.
func (r *Relay) traces() *downstream.Traces {
	if r.tracer == nil {
		return nil
	}
	return &downstream.Traces{Every: r.cfg.TraceDeliveries, Slow: r.cfg.TraceSlow, Delivered: r.tracer.Delivered}
}

// lastExport is how long the last export of the numbers may delay the end.
const lastExport = 2 * time.Second

// endTelemetry exports for the last time.
func (r *Relay) endTelemetry() {
	ctx, cancel := context.WithTimeout(context.Background(), lastExport)
	defer cancel()
	_ = r.tracer.Shutdown(ctx) // what goes wrong, OpenTelemetry tells itself
	if r.telemetry != nil {    // else it could not be begun
		_ = r.telemetry.Shutdown(ctx)
	}
}

// reading returns what the relay has counted. It looks at each client: of 10,000 streams, that takes 25 ms.
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
	if clients := r.credentials.Clients; clients != nil {
		out.Server.Denied[guard.DeniedTrustDomain] = clients.Refused()
	}
	for i, o := range r.origins {
		out.Origins = append(out.Origins, telemetry.Origin{Status: out.Status.Origins[i], Names: r.groups.quotas[i].Wanted(), Stats: o.Stats()})
	}
	for _, v := range r.groups.standing() {
		if !v.Shared {
			out.Groups = append(out.Groups, telemetry.Group{Key: v.Key, Streams: v.Streams, Types: v.Counts.Types(), Interest: v.View.Interest()})
		}
	}
	return out
}
