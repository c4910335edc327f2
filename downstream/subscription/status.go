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

	// State is [Subscription.String]; set only in the status of a single client.
	State string

	// Nonce, Version and SentAt describe the newest response; all zero before the first. Pending reports that the client
	// has not answered it.
	Nonce, Version string
	SentAt         time.Time
	Pending        bool

	// Accepted is the last version that the client accepted, at AcceptedAt.
	Accepted   string
	AcceptedAt time.Time

	// Lag is how long the client has lacked the oldest change that it was sent or that is due, and that it has not
	// accepted; zero if there is none. UnacceptedSince is the time of that change.
	Lag             time.Duration
	UnacceptedSince time.Time

	// Refusal is the newest active NACK, or the newest if none is active; nil if the client never rejected a response.
	// Refused reports that it is active: the client has accepted nothing later, or a rejected change is still current.
	Refusal *Refusal
	Refused bool
}

// A ResourceStatus is the state of one resource for a stream.
type ResourceStatus struct {
	TypeURL string
	Entry   *cache.Entry // the relay's entry; without a resource if it was removed or never existed
	State   ResourceState
	Refusal *Refusal // if the state is Refused
}

// A ResourceState is the delivery state of a resource for a client.
type ResourceState int

// The delivery states of a resource.
const (
	NotSent  ResourceState = iota // the client was not sent the current version
	Sent                          // the client was sent it and has not answered
	Accepted                      // the client accepted it, or reported that it has it
	Refused                       // the client rejected the response
)

func (s ResourceState) String() string {
	return [...]string{"not_sent", "sent", "accepted", "refused"}[s]
}

// Status returns the state of the subscription.
func (s AtGeneration) Status(now time.Time) TypeStatus {
	t := TypeStatus{
		TypeURL: s.TypeURL, Wildcard: s.wildcard != nil, Names: len(s.names), Globs: s.globs.names(),
		Nonce: s.nonce, Version: s.version, SentAt: s.sentAt, Pending: s.pending,
		Accepted: s.ackedVersion, AcceptedAt: s.ackedAt.Time(),
		Refusal: s.Refusal(),
	}
	if since := s.unacceptedSince(); since != 0 {
		t.UnacceptedSince = since.Time()
		t.Lag = max(since.ago(now), 0)
	}
	if active := s.activeRefusal(); active != nil {
		t.Refusal, t.Refused = active, true
	}
	return t
}

// Resources returns the state of the resources that the client subscribed to: first by name, then by wildcard and
// globs.
func (s AtGeneration) Resources() (out []ResourceStatus) {
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

// Resource returns the state of one resource, and whether the client subscribed to it.
func (s AtGeneration) Resource(name string) (r ResourceStatus, asked bool) {
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

// activeRefusal returns the newest active refusal, nil if there is none.
func (s AtGeneration) activeRefusal() *Refusal {
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

// refusals yields the refusals that may be active, newest first. If the client accepted a complete set since, none is.
func (s AtGeneration) refusals() iter.Seq[*Refusal] {
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

// refusedMember reports whether a resource of a wildcard set is unchanged since the client rejected it.
func (s AtGeneration) refusedMember(r *Refusal) bool {
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

// named returns the state of a resource that the client subscribed to by name.
func (s AtGeneration) named(n subscribed) ResourceStatus {
	e, seq := s.entryOf(n)
	if e == nil {
		e = &cache.Entry{Name: n.name}
	}
	return s.stateOf(e, seq, n.sent != 0 && seq <= n.sent)
}

// member returns the state of a resource of the wildcard set.
func (s AtGeneration) member(e *cache.Entry) ResourceStatus {
	upTo := s.sentUpTo
	if !e.Present() {
		upTo = s.removedUpTo
	}
	started := s.wildcardStarted || s.sendsSets() // complete sets do not set wildcardStarted
	return s.stateOf(e, e.Seq, started && !s.sendAll && e.Seq <= upTo)
}

// stateOf returns the state of an entry that changed at a position. sent reports whether the client was sent it.
func (s AtGeneration) stateOf(e *cache.Entry, changed cache.Seq, sent bool) ResourceStatus {
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
