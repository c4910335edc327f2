package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/xdstender/tender/relay/relaytest/logs"
)

// setEnvironment sets the OpenTelemetry variables of the process to exactly those in env, each NAME=value without OTEL_.
func setEnvironment(t *testing.T, env ...string) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv("OTEL_"+name, value)
	}
}

// TestB43_InvalidVariablesAreIgnored checks that no value of an OpenTelemetry variable prevents the start: an invalid one
// counts as not set, and is named.
func TestB43_InvalidVariablesAreIgnored(t *testing.T) {
	const endpoint = "EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"
	for _, tt := range []struct {
		env        []string
		exporters  string // of traces, metrics and logs
		attributes string
		ignored    []string // a part of each line
	}{
		{nil, "  ", "", nil},
		{[]string{endpoint}, "http/protobuf http/protobuf http/protobuf", "", nil},
		{[]string{endpoint, "EXPORTER_OTLP_PROTOCOL=grpc", "EXPORTER_OTLP_LOGS_PROTOCOL=HTTP/protobuf"}, "grpc grpc http/protobuf", "", nil},
		{[]string{"TRACES_EXPORTER=OTLP", "METRICS_EXPORTER=console", "LOGS_EXPORTER=none"}, "http/protobuf console ", "", nil},
		{[]string{endpoint, "METRICS_EXPORTER=prometheus"}, "http/protobuf  http/protobuf", "", nil},
		{[]string{"TRACES_EXPORTER=carrier-pigeon"}, "  ", "", []string{`OTEL_TRACES_EXPORTER="carrier-pigeon": use one of console, none, otlp; the value is ignored`}},
		{[]string{endpoint, "TRACES_EXPORTER=prometheus", "METRICS_EXPORTER=a,b"}, "http/protobuf http/protobuf http/protobuf", "",
			[]string{"OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"}},
		{[]string{endpoint, "EXPORTER_OTLP_PROTOCOL=smoke", "EXPORTER_OTLP_TRACES_PROTOCOL=mirrors"}, "http/protobuf http/protobuf http/protobuf", "",
			[]string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"}},
		{[]string{endpoint, "EXPORTER_OTLP_PROTOCOL=smoke", "EXPORTER_OTLP_TRACES_PROTOCOL=mirrors", "EXPORTER_OTLP_METRICS_PROTOCOL=grpc"},
			"http/protobuf grpc http/protobuf", "", []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"}},
		{[]string{"RESOURCE_ATTRIBUTES=a=b,c=d%20e", "SERVICE_NAME=edge"}, "  ", "a=b c=d e service.name=edge", nil},
		{[]string{"RESOURCE_ATTRIBUTES=a=b,", "SERVICE_NAME=edge"}, "  ", "service.name=edge", []string{`OTEL_RESOURCE_ATTRIBUTES="a=b,": "" is not key=value`}},
		{[]string{"RESOURCE_ATTRIBUTES=a=%zz"}, "  ", "", []string{"OTEL_RESOURCE_ATTRIBUTES"}},
		{[]string{"RESOURCE_ATTRIBUTES==b"}, "  ", "", []string{"OTEL_RESOURCE_ATTRIBUTES"}},
		{[]string{"SDK_DISABLED=TRUE", endpoint, "RESOURCE_ATTRIBUTES=a", "TRACES_EXPORTER=x", "EXPORTER_OTLP_PROTOCOL=y"}, "  ", "", nil},
		{[]string{"SDK_DISABLED=yes", endpoint}, "http/protobuf http/protobuf http/protobuf", "", []string{`OTEL_SDK_DISABLED="yes": use true or false`}},
	} {
		t.Run(strings.Join(tt.env, " "), func(t *testing.T) {
			setEnvironment(t, tt.env...)
			e := ReadEnvironment()
			var attributes []string
			for _, a := range e.attributes {
				attributes = append(attributes, string(a.Key)+"="+a.Value.AsString())
			}
			exporters := []string{string(e.exporters[tracesSignal]), string(e.exporters[metricsSignal]), string(e.exporters[logsSignal])}
			if strings.Join(exporters, " ") != tt.exporters || strings.Join(attributes, " ") != tt.attributes {
				t.Errorf("exporters %q, attributes %q, want %q, %q", exporters, attributes, tt.exporters, tt.attributes)
			}
			if !slices.EqualFunc(e.Ignored, tt.ignored, strings.Contains) {
				t.Errorf("ignored %q, want %q", e.Ignored, tt.ignored)
			}
			// Nothing is listening, and nothing waits for a collector.
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			cfg := Config{Read: full, Environment: e}
			m, err := New(t.Context(), cfg)
			tracer, tracerErr := NewTracer(t.Context(), nil, cfg)
			events, eventsErr := NewEvents(t.Context(), cfg)
			if err := errors.Join(err, tracerErr, eventsErr); err != nil {
				t.Fatalf("the relay would not start: %v", err)
			}
			_ = m.Shutdown(ended)
			if err := errors.Join(tracer.Shutdown(t.Context()), events.Shutdown(t.Context())); err != nil {
				t.Errorf("Shutdown: %v", err)
			}
			if lines := Check(t.Context()); len(lines) != len(tt.ignored) || !slices.Equal(lines, e.Ignored) {
				t.Errorf("tender check prints %q, want %q", lines, e.Ignored)
			}
		})
	}
}

// TestB43_CheckShowsWhatTheSDKSays checks that tender check shows the messages about variables that only the SDK reads, and
// no token.
func TestB43_CheckShowsWhatTheSDKSays(t *testing.T) {
	setEnvironment(t, "EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "TRACES_SAMPLER=dice", "EXPORTER_OTLP_TIMEOUT=soon", "EXPORTER_OTLP_HEADERS=secret-token")
	lines := strings.Join(Check(t.Context()), "\n")
	for _, want := range []string{"dice", "soon", "OTEL_EXPORTER_OTLP_HEADERS"} {
		if !strings.Contains(lines, want) {
			t.Errorf("no line has %q:\n%s", want, lines)
		}
	}
	if strings.Contains(lines, "secret-token") {
		t.Errorf("the lines have a token:\n%s", lines)
	}
}

// TestB43_MessagesOfTheSDK checks that messages of the SDK are records of the log, and are rate-limited.
func TestB43_MessagesOfTheSDK(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Log
		LogMessages(slog.New(slog.NewJSONHandler(&log, nil)))
		defer receive(func(slog.Level, string) {})
		for range 1000 {
			otel.Handle(errors.New("collector unreachable"))
		}
		time.Sleep(time.Minute)
		otel.Handle(errors.New("collector unreachable"))
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 11 || !strings.Contains(lines[10], `"suppressed":990`) ||
			!strings.Contains(lines[0], `"level":"WARN","msg":"message of OpenTelemetry","detail":"collector unreachable"`) {
			t.Errorf("the log has %d records:\n%s\n...\n%s\nwant 11, the last with 990 suppressed", len(lines), lines[0], lines[len(lines)-1])
		}
	})
}
