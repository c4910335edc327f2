package serve

import (
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/xdstender/tender/bench/content"
)

// origin is the control plane that Tender connects to. It serves Delta by name and by
// wildcard, and SotW by name. Clients can also connect to it directly, so that the delay
// with and without the relay can be compared.
type origin struct {
	set *content.Set

	// Guarded by mu.
	mu      sync.Mutex
	streams []*originStream
	serial  int
	extra   int // resources beyond the set that were added so far; all but the last were removed again
	traffic Traffic
}

// An originStream is one stream. It is guarded by the origin's mutex, except for
// messages, which one goroutine receives and sends.
type originStream struct {
	sotw     bool
	wildcard map[string]bool
	names    map[string]map[int]bool // by type
	messages chan mem.BufferSlice
}

func newOrigin(set *content.Set) *origin { return &origin{set: set} }

// start implements backend.
func (o *origin) start() (string, error) {
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(passCodec{}),
		grpc.StaticStreamWindowSize(windows), grpc.StaticConnWindowSize(windows),
		grpc.MaxRecvMsgSize(256<<20),
	)
	server.RegisterService(adsService(o.serve), nil)
	return serveGRPC(server)
}

// publish implements backend. A stream receives a batch in one response.
func (o *origin) publish(k content.Kind, b batch) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.serial++
	var swapped []byte
	if b.swap {
		swapped = k.AppendDelta(nil, content.Stamp{Index: k.Count + o.extra})
		if o.extra > 0 {
			swapped = k.AppendRemoved(swapped, k.Count+o.extra-1)
		}
		o.extra++
	}
	for _, stream := range o.streams {
		wanted := b.changed
		if !stream.wildcard[k.TypeURL] {
			wanted = slices.DeleteFunc(slices.Clone(b.changed), func(s content.Stamp) bool { return !stream.names[k.TypeURL][s.Index] })
		}
		if len(wanted) > 0 {
			stream.respond(o.serial, k, append(stream.encode(k, wanted), swapped...))
		}
	}
	return nil
}

// encode returns the body of a response with the given resources. A SotW response for a type that is subscribed to by
// name may omit the other resources.
func (s *originStream) encode(k content.Kind, stamps []content.Stamp) (body []byte) {
	for _, stamp := range stamps {
		if s.sotw {
			body = k.AppendSotW(body, stamp)
		} else {
			body = k.AppendDelta(body, stamp)
		}
	}
	return body
}

// respond queues a response. It blocks if 65,536 responses are queued.
func (s *originStream) respond(serial int, k content.Kind, body []byte) {
	s.messages <- mem.BufferSlice{mem.SliceBuffer(content.Finish(body, k.TypeURL, version(serial), version(serial)))}
}

// serve serves a stream.
func (o *origin) serve(_ any, rpc grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(rpc)
	s := &originStream{sotw: strings.Contains(method, "/Stream"), wildcard: map[string]bool{}, names: map[string]map[int]bool{}, messages: make(chan mem.BufferSlice, 1<<16)}
	go func() { // until the stream ends
		for {
			select {
			case m := <-s.messages:
				_ = rpc.SendMsg(m) // fails if the client has disconnected
			case <-rpc.Context().Done():
				return
			}
		}
	}()
	o.mu.Lock()
	o.streams = append(o.streams, s)
	o.traffic.Streams++
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.streams = slices.DeleteFunc(o.streams, func(other *originStream) bool { return other == s })
	}()
	for {
		var m requestMessage
		if err := rpc.RecvMsg(&m); err != nil {
			return nil // the client has disconnected
		}
		if err := o.request(s, readRequest(m.bytes, s.sotw)); err != nil {
			return err
		}
	}
}

// seen implements counter.
func (o *origin) seen() Traffic {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.traffic
}

// request handles a request, and queues the response with the requested resources.
func (o *origin) request(s *originStream, r request) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.traffic.Requests++
	o.traffic.Names += len(r.subscribe)
	k, ok := o.set.Kind(r.typeURL)
	if !r.answer && len(r.subscribe) == 0 {
		r.subscribe = []string{"*"} // a first request without names is the legacy form of the wildcard
	}
	if !ok || len(r.subscribe) == 0 || s.sotw && !s.wantsMore(k, r.subscribe) {
		return nil
	}
	latest := o.set.Latest(k.TypeURL)
	var asked []content.Stamp
	if s.names[k.TypeURL] == nil {
		s.names[k.TypeURL] = map[int]bool{}
	}
	for _, name := range r.subscribe {
		if name == "*" {
			s.wildcard[k.TypeURL] = true
			asked = latest
			break
		}
		i, err := content.Index(k.TypeURL, name)
		if err != nil {
			continue // no resource has such a name
		}
		s.names[k.TypeURL][i] = true
		asked = append(asked, latest[i])
	}
	if s.sotw {
		o.serial++ // a new version: the response contains further resources
	}
	s.respond(o.serial, k, s.encode(k, asked))
	return nil
}

// wantsMore reports whether a SotW request has names that the stream is not yet subscribed to.
func (s *originStream) wantsMore(k content.Kind, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		i, err := content.Index(k.TypeURL, name)
		return err == nil && !s.names[k.TypeURL][i]
	})
}
