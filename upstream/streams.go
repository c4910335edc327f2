package upstream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/pending"
)

const (
	// silenceWait is the time without a response after which the relay logs that the origin does not respond (B.4). If
	// the stream reported the cached versions, it counts as served after that time.
	silenceWait = 10 * time.Second

	// connectPoll is the interval at which a stream checks whether an unreachable origin is reachable.
	connectPoll = time.Second

	// minHeld is the age from which an open stream without a response causes no exponential backoff.
	minHeld = 5 * time.Second
)

// An adsStream is the main or the auxiliary stream of a view: the open stream, if any, and its retry state. It belongs
// to the loop of the view sync.
type adsStream struct {
	*stream
	open         bool
	openedAt     time.Time
	sentVersions bool // the stream reported the cached versions
	needFull     bool // do not report the cached versions until the origin has responded
	retry        *backoff.ExponentialBackOff
	retryAt      time.Time // when to open the next stream

	target string // of the newest stream; another branch may have opened its stream to another one
	heard  bool   // that stream has told of halts, or that it tells nothing
	told   []byte // the last message about them; nil if the target tells nothing

	endLogged bool // the failure of the last stream was logged, and not the next stream

	// Only for isolation.go.
	ends        int       // streams in a row that ended before they were alive
	objections  int       // those of them that ended while the origin worked
	undecided   bool      // divide has not considered the last stream that the origin ended
	recent      []part    // what was requested on that stream last
	early       []part    // added while no stream was open, and not alive on one yet
	endedServed bool      // that stream had received a response
	endedAt     time.Time // when it ended

	notConnected bool         // the last attempt failed because there was no connection
	waiter       streamWaiter // in the session's limiter
	warnSilentAt time.Time    // when to log that no response arrived; zero if not expected, or received
}

// served reports whether the origin serves the stream: it has responded, or the stream has reported the cached versions
// and is older than silenceWait. An origin that has no newer versions sends no response.
func (l *adsStream) served(now time.Time) bool {
	return l.responded || l.open && l.sentVersions && now.Sub(l.openedAt) >= silenceWait
}

// silenceDue reports whether to log that no response arrived.
func (l *adsStream) silenceDue(now time.Time) bool {
	return !l.warnSilentAt.IsZero() && !now.Before(l.warnSilentAt)
}

// A branch is the main and the auxiliary stream, and the subscriptions that they carry. It belongs to the loop of the
// view sync.
type branch struct {
	byRole [auxiliary + 1]adsStream // the element of noStream is unused and never open
	subs   map[string]*subscription // by type URL

	// Only for isolation.go.
	since   time.Time // when its subscriptions were isolated
	addedAt time.Time // when the last subscription was added to an isolated branch
	shared  bool      // several subscriptions share it, each of which ends streams; see room
	turns   []part    // of a shared branch: its subscriptions that retryAlone has still to try
	logged  bool      // its only subscription has been logged
	failure error     // with which the origin ended the last stream that was not alive
}

// newBranch returns a branch without subscriptions.
func newBranch() *branch {
	b := &branch{subs: make(map[string]*subscription)}
	for r := range b.byRole {
		b.byRole[r].retry = &backoff.ExponentialBackOff{
			InitialInterval: time.Second, Multiplier: 1.6, RandomizationFactor: 0.2, MaxInterval: 30 * time.Second,
		}
		b.byRole[r].retry.Reset()
	}
	return b
}

// A part is a part of a subscription: the wildcard, names, or globs.
type part struct {
	sub      *subscription
	wildcard bool
	names    []*cache.Name
	globs    []string
}

// noteEarlyName records a name that is added while the stream is not open.
func (l *adsStream) noteEarlyName(s *subscription, n *cache.Name) {
	if last := len(l.early) - 1; last >= 0 && l.early[last].sub == s && len(l.early[last].names) > 0 {
		l.early[last].names = append(l.early[last].names, n)
		return
	}
	l.early = append(l.early, part{sub: s, names: []*cache.Name{n}})
}

