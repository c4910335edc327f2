package subscription

import (
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A Refusal is a response that a client did not accept. It is immutable.
type Refusal struct {
	At             time.Time
	Nonce, Version string // of the response
	Code           int32  // of gRPC
	Detail         string // the client's error message, cut off after 2 KiB; of Secrets, only its length

	// TraceID and SpanID are those of the span that shows it; empty if nobody looks.
	TraceID, SpanID string

	after, upTo cache.Seq  // the response held what changed after the one and up to the other
	earlier     []*Refusal // of the newest of a type: those before it, newest first
}

// Bounds on what is kept of refusals: bytes of the client's words, and how many refusals of a type that the client
// did not undo by accepting a later response.
const (
	maxDetail   = 2 << 10
	maxNonce    = 64
	maxRefusals = 8
)

// newRefusal returns the refusal of a response, which r answers, that held what changed after one position and up to
// another. Earlier refusals stand beside it, unless each response holds the complete set.
func newRefusal(r *wire.Request, last *Refusal, whole bool, after, upTo cache.Seq, version string, now time.Time) *Refusal {
	var earlier []*Refusal
	switch {
	case last == nil || whole:
	case upTo == last.upTo: // the same response once more
		after, earlier = last.after, last.earlier
	default:
		after = max(after, last.upTo)
		alone := *last
		alone.earlier = nil
		earlier = append([]*Refusal{&alone}, last.earlier[:min(len(last.earlier), maxRefusals-2)]...)
	}
	return &Refusal{
		At: now, Nonce: strings.Clone(cut(r.Nonce, maxNonce)), Version: version,
		Code: r.ErrorCode, Detail: strings.Clone(cut(r.ErrorMessage, maxDetail)),
		after: after, upTo: upTo, earlier: earlier,
	}
}

// cut returns the beginning of a text that is longer than so many bytes.
func cut(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes], "") + "…"
}
