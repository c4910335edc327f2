package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
)

// scope is the instrumentation scope of all metrics, spans and events.
const scope = "github.com/xdstender/tender"

// Config configures the telemetry. Read is required; the zero values of the other fields are valid.
type Config struct {
	// Read takes a reading. It may be called from any goroutine.
	Read func() Reading

	// Version and Instance are the resource attributes service.version and service.instance.id of the relay.
	// OTEL_RESOURCE_ATTRIBUTES overrides them.
	Version, Instance string

	// Environment selects the exporters. If nil, only the Handler exports metrics.
	Environment *Environment

	// NoPage declares that no address serves the Handler. Unless an exporter is configured, New then creates no
	// instruments, because nothing reads them.
	NoPage bool
}

// A Telemetry exports the metrics of the relay.
type Telemetry struct {
	provider *sdk.MeterProvider // nil without instruments
	page     http.Handler
}

// New returns a Telemetry, and starts the exporter of the environment. It returns an error if Read is nil.
func New(ctx context.Context, cfg Config) (*Telemetry, error) {
	if cfg.Read == nil {
		return nil, errors.New("telemetry: Read is nil")
	}
	if cfg.NoPage && !cfg.Environment.exports(metricsSignal) {
		return &Telemetry{page: http.NotFoundHandler()}, nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(processCollectors()...)
	histograms := &producer{
		read: cfg.Read, scope: instrumentation.Scope{Name: scope, Version: cfg.Version}, began: time.Now(),
	}
	page, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(),
		exporter.WithProducer(histograms))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	from, err := resourceOf(ctx, cfg)
	if err != nil {
		return nil, err
	}
	// The relay bounds the combinations of labels itself.
	options := []sdk.Option{sdk.WithReader(page), sdk.WithResource(from), sdk.WithCardinalityLimit(0)}
	if to, ok := cfg.Environment.metricExporter(ctx); ok {
		options = append(options, sdk.WithReader(sdk.NewPeriodicReader(to, sdk.WithProducer(histograms))))
	}
	t := &Telemetry{
		provider: sdk.NewMeterProvider(options...),
		page:     promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}), // it has the exemplars
	}
	if err := register(t.provider.Meter(scope, metric.WithInstrumentationVersion(cfg.Version)), cfg.Read); err != nil {
		return nil, errors.Join(fmt.Errorf("telemetry: %w", err), t.Shutdown(ctx))
	}
	return t, nil
}

// processCollectors returns the collectors of the metrics of the process. All relays of a process share them: to make one, the
// client library matches all metrics of the runtime against regular expressions.
var processCollectors = sync.OnceValue(func() []prometheus.Collector {
	return []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
})

// resourceOf returns the OpenTelemetry resource of the relay.
func resourceOf(ctx context.Context, cfg Config) (*resource.Resource, error) {
	attributes := []attribute.KeyValue{
		attribute.String("service.name", "tender"),
		attribute.String("service.version", cmp.Or(cfg.Version, "unknown")),
		attribute.String("service.instance.id", cfg.Instance),
	}
	if cfg.Environment != nil {
		attributes = append(attributes, cfg.Environment.attributes...) // of equal keys, the last counts
	}
	from, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(attributes...))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return from, nil
}

// register creates the instruments of the table. A callback observes all of them from one reading. A producer exports
// the histograms.
func register(meter metric.Meter, read func() Reading) error {
	instruments := make([]metric.Float64Observable, len(table))
	all := make([]metric.Observable, len(table))
	for i := range table {
		instrument, err := table[i].instrument(meter)
		if err != nil {
			return err
		}
		instruments[i], all[i] = instrument, instrument
	}
	_, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		reading := read()
		for i := range table {
			row := &table[i]
			row.read(&reading, func(value float64, labels ...string) {
				o.ObserveFloat64(instruments[i], value, metric.WithAttributes(row.attributes(labels)...))
			})
		}
		return nil
	}, all...)
	return err
}

// Handler returns the handler of /metrics for Prometheus. Without instruments, it responds with 404.
func (t *Telemetry) Handler() http.Handler { return t.page }

// Shutdown exports the metrics for the last time. It returns when that is done or ctx ends.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}
