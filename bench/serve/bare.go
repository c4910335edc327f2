package serve

import (
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/xdstender/tender/bench/content"
)

const (
	service = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	windows = 1 << 20 // as Tender's
)

// bare is grpc-go with nothing above it: messages are bytes that were encoded
// once, requests are looked at only for what to send first. It shows what
// grpc-go's transport costs. Of what clients ask for, it knows types, not names:
// whoever asks for a type gets all of it.
type bare struct {
	set  *content.Set
	sotw bool

	// Guarded by mu. Shards are woken in it, so that what a stream is sent first and
	// what changes after that have an order.
	mu     sync.Mutex
	shards []*shard // fixed ones, or one for each stream
	own    bool     // one for each stream
	next   int
	serial int
	first  map[string][]mem.BufferSlice // by type, what a new client is sent
	last   map[string]mem.BufferSlice   // by type, the latest change
}

// A shard sends for some streams, in one goroutine.
type shard struct {
	wake chan struct{}

	// Guarded by mu.
	mu   sync.Mutex
	todo []func(*shard)

	// Owned by run.
	streams map[string][]grpc.ServerStream // by type
}

func newShard() *shard {
	return &shard{wake: make(chan struct{}, 1), streams: map[string][]grpc.ServerStream{}}
}

// do has the shard's goroutine call f.
func (s *shard) do(f func(*shard)) {
	s.mu.Lock()
	s.todo = append(s.todo, f)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default: // it was poked and has not looked yet
	}
}

// run does what it is told until done is closed.
func (s *shard) run(done <-chan struct{}) {
	for {
		select {
		case <-s.wake:
		case <-done:
			return
		}
		s.mu.Lock()
		todo := s.todo
		s.todo = nil
		s.mu.Unlock()
		for _, f := range todo {
			f(s)
		}
	}
}

// send sends a message to every stream of a type. A stream that has ended takes
// none; its handler says so to the shard.
func (s *shard) send(typeURL string, m mem.BufferSlice) {
	for _, stream := range s.streams[typeURL] {
		_ = stream.SendMsg(m) // or its client has gone
	}
}

// leave forgets a stream.
func (s *shard) leave(stream grpc.ServerStream) {
	for typeURL, streams := range s.streams {
		kept := streams[:0]
		for _, other := range streams {
			if other != stream {
				kept = append(kept, other)
			}
		}
		s.streams[typeURL] = kept
	}
}

func newBare(o Options, set *content.Set) *bare {
	b := &bare{set: set, sotw: o.SotW, own: o.Workers == 0, first: map[string][]mem.BufferSlice{}, last: map[string]mem.BufferSlice{}}
	for range o.Workers {
		s := newShard()
		b.shards = append(b.shards, s)
		go s.run(nil) // until the process ends
	}
	return b
}

// start implements backend.
func (b *bare) start() (string, error) {
	for _, k := range b.set.Kinds() {
		b.first[k.TypeURL] = b.everything(k)
	}
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(passCodec{}),
		grpc.StaticStreamWindowSize(windows),
		grpc.StaticConnWindowSize(windows),
		grpc.MaxRecvMsgSize(16<<20),
	)
	server.RegisterService(adsService(b.serve), nil)
	return serveGRPC(server)
}

func (b *bare) everything(k content.Kind) (responses []mem.BufferSlice) {
	for _, r := range everything(b.set, k, b.sotw, b.serial) {
		responses = append(responses, mem.BufferSlice{mem.SliceBuffer(r)})
	}
	return responses
}

// publish implements backend.
func (b *bare) publish(k content.Kind, s content.Stamp) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serial++
	m := mem.BufferSlice{mem.SliceBuffer(update(b.set, k, s, b.sotw, b.serial))}
	b.last[k.TypeURL] = m
	b.first[k.TypeURL] = nil // encoded again for the next client
	send := func(s *shard) { s.send(k.TypeURL, m) }
	for _, shard := range b.shards {
		shard.do(send)
	}
	return nil
}

// serve serves a stream: it receives, and a shard sends.
func (b *bare) serve(_ any, stream grpc.ServerStream) error {
	s, leave := b.join(stream)
	defer leave()
	for {
		var m requestMessage
		if err := stream.RecvMsg(&m); err != nil {
			return nil // the client has gone
		}
		if r := readRequest(m.bytes, b.sotw); !r.answer {
			b.subscribe(s, stream, r)
		}
	}
}

// join gives a stream a shard; leave takes it away.
func (b *bare) join(stream grpc.ServerStream) (s *shard, leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.own {
		s = b.shards[b.next%len(b.shards)]
		b.next++
		return s, func() { s.do(func(s *shard) { s.leave(stream) }) }
	}
	s = newShard()
	b.shards = append(b.shards, s)
	ended := make(chan struct{})
	go func() {
		s.run(stream.Context().Done())
		close(ended) // leave waits for it
	}()
	return s, func() {
		<-ended
		b.remove(s)
	}
}

func (b *bare) remove(s *shard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.shards {
		if other == s {
			b.shards[i] = b.shards[len(b.shards)-1]
			b.shards = b.shards[:len(b.shards)-1]
			return
		}
	}
}

// subscribe sends a stream what it asks for first: everything of a type, or the
// latest change if the client says that it has the rest.
func (b *bare) subscribe(s *shard, stream grpc.ServerStream, r request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k, ok := b.set.Kind(r.typeURL)
	if !ok {
		return
	}
	responses := b.first[k.TypeURL]
	if responses == nil {
		responses = b.everything(k)
		b.first[k.TypeURL] = responses
	}
	if last := b.last[k.TypeURL]; r.returning && last != nil {
		responses = []mem.BufferSlice{last}
	}
	s.do(func(s *shard) {
		s.streams[k.TypeURL] = append(s.streams[k.TypeURL], stream)
		for _, m := range responses {
			_ = stream.SendMsg(m) // or its client has gone
		}
	})
}

// passCodec moves bytes: a mem.BufferSlice out, a requestMessage in.
type passCodec struct{}

type requestMessage struct{ bytes []byte }

// Marshal implements encoding.CodecV2.
func (passCodec) Marshal(v any) (mem.BufferSlice, error) { return v.(mem.BufferSlice), nil }

// Unmarshal implements encoding.CodecV2.
func (passCodec) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*requestMessage).bytes = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (passCodec) Name() string { return "proto" }

// adsService is the aggregated service with one handler for both of its methods.
func adsService(serve grpc.StreamHandler) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{ServiceName: service, Streams: []grpc.StreamDesc{
		{StreamName: "DeltaAggregatedResources", Handler: serve, ServerStreams: true, ClientStreams: true},
		{StreamName: "StreamAggregatedResources", Handler: serve, ServerStreams: true, ClientStreams: true},
	}}
}

// serveGRPC serves at a free port until the process ends.
func serveGRPC(server *grpc.Server) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	go func() { _ = server.Serve(l) }() // until the process ends
	return l.Addr().String(), nil
}
