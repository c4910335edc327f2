package downstream

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/xdstender/tender/cache/tier"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/subscription"
)

// A relay repeats an unchanged report within maxReportAge. An older report says nothing about the clients below.
const maxReportAge = time.Minute

// Below is what a client that is a relay has reported about its own clients (B.49). It is shown, and nothing else depends
// on it.
type Below struct {
	// Known reports that there is a report that is not too old. Otherwise, the relay counts as one client that is unknown.
	Known bool

	At time.Time // of the newest report; zero without one

	// Report has the clients, and the relay itself as a client without a node ID if it is not in sync. Its clients count as
	// behind if the relay has accepted a response that its report does not include.
	tier.Report
}

// A reported is the newest report on a stream.
type reported struct {
	*tier.Report // nil if it was invalid; immutable
	at           time.Time
}

// isReport reports whether a request has a report of a relay's clients, and nothing else.
func (s *stream) isReport(r *wire.Request) bool {
	return r.HasReport && s.relay && s.typeURL == "" && s.lastNode.view != nil && r.Err == nil && r.TypeURL == "" && r.Node == nil
}

// acceptReport keeps a report instead of the last one. An invalid report changes nothing else, and the stream goes on. Like
// accept, it reports whether more requests may follow, and how long to wait before the next one.
func (s *stream) acceptReport(r *wire.Request) (more bool, wait time.Duration) {
	var err error
	var of *tier.Report
	if r.Report == nil {
		err = tier.ErrReport // too large
	} else {
		of, err = tier.Decode(r.Report)
	}
	s.lock.acquire()
	defer s.lock.release()
	now := time.Now()
	s.account.Release(r.Size)
	s.reported = reported{of, now}
	if err != nil && !s.ended && s.client != nil && s.server.reportLog.Allow() {
		s.client.log().LogAttrs(context.Background(), slog.LevelWarn, "report of a relay refused",
			slog.Any("err", err), s.server.reportLog.Suppressed())
	}
	return !s.ended, s.requestLimiter.ReserveN(now, 1).DelayFrom(now)
}

// below returns what a relay has reported, and makes the state of each type that of the relay and of its clients. It returns
// nil if the client is no relay.
func (s *stream) below(types []subscription.TypeStatus, now time.Time) *Below {
	if !s.relay {
		return nil
	}
	b := &Below{At: s.reported.at}
	if b.Known = s.reported.Report != nil && now.Sub(s.reported.at) < maxReportAge; b.Known {
		b.Report = s.reported.Clone()
	}
	self := tier.Client{Sync: tier.InSync}
	if !b.Known || len(types) == 0 {
		self.Sync = tier.Unknown
	}
	for i := range types {
		if own := b.addRelay(&types[i]); tier.Worst(self.Sync, own.Sync) != self.Sync {
			self = own
		}
	}
	if self.Sync == tier.InSync {
		return b
	}
	if self.Sync != tier.Unknown {
		b.All.HoldBack()
	}
	b.All.Add(self)
	return b
}

// addRelay adds the relay itself to the counts of a type, if it is not in sync, and sets the state of the type to that of
// the relay and of its clients. It returns the relay as a client.
func (b *Below) addRelay(t *subscription.TypeStatus) (self tier.Client) {
	self = tier.Client{TypeURL: t.TypeURL, Sync: t.Sync, Lag: t.Lag}
	if t.Rejected && t.Rejection != nil {
		self.Detail = t.Rejection.Detail
	}
	switch {
	case !b.Known:
		self.Sync = tier.Worst(self.Sync, tier.Unknown)
	case self.Sync != tier.Rejecting && !b.includes(t.Nonce):
		self.Sync = tier.Behind
	}
	of := b.Type(t.TypeURL)
	if of == nil { // a type that the protocol does not define, of which reports have no counts
		t.Sync = tier.Worst(self.Sync, b.All.Sync())
		return self
	}
	if self.Sync == tier.Rejecting || self.Sync == tier.Behind {
		of.HoldBack()
	}
	if self.Sync != tier.InSync {
		of.Add(self)
	}
	t.Sync = of.Sync()
	return self
}

// includes reports whether the report is newer than a response. The server numbers the responses of a stream.
func (b *Below) includes(nonce string) bool {
	if nonce == "" {
		return true
	}
	sent, err := strconv.ParseUint(nonce, 10, 64)
	upTo, reportErr := strconv.ParseUint(b.Nonce, 10, 64)
	return err == nil && reportErr == nil && sent <= upTo
}
