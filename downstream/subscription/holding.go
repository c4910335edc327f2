package subscription

import "github.com/xdstender/tender/cache"

// A Holding is the version of a resource that the client was sent last, or that it accepted last. It is known if it
// follows from the positions of the client: no version is kept for each client and resource.
type Holding struct {
	// Known reports whether Version is known. A known empty version means that the client was sent none, or the removal.
	Known   bool
	Version string

	// At is the position of the change that made the version, if Known is false and a history of the view may have it;
	// otherwise 0.
	At cache.Seq
}

// A ResourceStatus is the state of one resource for a stream.
type ResourceStatus struct {
	TypeURL   string
	Entry     *cache.Entry // the relay's entry; without a resource if it was removed or never existed
	State     ResourceState
	Rejection *Rejection // if the state is Rejected

	SentVersion, AcceptedVersion Holding
}

// A ResourceState is the delivery state of a resource for a client.
type ResourceState int

// The delivery states of a resource.
const (
	NotSent  ResourceState = iota // the client was not sent the current version
	Sent                          // the client was sent it and has not answered
	Accepted                      // the client accepted it, or reported that it has it
	Rejected                      // the client rejected the response
)

func (s ResourceState) String() string {
	return [...]string{"not_sent", "sent", "accepted", "rejected"}[s]
}

// nothing is the Holding of a resource that the client does not have.
var nothing = Holding{Known: true}

// current returns the Holding of a client that was sent the newest change of an entry.
func (s AtGeneration) current(e *cache.Entry) Holding {
	switch {
	case e.Present():
		return Holding{Known: true, Version: e.Resource.Version}
	case e.Prior != nil && !s.Delta && !s.FullState:
		return Holding{} // no response of the type can contain a removal (B.17)
	}
	return nothing
}

// former returns the Holding of a client that has all changes up to a position, which is before that of the entry.
func former(e *cache.Entry, p cache.Seq) Holding {
	at, existed, known := e.Former()
	switch {
	case !known || at > p:
		return Holding{}
	case !existed:
		return nothing
	case e.Prior != nil:
		return Holding{Known: true, Version: e.Prior.Version}
	default:
		return Holding{At: at}
	}
}

// sentMember returns what the client was sent of a resource of the wildcard set. upTo is the position of the client.
func (s AtGeneration) sentMember(e *cache.Entry, started bool, upTo cache.Seq) Holding {
	_, _, known := e.Former()
	switch {
	case !s.sentAny:
		return nothing
	case !started || s.sendAll:
		return Holding{} // by a name, or before the client subscribed to the set again
	case !known && e.Created() == e.Seq && s.t.Wildcard.Floor() <= upTo:
		return nothing // it is new
	}
	return former(e, upTo)
}

// sentName returns what the client was sent of a name, given that it was not sent the entry.
func (s AtGeneration) sentName(e *cache.Entry, n subscribed) Holding {
	switch {
	case !s.sentAny, e.Seq == 0 && n.sent == 0:
		return nothing // the view never had it
	case n.sent == 0:
		return Holding{} // the name is new, or due to be sent again
	}
	if at, _, known := e.Former(); known && at == n.sent {
		return former(e, at)
	}
	return Holding{At: n.sent}
}

// accepted returns what the client accepted of a resource with the state r, which changed at a position and of which it
// was sent r.SentVersion.
func (s AtGeneration) accepted(r *ResourceStatus, changed cache.Seq) Holding {
	if r.State == Accepted {
		if s.firstSent(changed, true) {
			return Holding{}
		}
		return r.SentVersion
	}
	if version := s.initialVersions[r.Entry.Name.String()]; version != "" {
		return Holding{Known: true, Version: version}
	}
	hasNone := s.ackedAt == 0 || r.State == NotSent && r.SentVersion == nothing // it has accepted no response, or not this
	if hasNone && !s.Returning() {
		return nothing
	}
	return s.acceptedBefore(r, changed)
}

// acceptedBefore returns what the client accepted of a resource before its change at a position.
func (s AtGeneration) acceptedBefore(r *ResourceStatus, changed cache.Seq) Holding {
	switch {
	case r.State == NotSent:
		return s.unlessUnanswered(r.SentVersion)
	case s.firstSent(changed, false):
		return Holding{}
	case r.State == Sent:
		return s.unlessUnanswered(former(r.Entry, s.ackedUpTo()))
	default:
		return s.unlessUnanswered(former(r.Entry, r.Rejection.after))
	}
}

// firstSent reports whether a change was sent because the client subscribed to a name or a glob, in a response that the
// client rejected, or (unless rejectedOnly) has not answered. The former content then was perhaps not sent.
func (s AtGeneration) firstSent(changed cache.Seq, rejectedOnly bool) bool {
	of := span{changed - 1, changed}
	for r := range s.rejections() {
		if of.overlaps(r.newlyRequested) {
			return true
		}
	}
	if rejectedOnly {
		return false
	}
	if of.overlaps(s.newlyRequested) {
		return true
	}
	for i := range s.earlier.len() {
		if of.overlaps(s.earlier.list[i].newlyRequested) {
			return true
		}
	}
	return false
}

// unlessUnanswered returns a Holding that the client was sent, or an unknown one if the client rejected it or has not
// answered.
func (s AtGeneration) unlessUnanswered(h Holding) Holding {
	if h.At == 0 {
		return h
	}
	of := span{h.At - 1, h.At}
	if s.awaitsAnswerFor(of.after, of.upTo) {
		return Holding{}
	}
	for r := range s.rejections() {
		if r.HasChange(of.after, of.upTo) {
			return Holding{}
		}
	}
	return h
}