// stream returns a stream of the branch of the subscription.
func (s *subscription) stream(r role) *adsStream { return &s.branch.byRole[r] }

// needs reports whether any subscription uses a stream.
func (b *branch) needs(r role) bool {
	for _, s := range b.subs {
		if s.needsStream(r) {
			return true
		}
	}
	return false
}

// streams are the ADS streams of a view. They belong to the loop of the view sync.
type streams struct {
	session *Session
	cfg     *Config
	pending *pending.List
	w       *cache.Writer // that of pending
	log     *slog.Logger
	node    *corepb.Node // sent to the origin; immutable

	agenda  agenda
	events  chan event // unbuffered; from the goroutines of all streams
	running int        // streams whose ended event was not received yet

	trunk    *branch       // carries all subscriptions that are not isolated
	isolated []*branch     // see isolation.go; nil if no subscription is isolated
	proof    time.Duration // time for which a branch must be alive, if longer than aliveAfter
	mergedAt time.Time     // when a branch last merged with the trunk; zero if the trunk has been alive since
	mergeAll bool          // merge all branches: the origin ends all streams

	aliveAfter time.Duration   // age from which a stream counts as alive, see observeLife
	lives      []time.Duration // of the last streams that ended, since one was alive
	livesSince time.Time       // when the first of them opened

	target        int             // index of the target of the current streams
	targetChanged <-chan struct{} // closed when the session changes its active target
	sourceTarget  int             // index of the target that responded last; -1 if none did
	noDelta       bool            // the target does not implement Delta; reset when it ends a main stream otherwise
	silenceLogged bool            // the silence of the origin was logged; reset by the next response
}

// failures returns the failure tracker of the target.
func (v *streams) failures() *failureTracker { return &v.session.links[v.target].failures }

// request sends a request on a stream. It starts the timer that logs a silent origin, if a response is expected.
func (v *streams) request(l *adsStream, s *subscription, r *discoverypb.DeltaDiscoveryRequest, now time.Time) {
	l.requested[r.TypeUrl] = true
	// If the stream reported the cached versions, the origin need not respond.
	if l.role == main && !l.responded && !l.sentVersions && !v.silenceLogged && l.warnSilentAt.IsZero() {
		l.warnSilentAt = now.Add(silenceWait)
		v.agenda.streams.schedule(l.warnSilentAt)
	}
	v.reportRequest(s, r, now)
	l.request(v.node, r)
}

// change subscribes to and unsubscribes from names on a stream. If the stream is not open, it does nothing: a new
// stream requests all names.
func (v *streams) change(l *adsStream, s *subscription, subscribe, unsubscribe []string, now time.Time) {
	if !l.open {
		return
	}
	for _, r := range s.requests(subscribe, unsubscribe) {
		v.request(l, s, r, now)
	}
}

// flushSotW sends the changed subscriptions of SotW streams: one request per type and iteration of the loop.
func (v *streams) flushSotW(now time.Time) {
	for l := range v.all {
		if l.open {
			l.flush(v.node, now)
			v.noteRefused(l, now)
		}
	}
}

// noteRefused logs names that a SotW request cannot contain, and records that names are requested which were refused
// before.
func (v *streams) noteRefused(l *adsStream, now time.Time) {
	if l.sotw == nil || len(l.sotw.changed) == 0 {
		return
	}
	for _, t := range l.sotw.changed {
		if t.refusal != nil && t.refusal.Since.Equal(now) {
			v.log.Warn("names exceed the size of a SotW request: they are not requested",
				slog.String("type_url", t.typeURL), slog.Int("count", t.refusal.Count), slog.Any("names", t.refusal.Names))
		} else if t.refusal == nil {
			v.log.Info("all names fit in a SotW request again", slog.String("type_url", t.typeURL))
		}
		if s := l.branch.subs[t.typeURL]; s != nil && len(t.accepted) > 0 {
			v.w.Asked(slices.DeleteFunc(slices.Collect(maps.Keys(s.names)), func(n *cache.Name) bool {
				return !slices.Contains(t.accepted, n.String())
			}), now)
		}
		t.accepted = nil
	}
	v.agenda.isolation.wake() // operators see what is refused
	l.sotw.changed = nil
}

