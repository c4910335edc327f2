package relay

import (
	"context"
	"log/slog"
	"math"
	"runtime/metrics"
	"time"
)

// Memory use, as a part of the limit, at which the relay warns, and below which it may warn again; and the time between
// two measurements (B.35).
const (
	memoryHigh     = 0.8
	memoryLow      = 0.7
	memoryInterval = 10 * time.Second
)

// A memory is the memory of the process as Go counts it for GOMEMLIMIT, and that limit, in bytes.
type memory struct{ used, limit uint64 }

// readMemory returns the present memory use.
func readMemory() memory {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/gomemlimit:bytes"}}
	metrics.Read(s)
	return memory{used: s[0].Value.Uint64() - s[1].Value.Uint64(), limit: s[2].Value.Uint64()}
}

// limited reports whether there is a limit.
func (m memory) limited() bool { return m.limit < math.MaxInt64 }

// utilization returns the memory use as a fraction of the limit, or 0 without a limit.
func (m memory) utilization() float64 {
	if !m.limited() {
		return 0
	}
	return float64(m.used) / float64(m.limit)
}

// watchMemory warns, until ctx ends, when memory use reaches memoryHigh: once, until it was below memoryLow.
func watchMemory(ctx context.Context, read func() memory, log *slog.Logger) {
	tick := time.NewTicker(memoryInterval)
	defer tick.Stop()
	said := false
	for m := read(); m.limited(); m = read() {
		switch at := m.utilization(); {
		case at >= memoryHigh && !said:
			log.Warn("memory use is close to GOMEMLIMIT; garbage collection takes more CPU",
				slog.Uint64("used_bytes", m.used), slog.Uint64("limit_bytes", m.limit))
			said = true
		case at < memoryLow:
			said = false
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
