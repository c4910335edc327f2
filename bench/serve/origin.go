package serve

import (
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/xdstender/tender/bench/content"
)

// origin is the control plane that Tender is placed behind: Delta, by name and by
// wildcard. It serves any client, so that the way through the relay can be
// compared with the way without it.
type origin struct {
	set *content.Set

	// Guarded by mu.
	mu      sync.Mutex
	streams []*originStream
	serial  int
	traffic Traffic
}

// An originStream is one stream. Guarded by the origin's mutex, but for the
// messages, which one goroutine sends.
type originStream struct {
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
	o.mu.Lock()
	defer o.mu.Unlock()
	o.serial++
	m := mem.BufferSlice{mem.SliceBuffer(update(o.set, k, s, false, o.serial))}
	for _, stream := range o.streams {
		if stream.wildcard[k.TypeURL] || stream.names[k.TypeURL][s.Index] {
			stream.messages <- m
		}
	}
	return nil
}

// serve serves a stream.
func (o *origin) serve(_ any, rpc grpc.ServerStream) error {
	s := &originStream{wildcard: map[string]bool{}, names: map[string]map[int]bool{}, messages: make(chan mem.BufferSlice, 1<<16)}
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
		if err := o.request(s, readRequest(m.bytes, false)); err != nil {
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
	k, ok := o.set.Kind(r.typeURL)
	if !r.answer && len(r.subscribe) == 0 {
		r.subscribe = []string{"*"} // as before there was a name for it
	}
	if !ok || len(r.subscribe) == 0 {
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
	for _, body := range k.Delta(asked, 64<<20) {
		s.messages <- mem.BufferSlice{mem.SliceBuffer(content.Finish(body, k.TypeURL, version(o.serial), version(o.serial)))}
	}
	return nil
}
