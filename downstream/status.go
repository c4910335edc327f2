package downstream

import (
	"cmp"
	"iter"
	"slices"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/tier"
	"github.com/xdstender/tender/downstream/subscription"
)

// A StreamStatus is the state of one client stream. Held polls and streams of load reports have none.
type StreamStatus struct {
	// Number identifies the stream. It is never reused by the server.
	Number uint64

	// Address is the address of the client as "host:port"; empty if it has none.
	Address string

	Group string      // the client's node group; empty before the first request
	View  *cache.View // from which the client is served; nil before the first request

	TypeURL string // empty on an aggregated stream
	Delta   bool
	Began   time.Time

	// Sent is the number of bytes sent, before compression. Unread is the number of bytes in responses that the client has
	// not answered.
	Sent, Unread uint64

	// Stalled is when a send started to block because the client does not read; zero if none blocks.
	Stalled time.Time

	Types []TypeStatus // in send order

	Below *Below // nil unless the client is a relay

	node  string // encoded, without extensions
	grant Grant
}

// Identity returns the identity in the client's certificate; empty without an Authorizer.
func (s *StreamStatus) Identity() string {
	if s.grant == nil {
		return ""
	}
	return s.grant.Identity()
}

// Node returns the newest Node of the client without its extensions; nil before the first request.
func (s *StreamStatus) Node() *corepb.Node {
	if s.node == "" {
		return nil
	}
	n := new(node)
	_ = proto.Unmarshal([]byte(s.node), n) // package guard has encoded it
	return n
}

// NodeID returns the id of the Node without decoding the rest.
func (s *StreamStatus) NodeID() string {
	const id = 1 // the first field, encoded first
	encoded := []byte(s.node)
	num, _, n := protowire.ConsumeTag(encoded)
	if num != id {
		return ""
	}
	text, _ := protowire.ConsumeBytes(encoded[n:])
	return string(text)
}

type (
	// A TypeStatus is the state of a stream's subscription to one resource type.
	TypeStatus = subscription.TypeStatus
	// A Sync says whether a client has what is served to it.
	Sync = subscription.Sync
	// A Holding is the version of a resource that a client was sent last, or that it accepted last.
	Holding = subscription.Holding
	// A ResourceStatus is the state of one resource for a stream.
	ResourceStatus = subscription.ResourceStatus
	// A ResourceState says whether a client was sent a resource, and its answer.
	ResourceState = subscription.ResourceState
	// A Rejection is a NACK.
	Rejection = subscription.Rejection
)

// The values of a Sync.
const (
	Rejecting = tier.Rejecting
	Behind    = tier.Behind
	Unknown   = tier.Unknown
	InSync    = tier.InSync
)

// The values of a ResourceState.
const (
	NotSent  = subscription.NotSent
	Sent     = subscription.Sent
	Accepted = subscription.Accepted
	Rejected = subscription.Rejected
)

// openStreams returns the open streams in the order in which they were opened.
func (s *Server) openStreams() []*stream { return s.streamsAfter(0) }

// streamsAfter is openStreams for the streams with a larger number.
func (s *Server) streamsAfter(number uint64) (streams []*stream) {
	s.registry.Range(func(_, st any) bool {
		if st := st.(*stream); st.number > number {
			streams = append(streams, st)
		}
		return true
	})
	slices.SortFunc(streams, func(a, b *stream) int { return cmp.Compare(a.number, b.number) })
	return streams
}

// openStream returns the open stream with a number, or nil.
func (s *Server) openStream(number uint64) *stream {
	st, _ := s.registry.Load(number)
	found, _ := st.(*stream)
	return found
}

// Clients yields the state of each open stream, in the order in which they were opened. Each state is read when it is
// yielded. Clients does not wait for a stalled stream.
func (s *Server) Clients() iter.Seq[StreamStatus] { return s.statuses(0, false) }

// ClientsAfter is [Server.Clients] for the streams with a larger number, with what [Server.Client] returns.
func (s *Server) ClientsAfter(number uint64) iter.Seq[StreamStatus] { return s.statuses(number, true) }

// statuses yields the states of the streams with a number larger than after.
func (s *Server) statuses(after uint64, detailed bool) iter.Seq[StreamStatus] {
	return func(yield func(StreamStatus) bool) {
		for _, stream := range s.streamsAfter(after) {
			if status, open := stream.status(time.Now(), detailed); open && !yield(status) {
				return
			}
		}
	}
}

// Client returns the state of the stream with a number, and whether it is open.
func (s *Server) Client(number uint64) (status StreamStatus, open bool) {
	if stream := s.openStream(number); stream != nil {
		return stream.status(time.Now(), true)
	}
	return StreamStatus{}, false
}

