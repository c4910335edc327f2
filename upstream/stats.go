package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"

	codepb "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Stats are the counters of an origin since it was opened, over all views. A directory has only those of removals.
type Stats struct {
	Connected int64 // connections that were opened, to any of the targets
	Lost      int64 // connections that ended
	Failovers int64 // changes from one target to another

	Streams int64            // that were opened
	Ended   map[string]int64 // of these and of attempts to open one, by reason: one of the constants below, or a gRPC code

	// Types counts responses by type URL. Those of types that are not of the protocol are under the empty one.
	Types map[string]TypeStats

	// Removals that the origin may not have meant (B.15). Held counts those that were held back, Applied all that were made.
	Held, Applied int64

	// Holding is the number of removals that are held back now.
	Holding int64

	// Discarded counts removals that an operator discarded: the resources were kept.
	Discarded int64

	// Audits counts comparisons of a view with a second stream (Control.Audit), Drifted the differences that they found.
	Audits, Drifted int64
}

// TypeStats count the responses of one type.
type TypeStats struct {
	Responses int64 // that were accepted
	Refused   int64 // that were rejected by a NACK (B.9)
}

// Plus returns the sums of both.
func (s TypeStats) Plus(o TypeStats) TypeStats {
	return TypeStats{s.Responses + o.Responses, s.Refused + o.Refused}
}

// The reasons for which streams end, beside the codes of gRPC statuses, such as UNAVAILABLE.
const (
	EndClosed     = "closed"       // by the origin, without an error
	EndResync     = "resync"       // by the relay, to ask for everything
	EndNotReading = "not_reading"  // by the relay: the origin does not read
	EndTimeout    = "open_timeout" // it could not be opened in time
)

// counters count Stats. The zero value is ready.
type counters struct {
	reconcile.Counts

	mu    sync.Mutex
	stats Stats // guarded by mu; without the counters of Counts
}

// count changes the counters.
func (c *counters) update(change func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stats.Types == nil {
		c.stats.Ended, c.stats.Types = make(map[string]int64), make(map[string]TypeStats)
	}
	change(&c.stats)
}

// answered counts a response, which the relay accepted or rejected.
func (c *counters) countResponse(typeURL string, refused bool) {
	if !wire.Known(typeURL) {
		typeURL = "" // an origin may invent any number of types
	}
	more := TypeStats{Responses: 1}
	if refused {
		more = TypeStats{Refused: 1}
	}
	c.update(func(s *Stats) { s.Types[typeURL] = s.Types[typeURL].Plus(more) })
}

// streamEnded counts a stream, or an attempt to open one, unless it ended because it is not needed any more.
func (c *counters) countStreamEnd(err error) {
	if reason := endReason(err); reason != "" {
		c.update(func(s *Stats) { s.Ended[reason]++ })
	}
}

func endReason(err error) string {
	switch {
	case errors.Is(err, context.Canceled):
		return ""
	case errors.Is(err, errResync):
		return EndResync
	case errors.Is(err, errNotReading):
		return EndNotReading
	case errors.Is(err, errOpenTimeout):
		return EndTimeout
	case errors.Is(err, io.EOF):
		return EndClosed
	}
	return codepb.Code(status.Code(err)).String()
}

// read returns the counters.
func (c *counters) snapshot() (s Stats) {
	c.update(func(counted *Stats) {
		s = *counted
		s.Ended, s.Types = maps.Clone(s.Ended), maps.Clone(s.Types)
	})
	s.Held, s.Applied, s.Holding, s.Discarded = c.Held.Load(), c.Applied.Load(), c.Holding.Load(), c.Discarded.Load()
	return s
}

// Errors with which the relay ends a stream.
var (
	errResync      = errors.New("resync") // to open it anew
	errNotReading  = errors.New("the origin does not read")
	errOpenTimeout = fmt.Errorf("no stream within %v", openTimeout)
)
