package guard

import (
	"log/slog"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// A LogLimiter rate-limits a warning that clients can cause at will, and logs how many were suppressed.
type LogLimiter struct {
	limit      *rate.Limiter
	suppressed atomic.Int64
}

// NewLogLimiter returns a limiter of so many lines a second, with bursts.
func NewLogLimiter(perSecond rate.Limit, burst int) LogLimiter {
	return LogLimiter{limit: rate.NewLimiter(perSecond, burst)}
}

// Allow reports whether a line may be logged now; if not, it counts the line as suppressed.
func (l *LogLimiter) Allow() bool {
	if l.limit.Allow() {
		return true
	}
	l.suppressed.Add(1)
	return false
}

// Suppressed returns an attribute for the next line, the number of lines that were suppressed before it.
func (l *LogLimiter) Suppressed() slog.Attr { return slog.Int64("suppressed", l.suppressed.Swap(0)) }
