package downstream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Limit is a bound on what clients may ask for (B.35). It prints as the variable that
// sets it.
type Limit int

// The limits of a server and of what stands behind it.
const (
	LimitStreams     Limit = iota // open streams and held polls
	LimitNames                    // names of a stream
	LimitNameBytes                // length of a name or type URL
	LimitRequest                  // size of a request; gRPC itself tells the client
	LimitTypes                    // types of a view
	LimitGlobs                    // globs of a stream
	LimitGroupGlobs               // globs that the clients of a group follow
	LimitGroups                   // node groups
	LimitPeerGroups               // node groups that one peer has founded
	LimitOriginNames              // names that clients want of an origin

	LimitNodeBytes       // size of a Node
	LimitConnections     // open connections
	LimitPeerConnections // of one peer
	LimitUnread          // bytes of requests that are not read or not whole
	LimitFrames          // frames a second; counted when they begin to be read later
	limits
)

var limitNames = [limits]string{
	"TENDER_MAX_STREAMS", "TENDER_MAX_NAMES", "TENDER_MAX_NAME_BYTES", "TENDER_MAX_REQUEST_BYTES", "TENDER_MAX_TYPES",
	"TENDER_MAX_GLOBS", "TENDER_MAX_GROUP_GLOBS", "TENDER_MAX_GROUPS", "TENDER_MAX_PEER_GROUPS",
	"TENDER_MAX_ORIGIN_NAMES", "TENDER_MAX_NODE_BYTES", "TENDER_MAX_CONNECTIONS", "TENDER_MAX_PEER_CONNECTIONS",
	"TENDER_MAX_UNREAD_BYTES", "TENDER_MAX_FRAME_RATE",
}

func (l Limit) String() string { return limitNames[l] }

// An Ending is why a stream has ended.
type Ending int

// The ways in which streams end.
const (
	EndedByClient Ending = iota // the client left, or its connection broke
	EndedDrained                // the server drains
	EndedAged                   // the connection was old enough
	EndedStalled                // the client did not read for SendStall
	EndedSilent                 // no request came within FirstRequestTimeout
	EndedCold                   // nothing is known, and the origin is not there
	EndedRefused                // a limit was reached: see Stats.Refused
	EndedInvalid                // a request that cannot be
	EndedReturn                 // the client was told to connect again: it fell too far behind, or its node changed
	EndedDenied                 // the client may not do what it did: see Stats.Denied
	EndedChain                  // the client is a relay in a circle, or one too many in a row
	EndedOther                  // anything else, such as a lost load report's origin
	endings
)

var endingNames = [endings]string{
	"client", "drained", "aged", "stalled", "silent", "cold", "refused", "invalid", "return", "denied", "chain", "other",
}

// String returns a word for the ending, as it may stand in a metric.
func (e Ending) String() string { return endingNames[e] }

// An ending is an error that ends a stream, with what the client is told. It is a gRPC
// status.
type endError struct {
	why    Ending
	limit  Limit  // of EndedRefused
	denial Denial // of EndedDenied
	status *status.Status
}

func (e *endError) Error() string              { return e.status.String() }
func (e *endError) GRPCStatus() *status.Status { return e.status }

func Ended(why Ending, code codes.Code, format string, args ...any) error {
	return &endError{why: why, status: status.Newf(code, format, args...)}
}

// Exceeds returns the error of a client that wants more than a limit allows: its
// message says what, and ends with the name of the variable.
func Exceeds(l Limit, format string, args ...any) error {
	return ExceedsAs(l, codes.ResourceExhausted, format, args...)
}

// LimitOf returns the limit that an error of Exceeds is about, and whether it is one.
func LimitOf(err error) (Limit, bool) {
	e, ok := errors.AsType[*endError](err)
	if !ok || e.why != EndedRefused {
		return 0, false
	}
	return e.limit, true
}

func ExceedsAs(l Limit, code codes.Code, format string, args ...any) error {
	return &endError{why: EndedRefused, limit: l, status: status.New(code, fmt.Sprintf(format, args...)+" ("+l.String()+")")}
}

// told returns what a client is told of how its stream ended.
func Status(err error) error {
	if e, ok := errors.AsType[*endError](err); ok {
		return e.status.Err()
	}
	return err
}

// endingOf returns why a stream ended with an error.
func endingOf(err error) Ending {
	if e, ok := errors.AsType[*endError](err); ok {
		return e.why
	}
	switch code := status.Code(err); {
	case err == nil, code == codes.Canceled, errors.Is(err, context.Canceled):
		return EndedByClient
	case code == codes.InvalidArgument:
		return EndedInvalid
	case code == codes.FailedPrecondition:
		return EndedChain
	default:
		return EndedOther
	}
}

// Stats are what a server has done since it began, and what it does now.
type Stats struct {
	Connections int // of clients, that are open now

	// Unread is how many bytes of [Config.MaxUnreadBytes] connections claim for requests that are not
	// whole or not read.
	Unread int64

	Streams  int   // open now, held polls and streams of load reports included
	Accepted int64 // since the server began, likewise

	// Turns counts how often a stream was looked at because something that it may want
	// has changed, or was asked for; IdleTurns those in which nothing had to be sent.
	Turns, IdleTurns int64

	Waiting int              // first responses that wait for their turn now
	Ended   map[Ending]int64 // streams, by why they ended
	Refused map[Limit]int64  // connections, streams and polls, by the limit that they ran into

	// Denied counts what clients tried that they may not do. For names and Secrets, the stream may
	// go on.
	Denied map[Denial]int64

	// Coalesced counts changes that came to a stream that was still to be told of an
	// earlier one, or whose client had not answered yet: it is told of all of them at once.
	Coalesced int64

	// Throttled counts requests that were read late, since their stream sent more of
	// them than allowed.
	Throttled int64
}

// counters are those of Stats that only grow.
type Counters struct {
	ended     [endings]atomic.Int64
	refused   [limits]atomic.Int64
	denied    [denials]atomic.Int64
	coalesced atomic.Int64
	throttled atomic.Int64
}

// streamEnded counts a stream that ended with an error, or nil.
func (c *Counters) StreamEnded(err error) {
	c.ended[endingOf(err)].Add(1)
	c.Rejected(err)
}

// turnedAway counts an error that says that a limit was reached, or that the client may not
// do this.
func (c *Counters) Rejected(err error) {
	if e, ok := errors.AsType[*endError](err); ok && e.why == EndedRefused {
		c.refused[e.limit].Add(1)
	}
	if d, is := DenialOf(err); is {
		c.denied[d].Add(1)
	}
}

// Stats returns the counters of the server.
func (s *Server) Stats() Stats {
	stats := Stats{
		Connections: s.connections.count(),
		Unread:      s.connections.claimed(),

		Streams:   s.Streams(),
		Accepted:  int64(s.accepted.Load()),
		Waiting:   s.queue.waiting() + int(s.slots.waiting.Load()),
		Ended:     make(map[Ending]int64, endings),
		Refused:   make(map[Limit]int64, limits),
		Denied:    make(map[Denial]int64, denials),
		Coalesced: s.counters.coalesced.Load(),
		Throttled: s.counters.throttled.Load(),
	}
	stats.Turns, stats.IdleTurns = s.Turns()
	for i := range s.counters.ended {
		stats.Ended[Ending(i)] = s.counters.ended[i].Load()
	}
	for i := range s.counters.refused {
		stats.Refused[Limit(i)] = s.counters.refused[i].Load()
	}
	for i := range s.counters.denied {
		stats.Denied[Denial(i)] = s.counters.denied[i].Load()
	}
	return stats
}
