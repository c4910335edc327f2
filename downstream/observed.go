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

// Stands reports whether the client has answered all that it was sent of the types that match, and which of these it
// refuses: a refusal stands. A client that subscribes to none of them has accepted nothing.
func (o Observed) Stands(match func(typeURL string) bool) (accepted bool, refused []string) {
	s := o.stream
	s.lock.peek()
	defer s.lock.release()
	if s.ended {
		return false, nil
	}
	g := s.group.View.Generation()
	of, answered := 0, 0
	for _, sub := range s.subs {
		if !match(sub.TypeURL) {
			continue
		}
		of++
		at := sub.At(g)
		if at.AcceptedAll() {
			answered++
		}
		if at.HasActiveRefusal() {
			refused = append(refused, sub.TypeURL)
		}
	}
	return of > 0 && of == answered, refused
}

// Answer returns what became of changes at the client: the least of NotSent, Sent and Accepted over those that it
// subscribes to, or Refused if it refused any. It reports false if it subscribes to none of them.
func (o Observed) Answer(of []Change) (state ResourceState, wants bool) {
	s := o.stream
	s.lock.peek()
	defer s.lock.release()
	if s.ended {
		return NotSent, false
	}
	g := s.group.View.Generation()
	for i := range of {
		typeURL, _, _ := cache.SplitCollection(of[i].Key)
		sub := s.subscription(typeURL)
		if sub == nil {
			continue
		}
		switch is, some := sub.At(g).Answer(&of[i]); {
		case !some:
		case is == Refused:
			return Refused, true
		case !wants:
			state, wants = is, true
		default:
			state = min(state, is)
		}
	}
	return state, wants
}
