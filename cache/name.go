package cache

import (
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache/quota"
)

// A Name is the interned name of a resource that a stream subscribes to or that a set has. There is one Name for each
// text of a type, so pointers can be compared, and a stream keeps eight bytes for each of its names.
type Name struct {
	// Set at creation.
	text   string
	id     uint32 // of the name in the tables of the type; may be reused after the release
	source int    // number of the source that answers for the name

	// Atomic. asked is the request by which the origin was asked for the name on the open connection; nil if it was
	// not.
	asked atomic.Pointer[originRequest]

	// Owned by the writer of the source. askedAt is the position of the view when the origin was last asked.
	askedAt Seq

	// Guarded by index.mu.
	watchers  *watchers    // nil if no stream subscribes to the name
	moving    bool         // used by startMove
	chargedTo *quota.Share // of the subscribed peer that is charged for the name; nil if none is
	entries   int          // in the sets of the type, in what readers see and in latest behind closed gates
	queued    bool         // source.demand has the name
	tracked   bool         // the session subscribes to the name at the origin, or lingers
	stale     bool         // the answer of the origin is no longer valid: the next subscriber causes a new request
	refetch   bool         // the origin is to be asked again
	released  bool         // the index no longer has the name: a new subscription to the text gets another Name
	restored  bool         // tracked since a snapshot was restored, and the origin has not answered yet
}

// String returns the text of the name.
func (n *Name) String() string { return n.text }

// Compare orders names by their ids: a fixed order, without a meaning, that is cheap.
func (n *Name) Compare(o *Name) int { return int(int64(n.id) - int64(o.id)) }

// Asked returns when the origin was asked for the name on the open connection; zero if it was not.
func (n *Name) Asked() time.Time {
	if q := n.asked.Load(); q != nil {
		return q.at
	}
	return time.Time{}
}

// An originRequest is a request by which an origin was asked for names.
type originRequest struct {
	at       time.Time                 // set at creation
	answered atomic.Pointer[time.Time] // when the origin first answered for one of the names; nil if it has not
}

// answered records that the origin answered for the name.
func (n *Name) answered(now time.Time) {
	if q := n.asked.Load(); q != nil && q.answered.Load() == nil {
		at := now // a copy, so that only the first answer allocates
		q.answered.CompareAndSwap(nil, &at)
	}
}

// RequestAnswered returns when the origin first answered for any name of the request for this one, on the open
// connection; zero if it has not.
func (n *Name) RequestAnswered() time.Time {
	if q := n.asked.Load(); q != nil {
		if at := q.answered.Load(); at != nil {
			return *at
		}
	}
	return time.Time{}
}

// A Seq numbers the changes of a view, over all its types. As a position of a reader, it stands for all changes up to
// it.
type Seq uint64
