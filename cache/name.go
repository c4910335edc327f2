package cache

import (
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache/quota"
)

// A Name is a resource name that somebody watches, or that a set holds. Streams
// keep names as pointers: eight bytes, and equal if and only if the names are.
type Name struct {
	text   string
	id     uint32
	source int // that answers for it

	// asked is the request by which the origin was asked for the name on the connection that is
	// up; nil if it was not.
	asked atomic.Pointer[originRequest]

	askedAt Seq // where the view was when the origin was last asked; the writer's own

	// Guarded by index.mu.
	watchers  *watchers    // nil if nobody watches it
	moving    bool         // see startMove
	chargedTo *quota.Share // of the peer that is charged for it: that of a watcher; nil if nobody is
	entries   int          // of the type's sets, in what readers see and in what closed gates have beside it
	queued    bool         // in a source's demand
	tracked   bool         // the session subscribed to it, or lets it linger
	stale     bool         // the answer of the origin is no longer valid: the next subscriber has it asked again
	refetch   bool         // it is to be asked for once more
	forgotten bool         // released: if the text is needed again, there is another Name
	restored  bool         // tracked since a snapshot, and the origin has not answered for it yet
}

// String returns the name itself.
func (n *Name) String() string { return n.text }

// Compare orders names in some fixed order that costs nothing to find out.
func (n *Name) Compare(o *Name) int { return int(int64(n.id) - int64(o.id)) }

// Asked returns when the origin was asked for the name on the connection that is
// up; zero if it was not.
func (n *Name) Asked() time.Time {
	if q := n.asked.Load(); q != nil {
		return q.at
	}
	return time.Time{}
}

// An originRequest is a request by which an origin was asked for names.
type originRequest struct {
	at       time.Time
	answered atomic.Pointer[time.Time] // when the origin first answered for one of the names; nil if it did not
}

// answered records that the origin answered for a name that it was asked for.
func (n *Name) answered(now time.Time) {
	if q := n.asked.Load(); q != nil && q.answered.Load() == nil {
		at := now // a copy, so that only the first answer allocates
		q.answered.CompareAndSwap(nil, &at)
	}
}

// RequestAnswered returns when the origin first answered for any of the names that it was asked for by the same
// request as this one, on the open connection; zero if it did not.
func (n *Name) RequestAnswered() time.Time {
	if q := n.asked.Load(); q != nil {
		if at := q.answered.Load(); at != nil {
			return *at
		}
	}
	return time.Time{}
}

// A Seq numbers the changes of a view, over all its types. It is also a position:
// everything up to there.
type Seq uint64
