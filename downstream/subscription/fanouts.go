package subscription

import (
	"time"

	"github.com/xdstender/tender/cache"
)

// fanouts are the changes that are followed on their way to all clients, as far as this client is part of that.
type fanouts struct {
	due     *cache.Fanouts // the client is to be sent them
	unacked *cache.Fanouts // the client was sent them and has not answered
}

// pass notes which changes the client was sent. Those are closed by the answer to the newest response, if that is
// pending. Otherwise the client needed none.
func (f *fanouts) pass(sent func(*cache.Fanout) bool, pending bool, now time.Time) {
	before := f.due
	f.due = nil
	for l := before; l != nil; l = l.Others {
		switch change := l.Fanout; {
		case !sent(change):
			f.due = f.due.And(change)
		case pending:
			f.unacked = f.unacked.And(change)
		default:
			change.Done(cache.Needless, now)
		}
	}
	if f.unacked != nil && f.unacked.Others != nil {
		f.unacked = f.unacked.Open() // a client may never answer
	}
}

// close closes the changes that the client was sent.
func (f *fanouts) close(o cache.Outcome, now time.Time) {
	for l := f.unacked; l != nil; l = l.Others {
		l.Done(o, now)
	}
	f.unacked = nil
}

// closeUpTo closes the changes of a type up to a position, which the client accepted by the answer to an earlier
// response. Removals that wait are closed by the answer to the newest response.
func (f *fanouts) closeUpTo(key string, lateRemovals bool, upTo cache.Seq, now time.Time) {
	before := f.unacked
	f.unacked = nil
	for l := before; l != nil; l = l.Others {
		if c := l.Fanout; c.Key == key && c.Seq <= upTo && (c.Change.Removed == 0 || !lateRemovals) {
			c.Done(cache.Accepted, now)
		} else {
			f.unacked = f.unacked.And(c)
		}
	}
}

// leave closes all changes, since the stream has ended.
func (f *fanouts) leave(now time.Time) {
	f.close(cache.Departed, now)
	f.unacked, f.due = f.due, nil
	f.close(cache.Departed, now)
}
