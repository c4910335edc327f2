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

// Stats are what was done about an origin since it was opened, over all views. Of a
// directory, only what is said of deletions is not zero.
type Stats struct {
	Connected int64 // connections that came to be, to any of the targets
	Lost      int64 // of these, those that ended
	Failovers int64 // changes from one target to another

	Streams int64            // that were opened
	Ended   map[string]int64 // of these and of attempts to open one, by reason: see EndReasons

	// Types counts responses by type URL; under the empty one, those of types that the
	// protocol does not know.
	Types map[string]TypeStats

	// Removals that the origin may not have meant (B.15). Held counts those that were held
	// back at first, Applied all that were carried out.
	Held, Applied int64

	// Holding is how many are held back now.
	Holding int64

	// Discarded counts those that an operator had discarded: the resources were kept.
	Discarded int64

	// Audits counts the comparisons of a view with a second stream (Control.Audit), and
	// Drifted the resources that they found to be another than the view holds.
	Audits, Drifted int64
}

// TypeStats are what an origin sent of one type.
type TypeStats struct {
	Responses int64 // that were taken
	Refused   int64 // that were refused: the origin was told so, by a NACK (B.9)
}

// Plus returns the sums of both.
func (s TypeStats) Plus(o TypeStats) TypeStats {
	return TypeStats{s.Responses + o.Responses, s.Refused + o.Refused}
}

// EndReasons are the reasons for which streams end beside the codes of gRPC's statuses,
// such as UNAVAILABLE, by which all others go.
const (
	EndClosed     = "closed"       // by the origin, as it should be
	EndResync     = "resync"       // by the relay, to ask for everything
	EndNotReading = "not_reading"  // by the relay: the origin does not read
	EndTimeout    = "open_timeout" // it could not be opened in time
)

// counters are those of Stats. The zero value is ready.
type counters struct {
	reconcile.Counts

	mu    sync.Mutex
	stats Stats // guarded by mu; without what Counts has
}

// count has a function change the counters.
func (c *counters) count(change func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stats.Types == nil {
		c.stats.Ended, c.stats.Types = make(map[string]int64), make(map[string]TypeStats)
	}
	change(&c.stats)
}

// answered counts a response, which the relay accepted or rejected.
func (c *counters) answered(typeURL string, refused bool) {
	if !wire.Known(typeURL) {
		typeURL = "" // an origin may invent any number of types
	}
	more := TypeStats{Responses: 1}
	if refused {
		more = TypeStats{Refused: 1}
	}
	c.count(func(s *Stats) { s.Types[typeURL] = s.Types[typeURL].Plus(more) })
}

// streamEnded counts a stream, or an attempt to open one, unless it ended because it is not needed any more.
func (c *counters) streamEnded(err error) {
	if reason := endReason(err); reason != "" {
		c.count(func(s *Stats) { s.Ended[reason]++ })
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
func (c *counters) read() (s Stats) {
	c.count(func(counted *Stats) {
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
