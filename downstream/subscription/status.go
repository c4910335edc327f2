package subscription

import (
	"iter"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
)

// A TypeStatus is the state of a stream's subscription to one resource type.
type TypeStatus struct {
	TypeURL  string
	Wildcard bool
	Names    int // that the client subscribed to
	Globs    []string

	// State is [Subscription.String], where one client is asked for.
	State string

	// Nonce and Version are those of the newest response, SentAt is when it left; all zero before the first. Pending
	// reports that the client has not answered it.
	Nonce, Version string
	SentAt         time.Time
	Pending        bool

	// Accepted is the version that the client accepted last, AcceptedAt is when.
	Accepted   string
	AcceptedAt time.Time

	// Lag is for how long the client has lacked the oldest change that it was sent, or is to be sent, and has not
	// accepted; zero if there is none. Lacks is since when.
	Lag   time.Duration
	Lacks time.Time

	// Refusal is the newest one that stands, or else the newest; nil if the client never refused a response. Refused
	// reports that it stands: the client answered nothing later, or something that it refused is still current.
	Refusal *Refusal
	Refused bool
}

// A ResourceStatus is the state of one resource for a stream.
type ResourceStatus struct {
	TypeURL string
	Entry   *cache.Entry // what the relay has; absent for a resource that is gone or never existed
	State   ResourceState
	Refusal *Refusal // if the state is Refused
}

// A ResourceState says what became of a resource on the way to a client.
type ResourceState int

// The states of a resource on the way to a client.
const (
	NotSent  ResourceState = iota // the client was not sent the current version
	Sent                          // it was, and has not answered yet
	Accepted                      // it accepted it, or reported itself that it has it
	Refused                       // it refused the response
)

func (s ResourceState) String() string {
	return [...]string{"not_sent", "sent", "accepted", "refused"}[s]
}

// Status returns the state of the subscription.
func (s At) Status(now time.Time) TypeStatus {
	t := TypeStatus{
		TypeURL: s.TypeURL, Wildcard: s.wildcard != nil, Names: len(s.names), Globs: s.globs.names(),
		Nonce: s.nonce, Version: s.version, SentAt: s.sentAt, Pending: s.pending,
		Accepted: s.ackedVersion, AcceptedAt: s.ackedAt.Time(),
		Refusal: s.Refusal(),
	}
	if lacks := s.lackingSince(); lacks != 0 {
		t.Lacks = lacks.Time()
		t.Lag = max(lacks.ago(now), 0)
	}
	if stands := s.standingRefusal(); stands != nil {
		t.Refusal, t.Refused = stands, true
	}
	return t
}

// Resources returns the state of what the client asked for: first all that it named, then what wildcards and globs
// stand for.
func (s At) Resources() (out []ResourceStatus) {
	for _, n := range s.names {
		out = append(out, s.named(n))
	}
	for part := range s.wildcards() {
		v := part.At(s.g)
		for e := range v.t.Wildcard.Since(0) {
			if _, named := v.find(e.Name); !named && (e.Present() || e.Seq > v.removedUpTo) {
				out = append(out, v.member(e))
			}
		}
	}
	return out
}

// Resource returns the state of one resource, and whether the client asked for it.
func (s At) Resource(name string) (r ResourceStatus, asked bool) {
	if at, ok := s.find(s.Watch.Find(s.Key, []string{name})[0]); ok {
		return s.named(s.names[at]), true
	}
	for part := range s.wildcards() {
		n := s.Watch.Find(part.Key, []string{name})[0]
		if n == nil {
			continue
		}
		v := part.At(s.g)
		if e := v.t.Wildcard.Get(n); e.Present() {
			return v.member(e), true
		}
	}
	return r, false
}

// standingRefusal returns the newest refusal that stands, nil if none does.
func (s At) standingRefusal() *Refusal {
	if r := s.Refusal(); r != nil && r.At.After(s.ackedAt.Time()) {
		return r
	}
	for r := range s.refusals() {
		if slices.ContainsFunc(s.names, func(n subscribed) bool { return s.named(n).Refusal == r }) || s.refusedMember(r) {
			return r
		}
	}
	return nil
}

// refusals yields the refusals that may stand, the newest first. If the client accepted a complete set since, none does.
func (s At) refusals() iter.Seq[*Refusal] {
	return func(yield func(*Refusal) bool) {
		newest := s.Refusal()
		if newest == nil || s.sendsSets() && s.ackedAt.Time().After(newest.At) || !yield(newest) {
			return
		}
		for _, r := range newest.earlier {
			if !yield(r) {
				return
			}
		}
	}
}

// refusedMember reports whether a resource of a wildcard set is as it was when it was refused.
func (s At) refusedMember(r *Refusal) bool {
	for w := range s.wildcards() {
		part := w.At(s.g)
		for e := range part.t.Wildcard.Since(r.after) {
			if e.Seq > r.upTo {
				break
			}
			if _, named := part.find(e.Name); !named && part.member(e).Refusal == r {
				return true
			}
		}
	}
	return false
}

// named returns the state of what the client named.
func (s At) named(n subscribed) ResourceStatus {
	e, seq := s.entryOf(n)
	if e == nil {
		e = &cache.Entry{Name: n.name}
	}
	return s.stateOf(e, seq, n.sent != 0 && seq <= n.sent)
}

// member returns the state of a resource of the wildcard set.
func (s At) member(e *cache.Entry) ResourceStatus {
	upTo := s.sentUpTo
	if !e.Present() {
		upTo = s.removedUpTo
	}
	started := s.wildcardStarted || s.sendsSets() // of complete sets, only sendAll shows it
	return s.stateOf(e, e.Seq, started && !s.sendAll && e.Seq <= upTo)
}

// stateOf returns what became of an entry that changed at a position.
func (s At) stateOf(e *cache.Entry, changed cache.Seq, sent bool) ResourceStatus {
	r := ResourceStatus{TypeURL: s.TypeURL, Entry: e}
	if !sent {
		return r
	}
	for refusal := range s.refusals() {
		if refusal.after < changed && changed <= refusal.upTo {
			r.State, r.Refusal = Refused, refusal
			return r
		}
	}
	if r.State = Accepted; s.pending && changed > s.ackedUpTo() {
		r.State = Sent
	}
	return r
}
