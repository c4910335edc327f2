package guard

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/status"
)

// Counters count ended streams and refused clients, log refusals, and keep the last refusal of each cause for
// operators. Its methods may be called from any goroutine.
type Counters struct {
	logger *slog.Logger // read-only after construction
	ended  [endings]atomic.Int64
	causes map[Cause]*refusals // read-only after construction
}

// refusals are the refusals of one cause.
type refusals struct {
	count atomic.Int64
	limit LogLimiter
	last  atomic.Pointer[Refusal]
}

// A Refusal has the number of refusals of a cause, and the last of them.
type Refusal struct {
	Cause Cause
	Count int64
	At    time.Time
	Peer  string // the last refused peer: its host, or the identity in its certificate; empty if unknown
	Err   string
}

// NewCounters returns counters that log to a logger.
func NewCounters(logger *slog.Logger) *Counters {
	c := &Counters{logger: logger, causes: make(map[Cause]*refusals)}
	addCauses(c, limits)
	addCauses(c, denials)
	addCauses(c, handshakeFailures)
	addCauses(c, invalids)
	addCauses(c, acceptFailures)
	return c
}

// addCauses adds the causes of one kind. Each has its own rate limit of log lines, so that none hides another.
func addCauses[C interface {
	~int
	Cause
}](c *Counters, count C,
) {
	for cause := range count {
		c.causes[cause] = &refusals{limit: NewLogLimiter(rate.Every(10*time.Second), 5)}
	}
}

// StreamEnded counts a stream of a peer that ended with err, which may be nil. It counts and logs the refusal if the
// relay refused the stream.
func (c *Counters) StreamEnded(peer, node string, err error) {
	c.ended[endingOf(err)].Add(1)
	if cause, is := CauseOf(err); is {
		c.RequestRefused(cause, peer, node, err)
	}
}

// RequestRefused counts and logs the refusal of a stream, a request or a poll. node is the label of the client's
// Node; empty if it is unknown.
func (c *Counters) RequestRefused(cause Cause, peer, node string, err error) {
	message := "client request refused"
	if _, denied := cause.(Denial); denied {
		message = "client not authorized"
	}
	var attrs []slog.Attr
	if node != "" {
		attrs = append(attrs, slog.String("node", node))
	}
	c.Refused(message, cause, peer, err, attrs...)
}

// Refused counts and logs a refusal. Lines of one cause are rate-limited. Nothing is logged without a message.
func (c *Counters) Refused(message string, cause Cause, peer string, err error, attrs ...slog.Attr) {
	r, text := c.causes[cause], status.Convert(err).Message()
	if message != "" && r.limit.Allow() {
		attrs = append([]slog.Attr{
			slog.String("peer", peer), slog.String("kind", cause.Kind()), slog.String("reason", cause.String()),
			slog.String("err", text),
		}, append(attrs, r.limit.Suppressed())...)
		//nolint:sloglint // each caller passes a constant
		c.logger.LogAttrs(context.Background(), slog.LevelWarn, message, attrs...)
	}
	r.count.Add(1)
	r.last.Store(&Refusal{At: time.Now(), Peer: peer, Err: cutText(text)})
}

// cutText bounds the memory of an error that is kept.
func cutText(text string) string {
	const maxText = 512
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	return strings.ToValidUTF8(text, "\ufffd")
}

// Refusals returns the causes for which clients were refused, the latest first.
func (c *Counters) Refusals() (all []Refusal) {
	for cause, r := range c.causes {
		if last := r.last.Load(); last != nil {
			all = append(all, Refusal{cause, r.count.Load(), last.At, last.Peer, last.Err})
		}
	}
	slices.SortFunc(all, func(a, b Refusal) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Cause.Kind(), b.Cause.Kind()),
			cmp.Compare(a.Cause.String(), b.Cause.String()))
	})
	return all
}

// Ended returns the number of streams that ended, by reason.
func (c *Counters) Ended() map[Ending]int64 {
	values := make(map[Ending]int64, len(c.ended))
	for i := range c.ended {
		values[Ending(i)] = c.ended[i].Load()
	}
	return values
}

// Causes returns the number of refusals by cause, with zero for those that have none.
func (c *Counters) Causes() map[Cause]int64 {
	values := make(map[Cause]int64, len(c.causes))
	for cause, r := range c.causes {
		values[cause] = r.count.Load()
	}
	return values
}
