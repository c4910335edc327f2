package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
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

	// NoPage declares that no address serves the Handler. Unless an exporter is configured, New then creates no
	// instruments, because nothing reads them.
	NoPage bool
}

// A Telemetry exports the metrics of the relay.
type Telemetry struct {
	provider *sdk.MeterProvider // nil without instruments
	page     http.Handler
}

// New returns a Telemetry, and starts the exporters that the OTEL_… variables configure. It returns an error if Read is
// nil or these variables are invalid.
func New(ctx context.Context, cfg Config) (*Telemetry, error) {
	if cfg.Read == nil {
		return nil, errors.New("telemetry: Read is nil")
	}
	if cfg.NoPage && !exports("METRICS") {
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
		return nil, fmt.Errorf("telemetry: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	// The relay bounds the combinations of labels itself.
	options := []sdk.Option{sdk.WithReader(page), sdk.WithResource(from), sdk.WithCardinalityLimit(0)}
	if exports("METRICS") {
		pushed, err := histograms.newReader(ctx)
		if err != nil {
			return nil, fmt.Errorf("telemetry: OTEL_METRICS_EXPORTER=%q: %w", os.Getenv("OTEL_METRICS_EXPORTER"), err)
		}
		options = append(options, sdk.WithReader(pushed))
	}
	t := &Telemetry{
		provider: sdk.NewMeterProvider(options...), page: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
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

// exports reports whether the environment configures an exporter of a signal, by its name or its endpoint. The default
// exporter of OpenTelemetry, to localhost, does not count.
func exports(signal string) bool {
	if os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return false
	}
	for _, variable := range []string{
		"OTEL_" + signal + "_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT",
	} {
		if os.Getenv(variable) != "" {
			return true
		}
	}
	return false
}

// resourceOf returns the OpenTelemetry resource of the relay.
func resourceOf(ctx context.Context, cfg Config) (*resource.Resource, error) {
	return resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(
			attribute.String("service.name", "tender"),
			attribute.String("service.version", cmp.Or(cfg.Version, "unknown")),
			attribute.String("service.instance.id", cfg.Instance),
		),
		resource.WithFromEnv(),
	)
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

// LogErrors logs the errors of OpenTelemetry exporters. It applies to the whole process.
func LogErrors(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("telemetry export failed", slog.Any("err", err))
	}))
}
