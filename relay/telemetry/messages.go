package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/logqueue"
)

// LogMessages logs the messages of the OpenTelemetry SDK and its exporters, at most one a second after a burst of ten. It
// applies to the whole process.
func LogMessages(log *slog.Logger) {
	limit := guard.NewLogLimiter(1, 10)
	receive(func(level slog.Level, text string) {
		if log.Enabled(context.Background(), level) && limit.Allow() {
			log.LogAttrs(context.Background(), level, "message of OpenTelemetry", slog.String("detail", text), limit.Suppressed())
		}
	})
}

// receive passes the messages of the SDK to a function, which may be called from any goroutine.
func receive(receiver func(level slog.Level, text string)) {
	to := func(level slog.Level, text string) { receiver(level, withoutHeaders(text)) }
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { to(slog.LevelWarn, err.Error()) }))
	otel.SetLogger(logr.New(sink{to, nil}))
}

// report passes an error on as the SDK does.
func report(err error) { otel.Handle(err) }

// A sink is a logr.LogSink for the messages of the SDK.
type sink struct {
	to     func(level slog.Level, text string)
	values []any
}

// Verbosity of the messages of the SDK (otel.SetLogger): warnings, and what it otherwise tells.
const sdkWarning = 1

// Init implements logr.LogSink.
func (sink) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink.
func (sink) Enabled(int) bool { return true }

// Info implements logr.LogSink.
func (s sink) Info(verbosity int, text string, values ...any) {
	level := slog.LevelDebug
	if verbosity <= sdkWarning {
		level = slog.LevelWarn
	}
	s.to(level, s.line(text, values))
}

// Error implements logr.LogSink.
func (s sink) Error(err error, text string, values ...any) {
	s.to(slog.LevelWarn, s.line(fmt.Sprintf("%s: %v", text, err), values))
}

// WithValues implements logr.LogSink.
func (s sink) WithValues(values ...any) logr.LogSink {
	return sink{s.to, slices.Concat(s.values, values)}
}

// WithName implements logr.LogSink.
func (s sink) WithName(string) logr.LogSink { return s }

// withoutHeaders returns a message, or a constant one if it is about headers. The SDK quotes invalid headers, which may be
// tokens.
func withoutHeaders(text string) string {
	if strings.Contains(strings.ToLower(text), "header") {
		return "invalid headers in OTEL_EXPORTER_OTLP_HEADERS or OTEL_EXPORTER_OTLP_…_HEADERS; they are not shown"
	}
	return text
}

// line returns a message with its values.
func (s sink) line(text string, values []any) string {
	all := slices.Concat(s.values, values)
	for i := 0; i+1 < len(all); i += 2 {
		text += fmt.Sprintf(" %v=%v", all[i], all[i+1])
	}
	return text
}

// Check returns a line for each problem of the OpenTelemetry variables of the process: what is ignored, and what the SDK
// says when the exporters are created. It does not connect to a collector. It replaces the receiver of LogMessages.
func Check(ctx context.Context) []string {
	e := ReadEnvironment()
	var mu sync.Mutex
	lines := slices.Clone(e.Ignored)
	receive(func(level slog.Level, text string) {
		mu.Lock()
		defer mu.Unlock()
		if line := "OpenTelemetry: " + text; level >= slog.LevelWarn && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	})
	cfg := Config{Environment: e}
	tracer, err := NewTracer(ctx, nil, cfg)
	events, eventsErr := NewEvents(ctx, cfg)
	if to, ok := e.metricExporter(ctx); ok {
		_ = to.Shutdown(ctx)
	}
	_ = tracer.Shutdown(ctx) // nothing waits for an export
	_ = events.Shutdown(ctx)
	receive(func(slog.Level, string) {})
	mu.Lock()
	defer mu.Unlock()
	if err := errors.Join(err, eventsErr); err != nil {
		lines = append(lines, err.Error())
	}
	return lines
}

// stdout returns a writer to the standard output. It does not block if nobody reads it: what does not fit in its queue is
// dropped and reported.
func stdout() io.Writer { return stdoutQueue().Writer(logqueue.Info) }

var stdoutQueue = sync.OnceValue(func() *logqueue.Queue {
	return logqueue.New(os.Stdout, func(dropped logqueue.Counts, since time.Time) []byte {
		report(fmt.Errorf("%d writes of exporters dropped since %s: stdout was not read", dropped[logqueue.Info],
			since.Format(time.RFC3339)))
		return nil
	})
})

// FlushConsole returns when the exporters' output was written to stdout, or when ctx ends.
func FlushConsole(ctx context.Context) {
	within := time.Duration(0)
	if end, ok := ctx.Deadline(); ok {
		within = time.Until(end)
	}
	stdoutQueue().Flush(within)
}
