package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otellog "go.opentelemetry.io/otel/log"
	sdk "go.opentelemetry.io/otel/sdk/log"
)

// ActionEvent is the name of the event that is the audit record of an operator's command.
const ActionEvent = "tender.operator.action"

// An Event is an OpenTelemetry log event.
type Event struct {
	Name       string
	At         time.Time
	Body       string
	Failed     bool              // severity WARN instead of INFO
	Attributes map[string]string // empty values are omitted
	Status     int               // http.response.status_code; omitted if zero
}

// Events exports log events. A nil Events exports none. Its methods may be called from any goroutine.
type Events struct {
	provider *sdk.LoggerProvider
	logger   otellog.Logger
}

// NewEvents returns an Events that sends batches to the exporter of the environment, or nil if it has none.
func NewEvents(ctx context.Context, cfg Config) (*Events, error) {
	exporter, ok := cfg.Environment.logExporter(ctx)
	if !ok {
		return nil, nil
	}
	from, err := resourceOf(ctx, cfg)
	if err != nil {
		return nil, err
	}
	provider := sdk.NewLoggerProvider(sdk.WithProcessor(sdk.NewBatchProcessor(exporter)), sdk.WithResource(from))
	return &Events{provider, provider.Logger(scope, otellog.WithInstrumentationVersion(cfg.Version))}, nil
}

// Emit queues an event for export, with the span of ctx. It does not block: if the queue is full, its oldest event is
// dropped.
func (e *Events) Emit(ctx context.Context, event Event) {
	if e == nil {
		return
	}
	severity := otellog.SeverityInfo
	if event.Failed {
		severity = otellog.SeverityWarn
	}
	var record otellog.Record
	record.SetEventName(event.Name)
	record.SetTimestamp(event.At)
	record.SetObservedTimestamp(event.At)
	record.SetSeverity(severity)
	record.SetSeverityText(severity.String())
	record.SetBody(attribute.StringValue(event.Body))
	for key, value := range event.Attributes {
		if value != "" {
			record.AddAttributes(attribute.String(key, value))
		}
	}
	if event.Status != 0 {
		record.AddAttributes(attribute.Int("http.response.status_code", event.Status))
	}
	e.logger.Emit(ctx, record)
}

// Shutdown exports the queued events, and returns when that is done or ctx ends.
func (e *Events) Shutdown(ctx context.Context) error {
	if e == nil {
		return nil
	}
	return e.provider.Shutdown(ctx)
}
