package upstream

import (
	"sync/atomic"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/tier"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// This file reports to an origin that is a relay what the clients of a view have (B.49). Each stream carries reports, since
// the relay above sees each stream as a client. One stream of a view reports the clients, and the others that they have
// none.
//
// A report says up to which response it holds. Otherwise the relay above would take clients for in sync that have the state
// before a response which this relay has just acknowledged. A look at the clients takes time, in which the loop may apply
// responses. So it begins with a mark, and a report does not include responses that the loop noted after the mark.

// Bounds on reports. A stream carries a report at most once per reportEvery, and an unchanged one again after reportAnew.
const (
	reportEvery = 2 * time.Second
	reportAnew  = 15 * time.Second
)

// A below is what a [Control] and its loop know of the clients of the view.
type below struct {
	none    bool                        // they belong to other views; read-only
	accepts atomic.Bool                 // a stream accepts reports
	waits   atomic.Bool                 // changes wait in front of the view
	lacks   atomic.Bool                 // a stream needs a newer look
	marks   atomic.Uint64               // looks that began
	newest  atomic.Pointer[clientsLook] // nil before the first
	wake    chan struct{}               // one slot: the loop must see newest
}

// A clientsLook is what a look at the clients of a view found. It is immutable.
type clientsLook struct {
	tier.Report
	mark uint64
	at   time.Time
}

// noClients is the report of streams that do not report the clients of a view.
var noClients = new(tier.Report)

// A reporting is what a stream has reported.
type reporting struct {
	accepted bool   // the server is a relay that accepts reports
	applied  string // nonce of the newest response that the loop has applied

	noted    string // applied, when the loop last noted it
	mark     uint64 // of the newest look that had begun when the loop last noted a response
	original string // noted before the first response that the loop noted since then

	sent      *tier.Report // nil if none was sent
	sentNonce string
	sentAt    time.Time
}

// note records that responses were applied. The loop calls it after it has recorded what waits.
func (r *reporting) note(marks uint64) {
	if r.applied == r.noted {
		return
	}
	if r.mark != marks {
		r.mark, r.original = marks, r.noted
	}
	r.noted = r.applied
}

// includedIn returns the nonce of the newest response that a look includes. ok is false if a newer look has begun, which
// includes more.
func (r *reporting) includedIn(look *clientsLook) (nonce string, ok bool) {
	switch {
	case look.mark < r.mark:
		return "", false
	case look.mark == r.mark:
		return r.original, true
	default:
		return r.noted, true
	}
}

// reportClients sends the reports that are due, and returns when to call it again.
func (v *streams) reportClients(b *below, now time.Time) (next time.Time) {
	look, marks := b.newest.Load(), b.marks.Load()
	counted, lacks := b.none, false
	for l := range v.all {
		if !l.open || !l.reporting.accepted || !l.nodeSent {
			continue
		}
		l.reporting.note(marks)
		found, nonce := noClients, l.reporting.noted
		if !counted {
			counted = true
			if look == nil || now.Sub(look.at) > reportAnew { // nobody looks, or not any more
				lacks = true
				continue
			}
			var ok bool
			nonce, ok = l.reporting.includedIn(look)
			if lacks = !ok || nonce != l.reporting.noted; !ok {
				continue
			}
			found = &look.Report
		}
		next = reconcile.Earlier(next, l.report(found, nonce, now))
	}
	b.accepts.Store(counted && !b.none)
	b.lacks.Store(lacks)
	return next
}

// report sends a report on a stream if it is due. It returns when to call it again.
func (l *adsStream) report(found *tier.Report, nonce string, now time.Time) (next time.Time) {
	r := &l.reporting
	due := r.sentAt.Add(reportAnew)
	if r.sent == nil || nonce != r.sentNonce || !r.sent.Equal(found) {
		due = r.sentAt.Add(reportEvery) // in the past for the first one
	}
	if now.Before(due) {
		return due
	}
	report := *found
	report.Nonce = nonce
	request := proto.Message(new(discoverypb.DeltaDiscoveryRequest))
	if l.sotw != nil {
		request = new(discoverypb.DiscoveryRequest)
	}
	request.ProtoReflect().SetUnknown(wire.ReportRequest(report.Encode()))
	l.queue(request)
	r.sent, r.sentNonce, r.sentAt = found, nonce, now
	return now.Add(reportAnew)
}
