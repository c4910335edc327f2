package serve

import (
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/xdstender/tender/bench/content"
)

// origin is the control plane that Tender is placed behind: Delta, by name and by
// wildcard, and SotW by name. It serves any client, so that the way through the relay can be
// compared with the way without it.
type origin struct {
	set *content.Set

	// Guarded by mu.
	mu      sync.Mutex
	streams []*originStream
	serial  int
	extra   int // resources beyond the set that were added so far; only the last one is left
	traffic Traffic
}

// An originStream is one stream. Guarded by the origin's mutex, but for the
// messages, which one goroutine sends.
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

// publish implements backend.
func (o *origin) publish(k content.Kind, s content.Stamp) error {
	o.publishBatch(k, batch{changed: []content.Stamp{s}})
	return nil
}

// publishBatch implements batcher.
func (o *origin) publishBatch(k content.Kind, b batch) {
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
}

// encode returns the body of a response with some resources. A SotW response of a type that is subscribed to by name need
// not have the others.
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

// respond queues a response.
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
				_ = rpc.SendMsg(m) // or its client has gone
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
			return nil // the client has gone
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

// request sends a stream what it asks for.
func (o *origin) request(s *originStream, r request) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.traffic.Requests++
	o.traffic.Names += len(r.subscribe)
	k, ok := o.set.Kind(r.typeURL)
	if !r.answer && len(r.subscribe) == 0 {
		r.subscribe = []string{"*"} // as before there was a name for it
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
			continue // there is no such resource
		}
		s.names[k.TypeURL][i] = true
		asked = append(asked, latest[i])
	}
	if s.sotw {
		o.serial++ // the response has resources that the one before did not have
	}
	s.respond(o.serial, k, s.encode(k, asked))
	return nil
}

// wantsMore reports whether a SotW request has names that the stream does not have yet.
func (s *originStream) wantsMore(k content.Kind, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		i, err := content.Index(k.TypeURL, name)
		return err == nil && !s.names[k.TypeURL][i]
	})
}
