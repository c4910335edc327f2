package downstream

import (
	"github.com/xdstender/tender/downstream/guard"
)

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

	Waiting int                    // first responses that wait for their turn now
	Ended   map[guard.Ending]int64 // streams, by why they ended
	Refused map[guard.Limit]int64  // connections, streams and polls, by the limit that they ran into

	// Denied counts what clients tried that they may not do. For names and Secrets, the stream may
	// go on.
	Denied map[guard.Denial]int64

	// Coalesced counts changes that came to a stream that was still to be told of an
	// earlier one, or whose client had not answered yet: it is told of all of them at once.
	Coalesced int64

	// Throttled counts requests that were read late, since their stream sent more of
	// them than allowed.
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
	stats.Turns, stats.IdleTurns = s.Turns()
	return stats
}
