package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	codepb "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Stats are the counters of an origin since the session was created, for all views together. A directory counts only
// removals.
type Stats struct {
	Connected int64 // connections opened, to any target
	Lost      int64 // connections closed
	Failovers int64 // changes of the active target

	Streams int64            // streams opened
	Ended   map[string]int64 // streams and failed attempts by reason: an End constant or a gRPC code

	// Types counts responses by type URL. The empty URL counts all types outside the protocol.
	Types map[string]TypeStats

	// Removals that need confirmation (B.15): Held counts those that became pending, Applied all that were applied.
	Held, Applied int64

	// Pending has the numbers of changes that wait now, by reason.
	Pending map[reconcile.Reason]int

	// Isolated is the number of subscriptions with streams of their own (B.48).
	Isolated int64

	// Dropped counts removals that an operator dropped, so that the resources were kept.
	Dropped int64

	// Audits counts completed audits ([Control.Audit]), Drifted the differences that they found.
	Audits, Drifted int64
}

// TypeStats are the counters of one type.
type TypeStats struct {
	Responses int64 // accepted responses
	Refused   int64 // responses answered by a NACK (B.9)
}

// Plus returns the sum of both counters.
func (s TypeStats) Plus(o TypeStats) TypeStats {
	return TypeStats{s.Responses + o.Responses, s.Refused + o.Refused}
}

// The reasons why streams end, in addition to gRPC codes such as UNAVAILABLE.
const (
	EndClosed     = "closed"       // closed by the origin without an error
	EndResync     = "resync"       // closed by the relay, to reopen it
	EndNotReading = "not_reading"  // closed by the relay: the origin does not read requests
	EndTimeout    = "open_timeout" // not opened in time
)

// An Isolation is a subscription that does not share the streams of its view, because the origin ends each stream that
// carries it, or names that are not requested, because a SotW request with them would be too large.
type Isolation struct {
	TypeURL string
	Names   []string // the first ten names and globs; "*" for the wildcard
	Count   int      // number of all names and globs
	Since   time.Time
	Err     error // with which the origin ended the last stream
}

// A Failure is an error and the time when it occurred.
type Failure struct {
	Err error
	At  time.Time
}

// A FailedAddress is a target from which the session failed over, or an address of its name that it no longer uses.
type FailedAddress struct {
	Target  string
	Address string // empty for the whole target
	Failure        // the last one, after which the session left the address
}

// namesListed limits the names that an Isolation and log lines list.
const namesListed = 10

// counters are the counters behind Stats. The zero value is ready to use.
type counters struct {
	reconcile.Counts
	isolated atomic.Int64 // isolated subscriptions of all views

	mu    sync.Mutex
	stats Stats // guarded by mu; the fields of Counts are unused
}

// update changes the counters under the lock.
func (c *counters) update(change func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stats.Types == nil {
		c.stats.Ended, c.stats.Types = make(map[string]int64), make(map[string]TypeStats)
	}
	change(&c.stats)
}

// countResponse counts a response that the relay accepted or refused.
func (c *counters) countResponse(typeURL string, refused bool) {
	if !wire.Known(typeURL) {
		typeURL = "" // an origin may send any number of unknown types
	}
	more := TypeStats{Responses: 1}
	if refused {
		more = TypeStats{Refused: 1}
	}
	c.update(func(s *Stats) { s.Types[typeURL] = s.Types[typeURL].Plus(more) })
}

// countStreamEnd counts a stream, or an attempt to open one, unless the relay no longer needed it.
func (c *counters) countStreamEnd(err error) {
	if reason := endReason(err); reason != "" {
		c.update(func(s *Stats) { s.Ended[reason]++ })
	}
}

// endReason returns an End constant or a gRPC code for the error of a stream; "" if the relay no longer needed it.
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

// snapshot returns a copy of the counters.
func (c *counters) snapshot() (s Stats) {
	c.update(func(counted *Stats) {
		s = *counted
		s.Ended, s.Types = maps.Clone(s.Ended), maps.Clone(s.Types)
	})
	s.Held, s.Pending = c.HeldTotal.Load(), c.Pending()
	s.Isolated = c.isolated.Load()
	s.Applied, s.Dropped = c.AppliedTotal.Load(), c.DroppedTotal.Load()
	return s
}

// Causes with which the relay itself closes a stream.
var (
	errResync      = errors.New("resync") // the relay reopens it
	errNotReading  = errors.New("the origin does not read")
	errOpenTimeout = fmt.Errorf("no stream within %v", openTimeout)
)
