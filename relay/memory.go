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

// A memory is the memory use of the process, as Go counts it for GOMEMLIMIT, and that limit, in bytes. collections is the
// number of garbage collections so far.
type memory struct{ used, limit, collections uint64 }

// readMemory returns the current memory use.
func readMemory() memory {
	s := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/gomemlimit:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(s)
	return memory{
		used: s[0].Value.Uint64() - s[1].Value.Uint64(), limit: s[2].Value.Uint64(), collections: s[3].Value.Uint64(),
	}
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

// defaultConnections is the default of TENDER_MAX_CONNECTIONS.
const defaultConnections = 50_000

// usualConnections is twice the number of clients that deploy/docs/capacity.md plans for a relay.
const usualConnections = 10_000

// connectionsWithin returns how many client connections the relay accepts with a limit of open files. The rest of the files
// is kept, so that clients cannot cut the relay off from its origins and its disk. It logs a warning if the relay accepts
// fewer than maxConnections. There is none if these are the default and the limit suffices for the usual number.
func connectionsWithin(limit uint64, maxConnections int, log *slog.Logger) int {
	need := uint64(maxConnections) + otherFiles
	if limit >= need {
		return maxConnections
	}
	accepted := int(limit - min(otherFiles, limit/2))
	level := slog.LevelWarn
	if maxConnections == defaultConnections && accepted >= usualConnections {
		level = slog.LevelDebug
	}
	log.Log(context.Background(), level, "limit of open files is too low for TENDER_MAX_CONNECTIONS; raise it (ulimit -n, LimitNOFILE)",
		slog.Uint64("open_files", limit), slog.Int("max_connections", maxConnections), slog.Uint64("needed", need),
		slog.Int("accepted", accepted))
	return accepted
}

// watchMemory measures memory use until ctx ends. It logs when memory is nearly full, and when it no longer is. It calls
// release, unless it is nil, to return the memory of a burst to the operating system.
func watchMemory(ctx context.Context, read func() memory, release func(), log *slog.Logger) {
	tick := time.NewTicker(memoryInterval)
	defer tick.Stop()
	warning, burst := memoryWarning{log: log}, burstMemory{}
	for {
		m := read()
		warning.update(m)
		if began := time.Now(); release != nil && burst.due(m, began) {
			release()
			burst.released(m, read(), time.Since(began))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// A memoryWarning logs when memory use reaches memoryHigh, and when it falls below memoryLow after that.
type memoryWarning struct {
	log    *slog.Logger
	warned bool
}

func (w *memoryWarning) update(m memory) {
	switch at := m.utilization(); {
	case at >= memoryHigh && !w.warned:
		w.log.Warn("memory use is close to GOMEMLIMIT; garbage collection takes more CPU",
			slog.Uint64("used_bytes", m.used), slog.Uint64("limit_bytes", m.limit))
		w.warned = true
	case at < memoryLow && w.warned:
		w.log.Info("memory use is no longer close to GOMEMLIMIT",
			slog.Uint64("used_bytes", m.used), slog.Uint64("limit_bytes", m.limit))
		w.warned = false
	}
}

// When memory is returned to the operating system. A burst leaves buffers in pools, which are freed by the second
// collection, and stacks of goroutines, of which each collection returns a half. So releases follow each other while they
// return memory.
const (
	releaseAfter = 10 * time.Second // without a garbage collection
	releaseAgain = 30 * time.Second // the same, after a release that has returned less than a tenth
	releaseShare = 100              // the pause after a release, as a multiple of its duration
)

// burstMemory decides when to return memory to the operating system (B.35). The Go runtime collects when the heap has
// doubled. After a burst the heap may take hours to double, and the runtime collects after two minutes; then it keeps a
// tenth more than the burst has needed. A process in which garbage is collected often needs no release: its next heap is
// as small as its live objects, and the runtime returns the rest.
type burstMemory struct {
	collections uint64        // at the last measurement
	since       time.Time     // when that number was first measured
	after       time.Duration // without a collection, after which memory is returned
	notBefore   time.Time     // limits the cost of releases
}

// due reports whether memory is to be returned. The start of the process is a burst, too.
func (b *burstMemory) due(m memory, now time.Time) bool {
	if b.since.IsZero() {
		return true
	}
	if m.collections != b.collections {
		b.collections, b.since, b.after = m.collections, now, releaseAfter
	}
	return now.Sub(b.since) >= b.after && !now.Before(b.notBefore)
}

// released records a release that took so long, with the memory use before and after it.
func (b *burstMemory) released(before, now memory, took time.Duration) {
	b.collections, b.since, b.after = now.collections, time.Now(), releaseAfter
	if now.used > before.used/10*9 {
		b.after = releaseAgain
	}
	b.notBefore = b.since.Add(releaseShare * took)
}
