package downstream

import (
	"iter"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream/subscription"
)

// A Change is the change of a type or a collection between two positions of a view.
type Change = subscription.Change

// An Observed is an open stream with its observer. Its methods do not wait for a stalled stream. The observer must not
// call them, because its methods are called while the stream is locked.
type Observed struct {
	Observer
	stream *stream
}

// Observed yields the open streams that have an observer, in the order in which they were opened. It does not wait for
// a stalled stream.
func (s *Server) Observed() iter.Seq[Observed] {
	return func(yield func(Observed) bool) {
		for _, stream := range s.openStreams() {
			if o := stream.observer(); o != nil && !yield(Observed{o, stream}) {
				return
			}
		}
	}
}

// observer returns the observer of the stream; nil if it has none or the stream has ended.
func (s *stream) observer() Observer {
	s.lock.peek()
	defer s.lock.release()
	if s.ended {
		return nil
	}
	return s.group.Observer
}

// AckStatus reports whether the client has accepted everything that it was sent of the types that match. It also
// returns the matching types with an active refusal: a NACK that no later response has superseded. A client that
// subscribes to none of the types has accepted nothing.
func (o Observed) AckStatus(match func(typeURL string) bool) (accepted bool, refused []string) {
	s := o.stream
	s.lock.peek()
	defer s.lock.release()
	if s.ended {
		return false, nil
	}
	g := s.group.View.Generation()
	matching, acked := 0, 0
	for _, sub := range s.subs {
		if !match(sub.TypeURL) {
			continue
		}
		matching++
		at := sub.At(g)
		if at.AcceptedAll() {
			acked++
		}
		if at.HasActiveRefusal() {
			refused = append(refused, sub.TypeURL)
		}
	}
	return matching > 0 && matching == acked, refused
}

// ChangeState returns the state of changes at the client: Refused if it refused any of them, otherwise the least of
// NotSent, Sent and Accepted over the changes that it subscribes to. subscribed is false if it subscribes to none.
func (o Observed) ChangeState(changes []Change) (state ResourceState, subscribed bool) {
	s := o.stream
	s.lock.peek()
	defer s.lock.release()
	if s.ended {
		return NotSent, false
	}
	g := s.group.View.Generation()
	for i := range changes {
		typeURL, _, _ := cache.SplitCollection(changes[i].Key)
		sub := s.subscription(typeURL)
		if sub == nil {
			continue
		}
		switch of, concerned := sub.At(g).Answer(&changes[i]); {
		case !concerned:
		case of == Refused:
			return Refused, true
		case !subscribed:
			state, subscribed = of, true
		default:
			state = min(state, of)
		}
	}
	return state, subscribed
}