// Resources returns the state of each resource that a stream subscribed to, by type in send order: first the resources
// subscribed by name, then those of wildcards and globs. It returns nil if the stream is not open.
func (s *Server) Resources(number uint64) []ResourceStatus {
	if stream := s.openStream(number); stream != nil {
		return stream.resourceStatuses()
	}
	return nil
}

// A Holder is a stream that subscribed to a resource, with the state of that resource.
type Holder struct {
	Stream uint64
	Group  string // the client's node group
	ResourceStatus
}

// Holders returns the open streams that subscribed to a resource by name, wildcard or glob.
func (s *Server) Holders(typeURL, name string) (holders []Holder) {
	for _, stream := range s.openStreams() {
		if r, subscribed := stream.resourceStatus(typeURL, name); subscribed {
			holders = append(holders, r)
		}
	}
	return holders
}

// status returns the state of the stream, and whether it is open. With detailed, it includes the state of each
// subscription.
func (s *stream) status(now time.Time, detailed bool) (status StreamStatus, open bool) {
	stalled := s.lock.peek()
	defer s.lock.release()
	if s.ended {
		return StreamStatus{}, false
	}
	status = StreamStatus{
		Number: s.number, TypeURL: s.typeURL, Delta: s.delta, Began: s.startedAt,
		Sent: s.bytesSent, Unread: s.bytesSent - s.bytesRead,
		grant: s.grant, Group: s.group.Key, View: s.group.View,
	}
	if s.keptNode != nil {
		status.node = s.keptNode.Shown
	}
	if p, ok := peer.FromContext(s.rpc.Context()); ok && p.Addr != nil {
		status.Address = p.Addr.String()
	}
	if stalled {
		status.Stalled = s.stalledAt.Time()
	}
	status.Types = make([]TypeStatus, len(s.subs))
	for i, sub := range s.subs {
		if status.Types[i] = sub.At(s.group.View.Generation()).Status(now); detailed {
			status.Types[i].State = sub.String()
		}
	}
	status.Below = s.below(status.Types, now)
	return status, true
}

// nodeLabel returns the label of the client's Node, empty before the first request was handled.
func (s *stream) nodeLabel() string {
	s.lock.peek()
	defer s.lock.release()
	if s.client == nil {
		return ""
	}
	return s.client.node
}

// resourceStatuses returns the state of each resource that the client subscribed to.
func (s *stream) resourceStatuses() (out []ResourceStatus) {
	s.lock.peek()
	defer s.lock.release()
	if s.ended || s.watch == nil {
		return nil
	}
	g := s.group.View.Generation()
	for _, sub := range s.subs {
		out = append(out, sub.At(g).Resources()...)
	}
	return out
}

// resourceStatus returns the state of one resource, and whether the client subscribed to it.
func (s *stream) resourceStatus(typeURL, name string) (r Holder, subscribed bool) {
	s.lock.peek()
	defer s.lock.release()
	sub := s.subscription(typeURL)
	if s.ended || sub == nil {
		return r, false
	}
	r = Holder{Stream: s.number, Group: s.group.Key}
	r.ResourceStatus, subscribed = sub.At(s.group.View.Generation()).Resource(name)
	return r, subscribed
}

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
// returns the matching types with an active rejection: a NACK that no later response has superseded. A client that
// subscribes to none of the types has accepted nothing.
func (o Observed) AckStatus(match func(typeURL string) bool) (accepted bool, rejected []string) {
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
		if at.HasActiveRejection() {
			rejected = append(rejected, sub.TypeURL)
		}
	}
	return matching > 0 && matching == acked, rejected
}

// Answered reports whether the client has answered all that it was sent, and has accepted or rejected the state of some types,
// to all of which it subscribes.
func (o Observed) Answered(types []string) bool {
	s := o.stream
	s.lock.peek()
	defer s.lock.release()
	if s.ended {
		return false
	}
	g := s.group.View.Generation()
	for _, typeURL := range types {
		if sub := s.subscription(typeURL); sub == nil || !sub.At(g).AcceptedAll() {
			return false
		}
	}
	return !slices.ContainsFunc(s.subs, func(sub *subscription.Subscription) bool { return sub.At(g).AwaitsAnswer() })
}

// ChangeState returns the state of changes at the client: Rejected if it rejected any of them, otherwise the least of
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
		case of == Rejected:
			return Rejected, true
		case !subscribed:
			state, subscribed = of, true
		default:
			state = min(state, of)
		}
	}
	return state, subscribed
}
