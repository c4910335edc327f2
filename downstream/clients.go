package downstream

import (
	"cmp"
	"iter"

	"slices"
	"strings"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A StreamStatus says how the stream of one client stands. Held polls and streams of
// load reports have none.
type StreamStatus struct {
	// Number is that of no other stream of the server, at any time.
	Number uint64

	// Address is the client's, "host:port"; empty if it has none.
	Address string

	Group string // of the node; empty before the first request

	TypeURL string // the only one served; empty on an aggregated stream
	Delta   bool
	Began   time.Time

	// Sent counts the bytes that were sent, before compression, and Unread those of them
	// that the client has not answered yet.
	Sent, Unread uint64

	// Stalled is since when a send waits for the client to read; zero if none does.
	Stalled time.Time

	Types []TypeStatus // in the order of sending

	node  string // as shownOf has encoded it
	grant Grant
}

// Identity says who the client is by its certificate, and not by what it says; empty where
// nobody asks for that.
func (s *StreamStatus) Identity() string {
	if s.grant == nil {
		return ""
	}
	return s.grant.Identity()
}

// Node returns the client's, as it said last, without what takes much room and
// tells little (its extensions); nil before that.
func (s *StreamStatus) Node() *corepb.Node {
	if s.node == "" {
		return nil
	}
	n := new(node)
	_ = proto.Unmarshal([]byte(s.node), n) // which shownOf has encoded
	return n
}

// NodeID returns the id of the node, which costs less than all of it.
func (s *StreamStatus) NodeID() string {
	const id = 1 // the first field, and so encoded first
	encoded := []byte(s.node)
	num, _, n := protowire.ConsumeTag(encoded)
	if num != id {
		return ""
	}
	text, _ := protowire.ConsumeBytes(encoded[n:])
	return string(text)
}

// A TypeStatus says how a stream stands with one resource type.
type TypeStatus struct {
	TypeURL  string
	Wildcard bool
	Names    int // that the client subscribed to
	Globs    []string

	// Nonce and Version are those of the newest response, SentAt is when it left; all
	// zero before the first. Pending reports that the client has not answered it.
	Nonce, Version string
	SentAt         time.Time
	Pending        bool

	// Accepted is the version that the client accepted last, AcceptedAt is when.
	Accepted   string
	AcceptedAt time.Time

	// Lag is for how long the client has lacked the oldest change that it was sent, or is
	// to be sent, and has not accepted; zero if there is none. Lacks is since when.
	Lag   time.Duration
	Lacks time.Time

	// Refusal is the newest one that stands, or else the newest; nil if the client never
	// refused a response. Refused reports that it stands: it was the client's last word, or
	// something that it refused is still what there is.
	Refusal *Refusal
	Refused bool
}

// A Refusal is a response that a client did not accept. It is immutable.
type Refusal struct {
	At             time.Time
	Nonce, Version string // of the response
	Code           int32  // of gRPC
	Detail         string // the client's own words, cut off after 2 KiB; of Secrets, how many they are

	// TraceID and SpanID are those of the span that shows it; empty if nobody looks.
	TraceID, SpanID string

	after, upTo cache.Seq  // what the response told
	earlier     []*Refusal // of the stream's newest: those before it, newest first
}

// What is kept of the words of a client, in bytes, and of how many refusals of a type: one that it
// did not go back on by accepting what there was then.
const (
	maxDetail   = 2 << 10
	maxNonce    = 64
	maxRefusals = 8
)

// A ResourceStatus says how a stream stands with one resource.
type ResourceStatus struct {
	TypeURL string
	Entry   *cache.Entry // what the relay has; of a resource that is gone, or was never there, it is absent
	State   ResourceState
	Refusal *Refusal // if the state is Refused
}

// A ResourceState says what became of a resource on the way to a client.
type ResourceState int

// The states of a resource on the way to a client.
const (
	NotSent  ResourceState = iota // the client was not sent what there is
	Sent                          // it was, and has not answered yet
	Accepted                      // it accepted it, or said itself that it has it
	Refused                       // it refused the response
)

func (s ResourceState) String() string {
	return [...]string{"not_sent", "sent", "accepted", "refused"}[s]
}

// A moment is a time in nanoseconds since epoch, by the monotonic clock; 0 is none. It is a third of a time.Time.
type moment int64

// epoch is what moments are counted from.
var epoch = time.Now()

func momentOf(t time.Time) moment {
	if t.IsZero() {
		return 0
	}
	return moment(t.Sub(epoch))
}

// time returns the time, with the wall time that corresponds to it today.
func (m moment) time() time.Time {
	if m == 0 {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(-m.ago(now))
}

// ago returns how long ago it was.
func (m moment) ago(now time.Time) time.Duration { return now.Sub(epoch) - time.Duration(m) }

// A registry knows the streams of a server. Its zero value is empty.
type registry struct {
	mu      sync.Mutex
	streams map[uint64]*stream
}

func (r *registry) add(s *stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streams == nil {
		r.streams = make(map[uint64]*stream)
	}
	r.streams[s.number] = s
}

func (r *registry) remove(s *stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.streams, s.number)
}

func (r *registry) get(number uint64) *stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.streams[number]
}

