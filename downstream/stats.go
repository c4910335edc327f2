package downstream

import (
	"github.com/xdstender/tender/downstream/guard"
)

// Stats are the counters and gauges of a server.
type Stats struct {
	Connections int // open connections of clients

	// Unread is how many bytes of MaxUnreadBytes connections claim for buffered requests.
	Unread int64

	Streams  int   // open streams, held polls, and streams of load reports
	Accepted int64 // all of these so far

	// Turns counts how often a stream was looked at because something that it may want has changed, or was requested;
	// IdleTurns counts those without a response.
	Turns, IdleTurns int64

	Waiting int                    // first responses that wait for their turn
	Ended   map[guard.Ending]int64 // streams, by reason
	Refused map[guard.Limit]int64  // connections, streams and polls, by limit

	// Denied counts denied actions. After a denied name or Secret, the stream may go on.
	Denied map[guard.Denial]int64

	// Coalesced counts changes that reached a stream before an earlier change was sent, or before the client had
	// answered: one response has all of them.
	Coalesced int64

	// Throttled counts rate-limited requests, which were read later.
	Throttled int64
}

// Stats returns the counters of the server.
func (s *Server) Stats() Stats {
	stats := Stats{
		Streams:   s.Streams(),
		Accepted:  int64(s.accepted.Load()),
		Waiting:   s.queue.waiting() + s.slots.Waiting(),
		Ended:     s.guard.Counters.Ended(),
		Refused:   s.guard.Counters.Refused(),
		Denied:    s.guard.Counters.Denied(),
		Coalesced: s.coalesced.Load(),
		Throttled: s.throttled.Load(),
	}
	stats.Connections, stats.Unread = s.guard.Usage()
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	stats.Turns, stats.IdleTurns = s.queue.turns, s.queue.idle
	return stats
}
