package upstream

import (
	"log/slog"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A Trace shows people what comes of one message of an origin.
type Trace interface {
	cache.Trace

	// Answered ends the trace of the message itself: the origin was told that it was taken, or, with an error, that
	// it was not.
	Answered(err error)

	// IDs returns what the message is called in logs.
	IDs() (traceID, spanID string)
}

// A Received is a message of an origin, or what was read of a directory.
type Received struct {
	Origin string    // its address, or the directory
	At     time.Time // when it came in, before it was decoded

	// Of a message alone.
	TypeURL, Version, Nonce string
	Resources, Removed      int
}

// A Request is one to an origin that clients' subscriptions have caused.
type Request struct {
	Origin  string // its address
	TypeURL string
	Names   int // that are subscribed to; a wildcard is one, and none is all in the legacy form
	At      time.Time

	// By are clients that were the first to want some of that, at most eight.
	By []cache.Demand
}

// maxAskers is how many of the clients are remembered for whom a type is asked for.
const maxAskers = 8

// asks notes on whose behalf the next request of a type is made.
func (v *wants) asks(s *subscription, d cache.Demand) {
	if v.cfg.Requested != nil && d.By != nil && len(s.askers) < maxAskers {
		s.askers = append(s.askers, d)
	}
}

// requested tells on whose behalf a request was made.
func (v *streams) requested(s *subscription, r *discoverypb.DeltaDiscoveryRequest, now time.Time) {
	if len(s.askers) == 0 {
		return
	}
	v.cfg.Requested(Request{
		Origin: v.cfg.Targets[v.target], TypeURL: r.TypeUrl, At: now,
		Names: len(r.ResourceNamesSubscribe) + len(r.ResourceLocatorsSubscribe), By: s.askers,
	})
	s.askers = nil
}

// trace begins the trace of a response; nil if nobody looks.
func (v *answers) trace(u wire.Update, at time.Time) Trace {
	if v.cfg.Trace == nil {
		return nil
	}
	return v.cfg.Trace(Received{
		Origin: v.cfg.Targets[v.target], At: at, TypeURL: u.TypeURL, Version: u.SystemVersion, Nonce: u.Nonce,
		Resources: len(u.Resources), Removed: len(u.Removed) + len(u.RemovedVariants),
	})
}

// CauseOf returns what a message is to the views that it changes.
func CauseOf(t Trace, at time.Time) cache.Cause {
	if t == nil {
		return cache.Cause{Received: at}
	}
	return cache.Cause{Received: at, Trace: t}
}

// traced returns a logger that says which trace its lines are about.
func traced(log *slog.Logger, t Trace) *slog.Logger {
	traceID, spanID := t.IDs()
	return log.With(slog.String("trace_id", traceID), slog.String("span_id", spanID))
}
