package relay

import (
	"context"
	"log/slog"
	"math"
	"runtime/metrics"
	"time"

	"github.com/xdstender/tender/downstream/guard"
)

// Thresholds of the memory warning (B.35).
const (
	memoryHigh     = 0.8              // share of the limit at which the relay warns
	memoryLow      = 0.7              // share below which it may warn again
	memoryInterval = 10 * time.Second // between two measurements
)

// A memory is the memory use of the process, as Go counts it for GOMEMLIMIT, and that limit, in bytes.
type memory struct{ used, limit uint64 }

// readMemory returns the current memory use.
func readMemory() memory {
	s := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/gomemlimit:bytes"},
	}
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

// unlimitedBuffers is the limit of buffered client requests without a limit of memory, in bytes.
const unlimitedBuffers = 1 << 30

// bufferedBytes returns the limit of buffered client requests (B.35): a fourth of the limit of memory. One client may use
// a fourth of it, and must be able to send the largest request.
func bufferedBytes(m memory, maxRequest int) int {
	if !m.limited() {
		return max(unlimitedBuffers, guard.UnreadOfPeer*maxRequest)
	}
	return max(int(m.limit/4), guard.UnreadOfPeer*maxRequest)
}

// otherFiles is how many files the relay opens besides client connections: listeners, connections to origins, snapshots,
// credentials and metrics.
const otherFiles = 128

// warnFileLimit logs a warning if the process may not open as many files as TENDER_MAX_CONNECTIONS allows connections.
// Without files, the relay accepts no client.
func warnFileLimit(maxConnections int, limit uint64, log *slog.Logger) {
	if need := uint64(maxConnections) + otherFiles; limit < need {
		log.Warn("limit of open files is too low for TENDER_MAX_CONNECTIONS; raise it (ulimit -n, LimitNOFILE)",
			slog.Uint64("open_files", limit), slog.Int("max_connections", maxConnections), slog.Uint64("needed", need))
	}
}

// watchMemory logs a warning when memory use reaches memoryHigh, and its end when it falls below memoryLow. It returns when
// ctx ends.
func watchMemory(ctx context.Context, read func() memory, log *slog.Logger) {
	tick := time.NewTicker(memoryInterval)
	defer tick.Stop()
	warned := false
	for m := read(); m.limited(); m = read() {
		switch at := m.utilization(); {
		case at >= memoryHigh && !warned:
			log.Warn("memory use is close to GOMEMLIMIT; garbage collection takes more CPU",
				slog.Uint64("used_bytes", m.used), slog.Uint64("limit_bytes", m.limit))
			warned = true
		case at < memoryLow && warned:
			log.Info("memory use is no longer close to GOMEMLIMIT",
				slog.Uint64("used_bytes", m.used), slog.Uint64("limit_bytes", m.limit))
			warned = false
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