// all returns the streams in the order in which they began.
func (r *registry) all() []*stream {
	r.mu.Lock()
	streams := make([]*stream, 0, len(r.streams))
	for _, s := range r.streams {
		streams = append(streams, s)
	}
	r.mu.Unlock()
	slices.SortFunc(streams, func(a, b *stream) int { return cmp.Compare(a.number, b.number) })
	return streams
}

// Clients returns how the streams stand that are open at the begin, in the order in which
// they began: each at the moment when it comes to it, but for those that ended meanwhile. No stream
// is held up by it, and it waits for none.
func (s *Server) Clients() iter.Seq[StreamStatus] {
	return func(yield func(StreamStatus) bool) {
		for _, stream := range s.registry.all() {
			if status, open := stream.status(time.Now()); open && !yield(status) {
				return
			}
		}
	}
}

// Client returns how the stream with that number stands, and whether it is open.
func (s *Server) Client(number uint64) (status StreamStatus, open bool) {
	if stream := s.registry.get(number); stream != nil {
		return stream.status(time.Now())
	}
	return StreamStatus{}, false
}

// Resources returns how the stream with that number stands with what it asked for: by type in the
// order of sending, first all that it named, then what wildcards and globs stand for. A
// stream that is not open has none.
func (s *Server) Resources(number uint64) []ResourceStatus {
	if stream := s.registry.get(number); stream != nil {
		return stream.resources()
	}
	return nil
}

// A Holder is a stream that asked for a resource, and how it stands with it.
type Holder struct {
	Stream uint64
	Group  string // of its node
	ResourceStatus
}

// Holders returns the streams that asked for a resource, by its name, a wildcard or a glob.
func (s *Server) Holders(typeURL, name string) (holders []Holder) {
	for _, stream := range s.registry.all() {
		if r, asked := stream.holds(typeURL, name); asked {
			holders = append(holders, r)
		}
	}
	return holders
}

// peek takes the lock to read what it guards, but does not wait for a client that does not
// read: who has lent the lock changes nothing until it is given back, which leave lets it.
func (l *lock) peek() (stalled bool) {
	l.mu.Lock()
	return l.lent != nil
}

// status returns how the stream stands, and whether it is open.
func (s *stream) status(now time.Time) (status StreamStatus, open bool) {
	stalled := s.lock.peek()
	defer s.lock.leave()
	if s.ended {
		return StreamStatus{}, false
	}
	status = StreamStatus{
		Number: s.number, TypeURL: s.typeURL, Delta: s.delta, Began: s.begun,
		Sent: s.written, Unread: s.written - s.read,
		grant: s.grant, Group: s.group.Key,
	}
	if s.kept != nil {
		status.node = s.kept.Shown
	}
	if p, ok := peer.FromContext(s.rpc.Context()); ok && p.Addr != nil {
		status.Address = p.Addr.String()
	}
	if stalled {
		status.Stalled = s.lentAt.time()
	}
	status.Types = make([]TypeStatus, len(s.subs))
	for i, sub := range s.subs {
		status.Types[i] = sub.status(now)
		if stands := s.standingRefusal(sub); stands != nil {
			status.Types[i].Refusal, status.Types[i].Refused = stands, true
		}
	}
	return status, true
}

// standingRefusal returns the newest refusal of a type that stands, nil if none does.
func (s *stream) standingRefusal(sub *subscription) *Refusal {
	if sub.refusal != nil && sub.refusal.At.After(sub.acceptedAt.time()) {
		return sub.refusal
	}
	g := s.group.View.Generation()
	t := g.Type(sub.key)
	for r := range sub.refusals() {
		if slices.ContainsFunc(sub.names, func(n subscribed) bool { return sub.standing(t, n).Refusal == r }) || sub.refusedMember(g, r) {
			return r
		}
	}
	return nil
}

