package telemetry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutlog"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// A signal is a kind of telemetry, as in the names of variables.
type signal string

const (
	tracesSignal  signal = "TRACES"
	metricsSignal signal = "METRICS"
	logsSignal    signal = "LOGS"
)

// A destination is where a signal is sent.
type destination string

const (
	none     destination = "none"
	console  destination = "console" // stdout
	otlpHTTP destination = "http/protobuf"
	otlpGRPC destination = "grpc"
)

// An Environment is what the variables of OpenTelemetry select. Its zero value exports nothing.
type Environment struct {
	exporters  map[signal]destination // without those of none
	attributes []attribute.KeyValue

	// Ignored has a line for each variable whose value is invalid. As the specification of OpenTelemetry demands, such a
	// variable counts as not set.
	Ignored []string
}

// ReadEnvironment reads the variables of the process. No value is an error.
func ReadEnvironment() *Environment {
	e := &Environment{exporters: make(map[signal]destination)}
	switch value := os.Getenv("OTEL_SDK_DISABLED"); {
	case strings.EqualFold(value, "true"):
		return e
	case value != "" && !strings.EqualFold(value, "false"):
		e.ignore("OTEL_SDK_DISABLED", errors.New("use true or false"))
	}
	for _, s := range []signal{tracesSignal, metricsSignal, logsSignal} {
		if to := e.read(s); to != none {
			e.exporters[s] = to
		}
	}
	e.readAttributes()
	return e
}

// ignore adds a line about a variable.
func (e *Environment) ignore(variable string, err error) {
	e.Ignored = append(e.Ignored, fmt.Sprintf("%s=%q: %v; the value is ignored", variable, os.Getenv(variable), err))
}

// choose returns the choice that a variable names, regardless of case, or byDefault.
func (e *Environment) choose(variable string, choices map[string]destination, byDefault destination) destination {
	value := os.Getenv(variable)
	if value == "" {
		return byDefault
	}
	if to, ok := choices[strings.ToLower(strings.TrimSpace(value))]; ok {
		return to
	}
	e.ignore(variable, fmt.Errorf("use one of %s", strings.Join(slices.Sorted(maps.Keys(choices)), ", ")))
	return byDefault
}

// read returns the exporter of a signal: that of its name, or OTLP if an endpoint is set. The default of OpenTelemetry,
// OTLP to localhost, does not apply, because few hosts have a collector.
func (e *Environment) read(s signal) destination {
	protocols := map[string]destination{"http/protobuf": otlpHTTP, "grpc": otlpGRPC}
	own, shared := "OTEL_EXPORTER_OTLP_"+string(s)+"_", "OTEL_EXPORTER_OTLP_"
	byDefault := none
	if os.Getenv(own+"ENDPOINT") != "" || os.Getenv(shared+"ENDPOINT") != "" {
		byDefault = "otlp"
	}
	choices := map[string]destination{"otlp": "otlp", "console": console, "none": none}
	if s == metricsSignal {
		choices["prometheus"] = none // /metrics is this exporter
	}
	to := e.choose("OTEL_"+string(s)+"_EXPORTER", choices, byDefault)
	if to != "otlp" {
		return to
	}
	if protocol := e.choose(own+"PROTOCOL", protocols, ""); protocol != "" {
		return protocol
	}
	before := len(e.Ignored)
	to = e.choose(shared+"PROTOCOL", protocols, otlpHTTP)
	if before < len(e.Ignored) && slices.Contains(e.Ignored[:before], e.Ignored[before]) {
		e.Ignored = e.Ignored[:before] // another signal has the line
	}
	return to
}

// readAttributes reads the attributes of the resource. An invalid pair makes OTEL_RESOURCE_ATTRIBUTES invalid as a whole.
func (e *Environment) readAttributes() {
	attributes, err := parseAttributes(os.Getenv("OTEL_RESOURCE_ATTRIBUTES"))
	if err != nil {
		e.ignore("OTEL_RESOURCE_ATTRIBUTES", err)
	}
	if name := strings.TrimSpace(os.Getenv("OTEL_SERVICE_NAME")); name != "" {
		attributes = append(attributes, attribute.String("service.name", name))
	}
	e.attributes = attributes
}

// parseAttributes parses a list such as a=b,c=d, with percent-encoded values.
func parseAttributes(list string) (all []attribute.KeyValue, err error) {
	if strings.TrimSpace(list) == "" {
		return nil, nil
	}
	for pair := range strings.SplitSeq(list, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, fmt.Errorf("%q is not key=value", pair)
		}
		if value, err = url.PathUnescape(strings.TrimSpace(value)); err != nil {
			return nil, fmt.Errorf("%q: %w", pair, err)
		}
		all = append(all, attribute.String(key, value))
	}
	return all, nil
}

// exports reports whether a signal is exported.
func (e *Environment) exports(s signal) bool { return e != nil && e.exporters[s] != "" }

// exporterOf returns the exporter of a signal, created by one of three functions. If that fails, the signal is not
// exported: the error is reported as those of the SDK.
func exporterOf[T any](e *Environment, s signal, onConsole, byHTTP, byGRPC func() (T, error)) (to T, ok bool) {
	if !e.exports(s) {
		return to, false
	}
	create := map[destination]func() (T, error){console: onConsole, otlpHTTP: byHTTP, otlpGRPC: byGRPC}[e.exporters[s]]
	to, err := create()
	if err != nil {
		report(fmt.Errorf("%s are not exported: %w", strings.ToLower(string(s)), err))
		return to, false
	}
	return to, true
}

// spanExporter returns the exporter of spans, if there is one.
func (e *Environment) spanExporter(ctx context.Context) (sdktrace.SpanExporter, bool) {
	return exporterOf(e, tracesSignal,
		func() (sdktrace.SpanExporter, error) { return stdouttrace.New(stdouttrace.WithWriter(stdout())) },
		func() (sdktrace.SpanExporter, error) { return otlptracehttp.New(ctx) },
		func() (sdktrace.SpanExporter, error) { return otlptracegrpc.New(ctx) })
}

// metricExporter returns the exporter of metrics besides /metrics, if there is one.
func (e *Environment) metricExporter(ctx context.Context) (sdkmetric.Exporter, bool) {
	return exporterOf(e, metricsSignal,
		func() (sdkmetric.Exporter, error) { return stdoutmetric.New(stdoutmetric.WithWriter(stdout())) },
		func() (sdkmetric.Exporter, error) { return otlpmetrichttp.New(ctx) },
		func() (sdkmetric.Exporter, error) { return otlpmetricgrpc.New(ctx) })
}

// logExporter returns the exporter of log events, if there is one.
func (e *Environment) logExporter(ctx context.Context) (sdklog.Exporter, bool) {
	return exporterOf(e, logsSignal,
		func() (sdklog.Exporter, error) { return stdoutlog.New(stdoutlog.WithWriter(stdout())) },
		func() (sdklog.Exporter, error) { return otlploghttp.New(ctx) },
		func() (sdklog.Exporter, error) { return otlploggrpc.New(ctx) })
}
