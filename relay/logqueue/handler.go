package logqueue

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"time"
)

// audit is the key of a context whose records are of the class Audit.
type audit struct{}

// WithAudit returns a context whose records are of the class Audit.
func WithAudit(ctx context.Context) context.Context { return context.WithValue(ctx, audit{}, true) }

// classOf returns the class of a record.
func classOf(ctx context.Context, level slog.Level) Class {
	switch {
	case ctx.Value(audit{}) != nil:
		return Audit
	case level >= slog.LevelError:
		return Error
	case level >= slog.LevelWarn:
		return Warn
	case level >= slog.LevelInfo:
		return Info
	default:
		return Debug
	}
}

// Writer returns a writer that adds each write to the queue, as a record of a class. It never fails.
func (q *Queue) Writer(c Class) io.Writer { return part{q, c} }

// A part is a writer that adds what is written to a queue, as records of a class.
type part struct {
	queue *Queue
	class Class
}

// Write implements io.Writer. It never fails.
func (p part) Write(record []byte) (int, error) {
	p.queue.Add(p.class, record)
	return len(record), nil
}

// A handler is a slog.Handler that writes to a queue. It has a formatting handler for each class, because such a handler
// does not pass the level of a record to its writer.
type handler [classes]slog.Handler

// NewHandler returns a queue in front of an output, and a handler that writes to it. format returns a handler that
// formats records. The number of dropped records is a record itself.
func NewHandler(to io.Writer, format func(io.Writer) slog.Handler) (*Queue, slog.Handler) {
	var line bytes.Buffer // used by the writer of the queue only
	reports := format(&line)
	q := New(to, func(dropped Counts, since time.Time) []byte {
		line.Reset()
		record := slog.NewRecord(time.Now(), slog.LevelWarn, "log records dropped: the log was not read", 0)
		dropped.Each(func(c Class, n int64) { record.AddAttrs(slog.Int64(c.String(), n)) })
		record.AddAttrs(slog.Time("since", since))
		_ = reports.Handle(context.Background(), record) // a buffer does not fail
		return line.Bytes()
	})
	var h handler
	for c := range h {
		h[c] = format(q.Writer(Class(c)))
	}
	return q, &h
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h[Debug].Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	return h[classOf(ctx, r.Level)].Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.each(func(of slog.Handler) slog.Handler { return of.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return h.each(func(of slog.Handler) slog.Handler { return of.WithGroup(name) })
}

// each returns a handler with f applied to the handler of each class.
func (h *handler) each(f func(slog.Handler) slog.Handler) *handler {
	var out handler
	for c, of := range h {
		out[c] = f(of)
	}
	return &out
}