// refusedMember reports whether a member is as it was when it was refused.
func (s *subscription) refusedMember(g *cache.Generation, r *Refusal) bool {
	for part := range s.followed() {
		for e := range g.Type(part.key).Wildcard.Since(r.after) {
			if e.Seq > r.upTo {
				break
			}
			if _, named := part.find(e.Name); !named && part.standingMember(e).Refusal == r {
				return true
			}
		}
	}
	return false
}

func (s *subscription) status(now time.Time) TypeStatus {
	t := TypeStatus{
		TypeURL: s.typeURL, Wildcard: s.wildcard != nil, Names: len(s.names),
		Nonce: s.nonce, Version: s.said, SentAt: s.sentAt, Pending: s.pending,
		Accepted: s.accepted, AcceptedAt: s.acceptedAt.time(),
		Refusal: s.refusal,
	}
	for _, glob := range s.globs {
		t.Globs = append(t.Globs, glob.glob)
	}
	if lacks := s.lacking(); lacks != 0 {
		t.Lacks = lacks.time()
		t.Lag = max(lacks.ago(now), 0)
	}
	return t
}

// resources returns how the stream stands with what it asked for.
func (s *stream) resources() (out []ResourceStatus) {
	s.lock.peek()
	defer s.lock.leave()
	if s.ended || s.watch == nil {
		return nil
	}
	g := s.group.View.Generation()
	for _, sub := range s.subs {
		t := g.Type(sub.key)
		for _, n := range sub.names {
			out = append(out, sub.standing(t, n))
		}
		for part := range sub.followed() {
			t := g.Type(part.key)
			for e := range t.Wildcard.Since(0) {
				if _, named := part.find(e.Name); !named && (e.Present() || e.Seq > part.removed) {
					out = append(out, part.standingMember(e))
				}
			}
		}
	}
	return out
}

// holds returns how the stream stands with one resource, and whether it asked for it.
func (s *stream) holds(typeURL, name string) (r Holder, asked bool) {
	s.lock.peek()
	defer s.lock.leave()
	sub := s.of(typeURL)
	if s.ended || sub == nil {
		return r, false
	}
	r = Holder{Stream: s.number, Group: s.group.Key}
	g := s.group.View.Generation()
	n := s.watch.Find(sub.key, []string{name})[0]
	if at, ok := sub.find(n); ok {
		r.ResourceStatus = sub.standing(g.Type(sub.key), sub.names[at])
		return r, true
	}
	for part := range sub.followed() {
		n := s.watch.Find(part.key, []string{name})[0]
		if n == nil {
			continue
		}
		if e := g.Type(part.key).Wildcard.Get(n); e.Present() {
			r.ResourceStatus = part.standingMember(e)
			return r, true
		}
	}
	return r, false
}

// standing returns how the client stands with what it named.
func (s *subscription) standing(t *cache.Type, n subscribed) ResourceStatus {
	e, seq := s.see(t, n)
	if e == nil {
		e = &cache.Entry{Name: n.name}
	}
	return s.stateOf(e, seq, n.sent != 0 && seq <= n.sent)
}

// standingMember returns how the client stands with a member.
func (s *subscription) standingMember(e *cache.Entry) ResourceStatus {
	upTo := s.sent
	if !e.Present() {
		upTo = s.removed
	}
	begun := s.begunAll || !s.delta && s.fullState // where complete sets are sent, only fresh says it
	return s.stateOf(e, e.Seq, begun && !s.fresh && e.Seq <= upTo)
}

// stateOf returns what became of what an entry says since a position.
func (s *subscription) stateOf(e *cache.Entry, since cache.Seq, sent bool) ResourceStatus {
	r := ResourceStatus{TypeURL: s.typeURL, Entry: e}
	if !sent {
		return r
	}
	for refusal := range s.refusals() {
		if refusal.after < since && since <= refusal.upTo {
			r.State, r.Refusal = Refused, refusal
			return r
		}
	}
	switch {
	case s.pending && since > s.acceptedUpTo():
		r.State = Sent
	default:
		r.State = Accepted
	}
	return r
}

