package relaytest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// OriginState is what has happened to an origin since NewOrigin, over all
// restarts.
type OriginState struct {
	Connections     int            // accepted
	OpenConnections int            // of these, not closed yet
	Streams         []*StreamState // in the order of their opening, ended ones too
	Probes          int            // streams by which a relay asked whether it would be served; they are not in Streams
}

// StreamState is what has happened on one stream.
type StreamState struct {
	ID       int          // index in OriginState.Streams
	SotW     bool         // the variant that it speaks
	Node     *corepb.Node // of the first request; nil before
	Header   metadata.MD
	Ended    bool
	Requests []Request
	Types    map[string]*TypeState // by type URL; a type that was never asked for is absent
}

// A Request is one request as it arrived. The message must not be altered.
type Request struct {
	At      time.Time
	Message *discoverypb.DeltaDiscoveryRequest // nil on a SotW stream
	SotW    *discoverypb.DiscoveryRequest      // nil on a Delta stream
}

// TypeURL returns the type that the request is about.
func (r Request) TypeURL() string { return cmp.Or(r.Message.GetTypeUrl(), r.SotW.GetTypeUrl()) }

func (r Request) message() proto.Message {
	if r.SotW != nil {
		return r.SotW
	}
	return r.Message
}

// TypeState is what has happened to one type on one stream.
type TypeState struct {
	Wildcard bool                // subscribed, by "*" or by the empty first request
	Names    map[string]struct{} // subscribed by name; never has "*"
	Requests int                 // received
	Sent     int                 // responses given to the transport
	ACKs     int                 // of responses that were not answered before
	NACKs    int                 // of responses that were not answered before
	Strays   int                 // requests whose nonce was unknown or answered before

	// Of a SotW stream.
	named bool   // some name was given, so that no names means nothing
	nonce string // of the last response
}

// Unanswered returns how many responses have had neither ACK nor NACK.
func (t *TypeState) Unanswered() int { return t.Sent - t.ACKs - t.NACKs }

// Open returns the streams that have not ended.
func (s *OriginState) Open() []*StreamState {
	return slices.DeleteFunc(slices.Clone(s.Streams), func(st *StreamState) bool { return st.Ended })
}

// Last returns the stream opened last; never nil.
func (s *OriginState) Last() *StreamState {
	if len(s.Streams) == 0 {
		return &StreamState{}
	}
	return s.Streams[len(s.Streams)-1]
}

// Type returns the sum over all streams for a type, with the names (and the
// wildcard) that are subscribed on open streams.
func (s *OriginState) Type(typeURL string) *TypeState {
	sum := &TypeState{Names: make(map[string]struct{})}
	for _, st := range s.Streams {
		t := st.Types[typeURL]
		if t == nil {
			continue
		}
		sum.Requests += t.Requests
		sum.Sent += t.Sent
		sum.ACKs += t.ACKs
		sum.NACKs += t.NACKs
		sum.Strays += t.Strays
		if !st.Ended {
			sum.Wildcard = sum.Wildcard || t.Wildcard
			maps.Copy(sum.Names, t.Names)
		}
	}
	return sum
}

// Names returns the sorted names of a type that are subscribed on open streams,
// with "*" for a wildcard.
func (s *OriginState) Names(typeURL string) []string {
	t := s.Type(typeURL)
	names := slices.Sorted(maps.Keys(t.Names))
	if t.Wildcard {
		names = slices.Insert(names, 0, "*")
	}
	return names
}

// Subscribed reports whether exactly these names ("*" for a wildcard) of a type
// are subscribed on open streams.
func (s *OriginState) Subscribed(typeURL string, names ...string) bool {
	return slices.Equal(s.Names(typeURL), slices.Sorted(slices.Values(names)))
}

// Type returns what has happened to a type on the stream; never nil.
func (s *StreamState) Type(typeURL string) *TypeState {
	if t := s.Types[typeURL]; t != nil {
		return t
	}
	return &TypeState{}
}

// Requests returns the requests of a type on all streams, by stream.
func (s *OriginState) Requests(typeURL string) []Request {
	var requests []Request
	for _, st := range s.Streams {
		for _, r := range st.Requests {
			if r.TypeURL() == typeURL {
				requests = append(requests, r)
			}
		}
	}
	return requests
}

// String lists the streams with their counts and last requests.
func (s *OriginState) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "origin: %d connections, %d open, %d streams", s.Connections, s.OpenConnections, len(s.Streams))
	for _, st := range s.Streams {
		fmt.Fprintf(&b, "\n%v", st)
	}
	return b.String()
}

// String lists the types with their counts, and the last requests.
func (s *StreamState) String() string {
	const last = 20
	var b strings.Builder
	fmt.Fprintf(&b, "stream %d node=%q ended=%v", s.ID, s.Node.GetId(), s.Ended)
	for _, typeURL := range slices.Sorted(maps.Keys(s.Types)) {
		t := s.Types[typeURL]
		fmt.Fprintf(&b, "\n  %s wildcard=%v names=%s requests=%d sent=%d acks=%d nacks=%d strays=%d", short(typeURL),
			t.Wildcard, list(slices.Sorted(maps.Keys(t.Names))), t.Requests, t.Sent, t.ACKs, t.NACKs, t.Strays)
	}
	for i, r := range s.Requests {
		if i >= len(s.Requests)-last {
			fmt.Fprintf(&b, "\n  request %d: %s", i, describe(r.message()))
		}
	}
	return b.String()
}

func (s *OriginState) clone() *OriginState {
	c := *s
	c.Streams = make([]*StreamState, len(s.Streams))
	for i, st := range s.Streams {
		c.Streams[i] = st.clone()
	}
	return &c
}

func (s *StreamState) clone() *StreamState {
	c := *s
	c.Requests = slices.Clone(s.Requests)
	c.Types = make(map[string]*TypeState, len(s.Types))
	for typeURL, t := range s.Types {
		ct := *t
		ct.Names = maps.Clone(t.Names)
		c.Types[typeURL] = &ct
	}
	return &c
}
