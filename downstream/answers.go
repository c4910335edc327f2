package downstream

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// An unaccepted response is one that was sent before the newest and that the client has not accepted: it takes longer to
// answer than is waited for (B.12).
type sentResponse struct {
	nonce       string
	version     string
	after       cache.Seq // it holds what changed after that
	upTo        cache.Seq // and up to here
	behindSince moment    // since when the client lacks something of it
	causedAt    moment    // when the oldest change was received that it holds; 0: none caused it
	endOffset   uint64    // bytes on the stream up to the end of it
}

// earlierResponses are those before the newest that the client has not accepted, the oldest first. A nil one is empty.
type earlierResponses struct{ list []sentResponse }

// maxUnaccepted bounds the earlier responses of a type that are remembered. Of a client that is further behind, the
// answers to some count for nothing until it answers a later one.
const maxEarlierResponses = 16

// supersede notes that another response is about to follow the newest one, which is not answered and holds what changed
// up to a position.
func (c *conversation) supersede(upTo cache.Seq) {
	if c.earlier == nil {
		c.earlier = new(earlierResponses)
	}
	u := sentResponse{c.nonce, c.version, c.sentAfter, upTo, c.behindSince, c.causedAt, c.endOffset}
	list := c.earlier.list
	if n := len(list); n == maxEarlierResponses { // the last two become one
		u.after, u.behindSince = list[n-1].after, list[n-1].behindSince
		list = list[:n-1]
	}
	c.earlier.list = append(list, u)
	c.behindSince, c.causedAt = 0, 0
}

// find returns which of the responses a request answers, -1 if none.
func (e *earlierResponses) find(r *wire.Request) int {
	if e == nil || r.Nonce == "" {
		return -1
	}
	return slices.IndexFunc(e.list, func(u sentResponse) bool { return u.nonce == r.Nonce })
}

// oldest returns the oldest of the responses, nil if there is none.
func (e *earlierResponses) oldest() *sentResponse {
	if e == nil {
		return nil
	}
	return &e.list[0]
}

// noteEarlierAnswer records the answer to an earlier response. The client has read all responses before, and if it did
// not refuse them, it has taken them.
func (s *subscription) noteEarlierAnswer(i int, r *wire.Request, now time.Time) {
	u, oldest := &s.earlier.list[i], *s.earlier.oldest()
	if r.Refused {
		u.after, u.behindSince = oldest.after, oldest.behindSince
		s.noteNACKRange(r, u.after, u.upTo, u.version, now)
		s.earlier.list = slices.Delete(s.earlier.list, 0, i)
		return
	}
	if u.causedAt != 0 {
		s.counter.propagated(now.Sub(u.causedAt.time()))
	}
	s.ackedVersion, s.ackedAt = u.version, momentOf(now)
	s.settleUpTo(u.upTo, now)
	if s.earlier.list = slices.Delete(s.earlier.list, 0, i+1); len(s.earlier.list) == 0 {
		s.earlier = nil
	}
}

// mergeEarlier counts what the client has not accepted of earlier responses to the newest one, which it answers.
func (c *conversation) mergeEarlier() {
	if u := c.earlier.oldest(); u != nil {
		c.sentAfter, c.behindSince, c.earlier = u.after, u.behindSince, nil
	}
}

// lacking returns when the oldest change was made that the client was told of and has not accepted; 0 if there is none.
func (c *conversation) lackingSince() moment {
	if u := c.earlier.oldest(); u != nil {
		return u.behindSince
	}
	return c.behindSince
}

// acceptedUpTo returns up to where the client has accepted what it was told, but for what it refused.
func (c *conversation) ackedUpTo() cache.Seq {
	if u := c.earlier.oldest(); u != nil {
		return u.after
	}
	return c.sentAfter
}

// settleUpTo answers for the changes up to a position, which the client has accepted. Removals that wait are answered
// for by the newest response.
func (s *subscription) settleUpTo(upTo cache.Seq, now time.Time) {
	before := s.fanoutsSent
	s.fanoutsSent = nil
	for l := before; l != nil; l = l.Others {
		if f := l.Fanout; f.Key == s.key && f.Seq <= upTo && (f.Change.Removed == 0 || !s.LateRemovals) {
			f.Done(cache.Accepted, now)
		} else {
			s.fanoutsSent = s.fanoutsSent.And(f)
		}
	}
}
