package upstream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
)

const (
	silenceWait = 10 * time.Second // before it is logged that an origin does not answer (B.4)

	connectPoll = time.Second // is looked whether an origin can be reached again

	minHeld = 5 * time.Second // a stream without a response is held by an origin that need not be spared
)

// An adsStream is one of the two streams of a view to its origin: what is there now, and when to try again.
type adsStream struct {
	*stream
	open         bool
	openedAt     time.Time
	sentVersions bool // the origin was told what is held
	needFull     bool // until it has answered, it is not
	retry        *backoff.ExponentialBackOff
	retryAt      time.Time

	notConnected bool         // the stream ended, or never began, for want of a connection
	waiter       streamWaiter // of the session's pace
	warnSilentAt time.Time    // when to warn that nothing came; zero if something did
}

// served reports whether the origin has taken care of the stream. Silence is the
// right answer to one who holds everything already.
func (l *adsStream) served(now time.Time) bool {
	return l.responded || l.open && l.sentVersions && now.Sub(l.openedAt) >= silenceWait
}

// silent reports whether it is time to warn that nothing came.
func (l *adsStream) silenceDue(now time.Time) bool {
	return !l.warnSilentAt.IsZero() && !now.Before(l.warnSilentAt)
}

// Streams are the ADS streams of a view: the main and the auxiliary one.
type streams struct {
	session *Session
	cfg     *Config
	w       *cache.Writer
	log     *slog.Logger
	node    *corepb.Node // whom the origin takes the relay for

	events  chan event
	running int // streams whose end was not received
	byRole  [auxiliary + 1]adsStream

	target        int             // index of the target in use
	targetChanged <-chan struct{} // closed once the session returned to an earlier one
	sourceTarget  int             // that of the target that answered last; -1 if none did
	noDelta       bool            // the target does not implement Delta; until it ends a stream
	silenceLogged bool            // the silence of the origin was logged
}

// attempts returns those of the target in use.
func (v *streams) failures() *failureTracker { return &v.session.links[v.target].failures }

// request sends a request of a type on a stream.
func (v *streams) request(l *adsStream, s *subscription, r *discoverypb.DeltaDiscoveryRequest, now time.Time) {
	l.requested[r.TypeUrl] = true
	// An origin that was told what is held need not say anything.
	if l.role == main && !l.responded && !l.sentVersions && !v.silenceLogged && l.warnSilentAt.IsZero() {
		l.warnSilentAt = now.Add(silenceWait)
	}
	v.reportRequest(s, r, now)
	l.request(v.node, r)
}

// change subscribes to names on a stream, and unsubscribes from others. One that opens later states all that is wanted.
func (v *streams) change(l *adsStream, s *subscription, subscribe, unsubscribe []string, now time.Time) {
	if !l.open {
		return
	}
	for _, r := range s.requests(subscribe, unsubscribe) {
		v.request(l, s, r, now)
	}
}

// flushLists sends what a turn of the loop has changed on SotW streams: one
// request for each type, however it came about.
func (v *streams) flushSotW(now time.Time) {
	for r := main; r <= auxiliary; r++ {
		if l := &v.byRole[r]; l.open {
			l.flush(v.node, now)
		}
	}
}

// mayResume reports whether a new stream may say what is held. In SotW it cannot.
func (v *streams) mayResume(l *adsStream) bool {
	return l.sotw == nil && !v.cfg.FullResync && !l.needFull && v.sourceTarget == v.target
}

// resync opens the streams anew and asks for everything.
func (v *streams) resync() {
	for r := range v.byRole {
		v.byRole[r].needFull = true
	}
	v.reopen()
}

// reopen ends the streams, to open them anew at once.
func (v *streams) reopen() {
	for r := range v.byRole {
		v.byRole[r].replace()
	}
}

// replace ends a stream for the sake of a new one, which states all that is wanted. What the
// origin still says on the old one is not looked at.
func (l *adsStream) replace() {
	if l.stream != nil {
		l.open, l.replaced = false, true
		l.cancel(errResync)
	}
}

// backOff returns how long to wait after a stream without a response. An origin that
// held it for a while is spared enough, and the waits begin anew.
func (l *adsStream) backOff(held bool) time.Duration {
	if held {
		l.retry.Reset()
		return rand.N(ReconnectMax)
	}
	return l.retry.NextBackOff()
}

// logEnd logs the end of a stream, and returns the failure that it was, nil if the end was expected.
func (v *streams) logEnd(r role, err error, wait time.Duration) *Failure {
	retry := slog.Duration("retry_in", wait.Round(time.Millisecond))
	err = explainUnresolved(v.cfg.Targets[v.target], err)
	failure := v.session.recordStreamEnd(err)
	switch {
	case errors.Is(err, errResync), errors.Is(err, context.Canceled): // the latter: Sync is about to return
	case status.Code(err) == codes.Unimplemented:
		v.log.Warn("origin does not implement this ADS variant: set TENDER_ORIGIN_PROTOCOL to auto",
			slog.String("protocol", v.cfg.Protocol.String()), slog.String("stream", r.String()), slog.Any("err", err), retry)
	case status.Code(err) == codes.FailedPrecondition:
		v.log.Error("origin rejected this relay: fix the configuration (serving cached state)",
			slog.String("stream", r.String()), slog.Any("err", err), retry)
	case v.cfg.isResponseTooLarge(err):
		v.log.Error("origin response exceeds TENDER_MAX_ORIGIN_RESPONSE_BYTES (serving cached state)",
			slog.String("stream", r.String()), slog.Any("err", err), retry)
	case errors.Is(err, io.EOF):
		v.log.Info("upstream stream closed by the origin", slog.String("stream", r.String()), retry)
	default:
		v.log.Warn("upstream stream closed", slog.String("stream", r.String()), slog.Any("err", err), retry)
	}
	return failure
}

// speaksSotW reports whether a stream is to be opened in SotW. The auxiliary one is
// of the variant of the main one.
func (v *streams) usesSotW(r role) bool {
	if r == auxiliary {
		return v.byRole[main].sotw != nil
	}
	return v.noDelta || v.cfg.Protocol == ProtocolSotW
}

// otherVariant reports whether a stream has ended because the target does not
// implement Delta, so that SotW is to be tried. Any other end that the origin puts
// to the main stream lets Delta be tried again: what answers next may be a newer
// server.
func (v *streams) fallBackToSotW(l *adsStream, err error) bool {
	if errors.Is(err, errResync) {
		return false
	}
	noDelta := v.cfg.Protocol == ProtocolAuto && l.sotw == nil && !l.responded && status.Code(err) == codes.Unimplemented
	if l.role == main {
		v.noDelta = noDelta
		if noDelta {
			v.session.logNoDelta(v.target)
		}
	}
	return noDelta
}

// requested tells on whose behalf a request was made.
func (v *streams) reportRequest(s *subscription, r *discoverypb.DeltaDiscoveryRequest, now time.Time) {
	if len(s.requesters) == 0 {
		return
	}
	v.cfg.Requested(Request{
		Origin: v.cfg.Targets[v.target], TypeURL: r.TypeUrl, At: now,
		Names: len(r.ResourceNamesSubscribe) + len(r.ResourceLocatorsSubscribe), By: s.requesters,
	})
	s.requesters = nil
}
