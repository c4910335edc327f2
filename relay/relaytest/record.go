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

// OriginState is the record of an origin since NewOrigin, over all restarts.
type OriginState struct {
	Connections     int            // number of accepted connections
	OpenConnections int            // number of open connections
	Streams         []*StreamState // all streams in the order of opening, including ended ones
	Probes          int            // number of probe streams of relays, which are not in Streams
}

// StreamState is the record of a stream.
type StreamState struct {
	ID       int          // index in OriginState.Streams
	SotW     bool         // whether the stream is SotW
	Node     *corepb.Node // Node of the first request; nil before it
	Header   metadata.MD
	Ended    bool
	Requests []Request
	Types    map[string]*TypeState // by type URL; types without a request are absent
}

// A Request is a received request. The message must not be modified.
type Request struct {
	At      time.Time
	Message *discoverypb.DeltaDiscoveryRequest // nil on a SotW stream
	SotW    *discoverypb.DiscoveryRequest      // nil on a Delta stream
}

// TypeURL returns the type of the request.
func (r Request) TypeURL() string { return cmp.Or(r.Message.GetTypeUrl(), r.SotW.GetTypeUrl()) }

func (r Request) message() proto.Message {
	if r.SotW != nil {
		return r.SotW
	}
	return r.Message
}

// TypeState is the record of a type on a stream.
type TypeState struct {
	Wildcard bool                // subscribed by "*", or by an empty first request
	Names    map[string]struct{} // subscribed names without "*"
	Requests int                 // received
	Sent     int                 // responses passed to the transport
	ACKs     int                 // first ACKs of responses
	NACKs    int                 // first NACKs of responses
	Strays   int                 // requests with an unknown or already answered nonce

	// SotW only.
	named bool   // a request had names, so an empty list is no wildcard
	nonce string // nonce of the last response
}

// Unanswered returns the number of responses without an ACK or a NACK.
func (t *TypeState) Unanswered() int { return t.Sent - t.ACKs - t.NACKs }

// Open returns the streams that have not ended.
func (s *OriginState) Open() []*StreamState {
	return slices.DeleteFunc(slices.Clone(s.Streams), func(st *StreamState) bool { return st.Ended })
}

// Last returns the last opened stream. It is never nil.
func (s *OriginState) Last() *StreamState {
	if len(s.Streams) == 0 {
		return &StreamState{}
	}
	return s.Streams[len(s.Streams)-1]
}

// Type returns the sums over all streams for a type, and the names and the wildcard that are subscribed on open
// streams.
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

// Names returns the sorted names of a type that are subscribed on open streams, with "*" for a wildcard.
func (s *OriginState) Names(typeURL string) []string {
	t := s.Type(typeURL)
	names := slices.Sorted(maps.Keys(t.Names))
	if t.Wildcard {
		names = slices.Insert(names, 0, "*")
	}
	return names
}

// Subscribed reports whether exactly these names of a type ("*" for a wildcard) are subscribed on open streams.
func (s *OriginState) Subscribed(typeURL string, names ...string) bool {
	return slices.Equal(s.Names(typeURL), slices.Sorted(slices.Values(names)))
}

// Type returns the record of a type. It is never nil.
func (s *StreamState) Type(typeURL string) *TypeState {
	if t := s.Types[typeURL]; t != nil {
		return t
	}
	return &TypeState{}
}

// openType returns the record of a type, and creates it if necessary. first reports whether it is new.
func (s *StreamState) openType(typeURL string) (t *TypeState, first bool) {
	if t = s.Types[typeURL]; t != nil {
		return t, false
	}
	t = &TypeState{Names: make(map[string]struct{})}
	s.Types[typeURL] = t
	return t, true
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

// String formats the streams with their counters and last requests.
func (s *OriginState) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "origin: %d connections, %d open, %d streams", s.Connections, s.OpenConnections, len(s.Streams))
	for _, st := range s.Streams {
		fmt.Fprintf(&b, "\n%v", st)
	}
	return b.String()
}

// String formats the types with their counters, and the last requests.
func (s *StreamState) String() string {
	const last = 20
	var b strings.Builder
	fmt.Fprintf(&b, "stream %d node=%q ended=%v", s.ID, s.Node.GetId(), s.Ended)
	for _, typeURL := range slices.Sorted(maps.Keys(s.Types)) {
		t := s.Types[typeURL]
		fmt.Fprintf(&b, "\n  %s wildcard=%v names=%s requests=%d sent=%d acks=%d nacks=%d strays=%d", ShortType(typeURL),
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

// ShortType returns the last part of a type URL.
func ShortType(typeURL string) string { return typeURL[strings.LastIndexByte(typeURL, '.')+1:] }

// list formats names, at most the first ten.
func list(names []string) string {
	const most = 10
	if len(names) <= most {
		return fmt.Sprint(names)
	}
	return fmt.Sprintf("%v and %d more", names[:most], len(names)-most)
}

// describe formats a request in one line.
func describe(req proto.Message) string {
	var b strings.Builder
	put := func(key, value string) {
		if value != "" && value != "[]" {
			fmt.Fprintf(&b, " %s=%s", key, value)
		}
	}
	switch r := req.(type) {
	case *discoverypb.DiscoveryRequest:
		b.WriteString("sotw " + ShortType(r.GetTypeUrl()))
		put("node", r.GetNode().GetId())
		put("names", list(r.GetResourceNames()))
		put("version", r.GetVersionInfo())
		put("nonce", r.GetResponseNonce())
		put("error", r.GetErrorDetail().GetMessage())
	case *discoverypb.DeltaDiscoveryRequest:
		b.WriteString("delta " + ShortType(r.GetTypeUrl()))
		put("node", r.GetNode().GetId())
		put("subscribe", list(r.GetResourceNamesSubscribe()))
		put("unsubscribe", list(r.GetResourceNamesUnsubscribe()))
		put("have", list(slices.Sorted(maps.Keys(r.GetInitialResourceVersions()))))
		put("nonce", r.GetResponseNonce())
		put("error", r.GetErrorDetail().GetMessage())
	}
	return b.String()
}