// refusals yields the refusals that may stand, the newest first. If the client accepted a
// complete set since, none does.
func (s *subscription) refusals() iter.Seq[*Refusal] {
	return func(yield func(*Refusal) bool) {
		if s.refusal == nil || s.sendsWhole() && s.acceptedAt.time().After(s.refusal.At) || !yield(s.refusal) {
			return
		}
		for _, r := range s.refusal.earlier {
			if !yield(r) {
				return
			}
		}
	}
}

// noteTold records that a response leaves that holds what changed after a position, which
// was received at some time, or, if that is zero, what the client asked for. The response before it went up to another
// position.
func (c *conversation) noteTold(after, before cache.Seq, received, now time.Time) {
	caused := momentOf(received)
	if c.asked || caused == 0 {
		received, caused = now, 0
	}
	if c.asked = false; c.pending {
		c.supersede(before)
	}
	if c.lacks == 0 {
		c.toldAfter, c.lacks = after, momentOf(received)
	}
	if c.caused == 0 && c.answered { // of the first one, the client waited for something, not for this
		c.caused = caused
	}
}

// wantedSince returns when the oldest change was received that the client wants, of those after a
// position that the head has; zero if there is none. Where names are in complete sets, a change that a later
// one of the same name took over does not count.
func (s *subscription) wantedSince(v *cache.View, g *cache.Generation, after cache.Seq) time.Time {
	t, first := g.Type(s.key), g.Seq+1
	if s.wildcard != nil {
		first = min(first, t.Wildcard.FirstAfter(after))
	}
	if !s.delta && s.fullState {
		for _, n := range s.names {
			if _, seq := s.see(t, n); seq > after {
				first = min(first, seq)
			}
		}
		for _, glob := range s.globs {
			first = min(first, g.Type(glob.key).Wildcard.FirstAfter(after))
		}
	} else if len(s.names) > 0 {
		first = min(first, s.watch.FirstHint(s.key, after, g.Seq))
	}
	if first > g.Seq {
		return time.Time{}
	}
	return v.Cause(first).Received
}

// noteAccepted records that the client accepts the newest response.
func (c *conversation) noteAccepted(now time.Time) {
	if c.caused != 0 {
		c.tally.propagated(c.caused.ago(now))
	}
	c.accepted, c.acceptedAt, c.lacks, c.earlier = c.said, momentOf(now), 0, nil
}

// noteRefused records that the client refuses a response that holds what changed up to a
// position. Earlier refusals stand beside it, but for what a complete set holds anew.
func (s *subscription) noteRefused(r *wire.Request, upTo cache.Seq, now time.Time) {
	version := "" // of an earlier response, whose version is not known any more
	if s.answers(r) {
		s.mergeEarlier()
	}
	if r.Nonce == s.nonce {
		version = s.said
	}
	s.noteRefusedRange(r, s.toldAfter, upTo, version, now)
}

// noteRefusedRange is noteRefused for a response of a version that holds what changed after a position.
func (s *subscription) noteRefusedRange(r *wire.Request, after, upTo cache.Seq, version string, now time.Time) {
	var earlier []*Refusal
	switch last := s.refusal; {
	case last == nil || s.sendsWhole():
	case upTo == last.upTo: // the same once more
		after, earlier = last.after, last.earlier
	default:
		after = max(after, last.upTo)
		alone := *last
		alone.earlier = nil
		earlier = append([]*Refusal{&alone}, last.earlier[:min(len(last.earlier), maxRefusals-2)]...)
	}
	s.refusal = &Refusal{
		At: now, Nonce: strings.Clone(wire.Shorten(r.Nonce, maxNonce)), Version: version,
		Code: r.ErrorCode, Detail: strings.Clone(wire.Shorten(r.ErrorMessage, maxDetail)),
		after: after, upTo: upTo, earlier: earlier,
	}
}

// sendsWhole reports whether each response holds the complete set.
func (s *subscription) sendsWhole() bool { return !s.delta && s.fullState }

// noteAnswer records an answer to a response.
func (s *subscription) noteAnswer(r *wire.Request, now time.Time) {
	if r.Refused {
		s.noteRefused(r, s.position(), now)
	} else {
		s.noteAccepted(now)
	}
}

// position returns up to where the client was told of changes.
func (s *subscription) position() cache.Seq {
	if s.wildcard != nil {
		return s.sent
	}
	return s.scanned
}
