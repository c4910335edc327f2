package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/xdstender/tender/relay/logqueue"
)

// newLogger returns a logger that writes to w in format, "json" or "text". If format is empty, it writes text to a
// terminal, and JSON otherwise.
func newLogger(w io.Writer, level slog.Leveler, format string) *slog.Logger {
	return slog.New(formatter(level, format, isTerminal(w))(w))
}

// formatter returns a function that returns the handler of newLogger for a writer.
func formatter(level slog.Leveler, format string, terminal bool) func(io.Writer) slog.Handler {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	return func(w io.Writer) slog.Handler {
		if format == "text" || format == "" && terminal {
			return slog.NewTextHandler(w, options)
		}
		return slog.NewJSONHandler(w, options)
	}
}

// newQueuedLogger returns a logger as newLogger, and the queue between it and w.
func newQueuedLogger(w io.Writer, level slog.Leveler, format string) (*slog.Logger, *logqueue.Queue) {
	queue, handler := logqueue.NewHandler(w, formatter(level, format, isTerminal(w)))
	return slog.New(handler), queue
}

// lastWordsTime bounds how long the end of the process waits for a reader of its log.
const lastWordsTime = 2 * time.Second

// lastWords writes the error of tender serve behind its log, and waits for the output at most lastWordsTime. A write to
// an output that nobody reads would keep the process alive.
type lastWords struct{ *logqueue.Queue }

// Write implements io.Writer.
func (w lastWords) Write(text []byte) (int, error) {
	w.Add(logqueue.Audit, text)
	w.Flush(lastWordsTime)
	return len(text), nil
}

// logLibraries makes the libraries that write to stderr use the log: the package log, and gRPC, whose variables
// GRPC_GO_LOG_… still apply. It must be called before gRPC is used.
func logLibraries(log *slog.Logger, severity string) {
	slog.SetDefault(log) // also redirects the package log
	var severities [3]io.Writer
	for i, name := range []string{"info", "warning", "error"} {
		severities[i] = io.Discard
		if strings.EqualFold(severity, name) || severity == "" && name == "error" {
			severities[i] = grpcLog{log}
		}
	}
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(severities[0], severities[1], severities[2]))
}

// A grpcLog writes lines of gRPC to a log. A line begins with the time and its severity.
type grpcLog struct{ log *slog.Logger }

// Write implements io.Writer.
func (g grpcLog) Write(line []byte) (int, error) {
	begin, text, _ := strings.Cut(strings.TrimSpace(string(line)), ": ")
	severity := begin[strings.LastIndex(begin, " ")+1:]
	level, known := map[string]slog.Level{"INFO": slog.LevelInfo, "WARNING": slog.LevelWarn}[severity]
	if !known {
		level = slog.LevelError
	}
	g.log.Log(context.Background(), level, "message of gRPC", slog.String("detail", text))
	return len(line), nil
}

// readable is a ReplaceAttr that writes durations such as "1.5s". The JSON handler of slog would write nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String())
	}
	return a
}

// isTerminal reports whether w is a terminal or another character device.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
