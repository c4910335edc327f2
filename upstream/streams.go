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
	ReconnectMax = 500 * time.Millisecond // before a stream that was served is opened again
	silenceWait  = 10 * time.Second       // before an origin that does not answer is worth a line (B.4)

	connectedEvery = time.Second // is looked whether an origin can be reached again

	heldFor = 5 * time.Second // a stream without a response is held by an origin that need not be spared
)

// errResync ends a stream that the relay itself wants to open anew.
var errResync = errors.New("resync")

// An adsStream is one of the two streams of a view to its origin: what is there now, and when to try again.
type adsStream struct {
	*stream
	open     bool
	openedAt time.Time
	versions bool // the origin was told what is held
	full     bool // until it has answered, it is not
	retry    *backoff.ExponentialBackOff
	retryAt  time.Time

	unconnected bool      // the stream ended, or never began, for want of a connection
	waits       bool      // for the session's pace
	silentAt    time.Time // when to warn that nothing came; zero if something did
}

// served reports whether the origin has taken care of the stream. Silence is the
// right answer to one who holds everything already.
func (l *adsStream) served(now time.Time) bool {
	return l.responded || l.open && l.versions && now.Sub(l.openedAt) >= silenceWait
}

// silent reports whether it is time to warn that nothing came.
func (l *adsStream) silent(now time.Time) bool {
	return !l.silentAt.IsZero() && !now.Before(l.silentAt)
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
	lines   [auxiliary + 1]adsStream

	target  int             // index of the target in use
	moved   <-chan struct{} // closed once the session returned to an earlier one
	source  int             // that of the target that answered last; -1 if none did
	noDelta bool            // the target does not implement Delta; until it ends a stream
	silent  bool            // the silence of the origin was logged
}

// attempts returns those of the target in use.
func (v *streams) attempts() *attempts { return &v.session.links[v.target].attempts }

// request sends a request of a type on a line.
func (v *streams) request(l *adsStream, s *subscription, r *discoverypb.DeltaDiscoveryRequest, now time.Time) {
	l.begun[r.TypeUrl] = true
	// An origin that was told what is held need not say anything.
	if l.role == main && !l.responded && !l.versions && !v.silent && l.silentAt.IsZero() {
		l.silentAt = now.Add(silenceWait)
	}
	v.requested(s, r, now)
	l.request(v.node, r)
}

// change subscribes to names on a stream, and unsubscribes from others.
func (v *streams) change(l *adsStream, s *subscription, subscribe, unsubscribe []string, now time.Time) {
	for _, r := range s.requests(subscribe, unsubscribe) {
		v.request(l, s, r, now)
	}
}

// flushLists sends what a turn of the loop has changed on SotW streams: one
// request for each type, however it came about.
func (v *streams) flushLists() {
	for r := main; r <= auxiliary; r++ {
		if l := &v.lines[r]; l.open {
			l.flush(v.node)
		}
	}
}

// mayResume reports whether a new stream may say what is held. In SotW it cannot.
func (v *streams) mayResume(l *adsStream) bool {
	return l.sotw == nil && !v.cfg.FullResync && !l.full && v.source == v.target
}

// resync opens the streams anew and asks for everything.
func (v *streams) resync() {
	for r := range v.lines {
		v.lines[r].full = true
	}
	v.reopen()
}

// reopen ends the streams, to open them anew at once.
func (v *streams) reopen() {
	for r := range v.lines {
		v.lines[r].replace()
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

func (v *streams) logEnd(r role, err error, wait time.Duration) {
	retry := slog.Duration("retry_in", wait.Round(time.Millisecond))
	v.session.noteEnd(err)
	switch {
	case errors.Is(err, errResync), errors.Is(err, context.Canceled): // the latter: Mirror is about to return
	case status.Code(err) == codes.Unimplemented:
		v.log.Warn("the origin does not implement the variant of ADS that TENDER_ORIGIN_PROTOCOL allows: auto allows both, delta and sotw one",
			slog.String("protocol", v.cfg.Protocol.String()), slog.String("stream", r.String()), slog.Any("err", err), retry)
	case status.Code(err) == codes.FailedPrecondition:
		v.log.Error("the origin cannot be used by this relay until a configuration is changed: what is held is served, and does not change",
			slog.String("stream", r.String()), slog.Any("err", err), retry)
	case v.cfg.tooLarge(err):
		v.log.Error("a response of the origin is larger than TENDER_MAX_ORIGIN_RESPONSE_BYTES: what is held is served, and does not change",
			slog.String("stream", r.String()), slog.Any("err", err), retry)
	case errors.Is(err, io.EOF):
		v.log.Info("the origin closed the stream", slog.String("stream", r.String()), retry)
	default:
		v.log.Warn("stream to the origin ended", slog.String("stream", r.String()), slog.Any("err", err), retry)
	}
}