// withoutRefused returns names without those that a SotW request of their type cannot contain.
func (l *adsStream) withoutRefused(typeURL string, names []*cache.Name) []*cache.Name {
	if l.sotw == nil || l.sotw.types[typeURL] == nil || len(l.sotw.types[typeURL].refused) == 0 {
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(n *cache.Name) bool {
		_, refused := l.sotw.types[typeURL].refused[n.String()]
		return refused
	})
}

// branches yields the branches of the view, including those that are added meanwhile.
func (v *streams) branches(yield func(*branch) bool) {
	if !yield(v.trunk) {
		return
	}
	for i := 0; i < len(v.isolated); i++ {
		if !yield(v.isolated[i]) {
			return
		}
	}
}

// all yields the streams of all branches.
func (v *streams) all(yield func(*adsStream) bool) {
	for b := range v.branches {
		for r := range b.byRole {
			if !yield(&b.byRole[r]) {
				return
			}
		}
	}
}

// connected reports whether a main stream is open.
func (v *streams) connected() bool {
	for b := range v.branches {
		if b.byRole[main].open {
			return true
		}
	}
	return false
}

// mayResume reports whether a new stream may report the cached versions. SotW has no field for them.
func (v *streams) mayResume(l *adsStream) bool {
	return l.sotw == nil && !v.cfg.FullResync && !l.needFull && v.sourceTarget == v.target
}

// resync reopens the streams and requests all resources, instead of reporting the cached versions.
func (v *streams) resync() {
	for l := range v.all {
		l.needFull = true
	}
	v.reopen()
}

// reopen replaces the streams of all branches without delay.
func (v *streams) reopen() {
	for b := range v.branches {
		b.reopen()
	}
}

// reopen replaces the streams without delay.
func (b *branch) reopen() {
	for r := range b.byRole {
		b.byRole[r].replace()
	}
}

// replace closes a stream, so that the loop opens a new one. Further responses on the old one are ignored.
func (l *adsStream) replace() {
	if l.stream != nil {
		l.open, l.replaced = false, true
		l.cancel(errResync)
	}
}

// backOff returns the delay after a stream that received no response. held reports that the stream was open for
// minHeld: then the delay is at most ReconnectMax and the backoff starts over.
func (l *adsStream) backOff(held bool) time.Duration {
	if held {
		l.retry.Reset()
		return rand.N(ReconnectMax)
	}
	return l.retry.NextBackOff()
}

// logEnd counts and logs the end of a stream. It returns the failure; nil if the end was expected.
func (v *streams) logEnd(r role, err error, wait time.Duration) *Failure {
	retry := slog.Duration("retry_in", wait.Round(time.Millisecond))
	err = explainUnresolved(v.cfg.Targets[v.target], err)
	failure := v.session.recordStreamEnd(err)
	switch {
	case errors.Is(err, errResync), errors.Is(err, context.Canceled): // context.Canceled: Sync is about to return
	case status.Code(err) == codes.Unimplemented:
		v.log.Warn("origin does not implement this ADS variant: set TENDER_ORIGIN_PROTOCOL to auto",
			slog.String("protocol", v.cfg.Protocol.String()), slog.String("stream", r.String()), slog.Any("err", err), retry)
	case status.Code(err) == codes.FailedPrecondition:
		v.log.Error("origin refused this relay: fix the configuration (serving cached state)",
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

// usesSotW reports whether to open a stream in SotW. The auxiliary stream uses the variant of the main one.
func (v *streams) usesSotW(b *branch, r role) bool {
	if r == auxiliary {
		return b.byRole[main].sotw != nil
	}
	return v.noDelta || v.cfg.Protocol == ProtocolSotW
}

// fallBackToSotW reports whether a stream ended because the target does not implement Delta, so that the relay should
// use SotW. After any other end of the main stream, the relay tries Delta again: the next server may be newer.
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

// reportRequest passes a request, and the clients that caused it, to Config.Requested.
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
