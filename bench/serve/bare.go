package serve

import (
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"

	"github.com/xdstender/tender/bench/content"
)

const (
	service = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	windows = 1 << 20 // as Tender's
)

// bare is grpc-go with nothing above it: messages are bytes that were encoded
// once, requests are looked at only for what to send first. It shows what
// grpc-go's transport costs. Of what clients ask for, it knows types, and names only if it
// serves by name: otherwise whoever asks for a type gets all of it.
type bare struct {
	set    *content.Set
	sotw   bool
	byName bool
	secure []grpc.ServerOption // TLS, if there is any

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
	streams map[audience][]grpc.ServerStream
}

// An audience is who is sent the changes of one resource, or of all of a type.
type audience struct {
	typeURL string
	index   int // everyIndex is all of the type
}

const everyIndex = -1

func newShard() *shard {
	return &shard{wake: make(chan struct{}, 1), streams: map[audience][]grpc.ServerStream{}}
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

// send sends a message to every stream of an audience. A stream that has ended takes
// none; its handler says so to the shard.
func (s *shard) send(to audience, m mem.BufferSlice) {
	for _, stream := range s.streams[to] {
		_ = stream.SendMsg(m) // or its client has gone
	}
}

// leave forgets a stream.
func (s *shard) leave(stream grpc.ServerStream) {
	for to, streams := range s.streams {
		kept := streams[:0]
		for _, other := range streams {
			if other != stream {
				kept = append(kept, other)
			}
		}
		s.streams[to] = kept
	}
}

func newBare(o Options, set *content.Set) (*bare, error) {
	b := &bare{
		set: set, sotw: o.SotW, byName: o.ByName, own: o.Workers == 0,
		first: map[string][]mem.BufferSlice{}, last: map[string]mem.BufferSlice{},
	}
	if o.TLS != nil {
		config, err := o.TLS.Server(o.Resume)
		if err != nil {
			return nil, err
		}
		b.secure = []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}
	}
	for range o.Workers {
		s := newShard()
		b.shards = append(b.shards, s)
		go s.run(nil) // until the process ends
	}
	return b, nil
}

// start implements backend.
func (b *bare) start() (string, error) {
	for _, k := range b.set.Kinds() {
		b.first[k.TypeURL] = b.everything(k)
	}
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(passCodec{}),
		grpc.StaticStreamWindowSize(windows),
		grpc.StaticConnWindowSize(windows),
		grpc.MaxRecvMsgSize(16 << 20),
	}, b.secure...)...)
	server.RegisterService(adsService(b.serve), nil)
	return serveGRPC(server)
}

func (b *bare) everything(k content.Kind) []mem.BufferSlice {
	return messages(everything(b.set, k, b.sotw, b.serial))
}

func messages(encoded [][]byte) (messages []mem.BufferSlice) {
	for _, m := range encoded {
		messages = append(messages, mem.BufferSlice{mem.SliceBuffer(m)})
	}
	return messages
}

// publish implements backend.
func (b *bare) publish(k content.Kind, s content.Stamp) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serial++
	m := mem.BufferSlice{mem.SliceBuffer(update(b.set, k, s, b.sotw, b.serial))}
	b.last[k.TypeURL] = m
	b.first[k.TypeURL] = nil // encoded again for the next client
	to := audience{k.TypeURL, everyIndex}
	if b.byName {
		to.index = s.Index
	}
	send := func(s *shard) { s.send(to, m) }
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
			if err := b.subscribe(s, stream, r); err != nil {
				return err
			}
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

// subscribe sends a stream what it asks for first, and then changes of it.
func (b *bare) subscribe(s *shard, stream grpc.ServerStream, r request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	k, ok := b.set.Kind(r.typeURL)
	if !ok {
		return nil
	}
	to, responses, err := b.asked(k, r)
	if err != nil {
		return err
	}
	s.do(func(s *shard) {
		for _, to := range to {
			s.streams[to] = append(s.streams[to], stream)
		}
		for _, m := range responses {
			_ = stream.SendMsg(m) // or its client has gone
		}
	})
	return nil
}

// asked returns whose changes a client is sent that makes a request, and what it is sent
// first.
func (b *bare) asked(k content.Kind, r request) (to []audience, responses []mem.BufferSlice, err error) {
	if b.byName {
		return b.named(k, r.subscribe)
	}
	return []audience{{k.TypeURL, everyIndex}}, b.all(k, r.returning), nil
}

// all returns everything of a type, or the latest change for a client that says that it has
// the rest.
func (b *bare) all(k content.Kind, returning bool) []mem.BufferSlice {
	if last := b.last[k.TypeURL]; returning && last != nil {
		return []mem.BufferSlice{last}
	}
	responses := b.first[k.TypeURL]
	if responses == nil {
		responses = b.everything(k)
		b.first[k.TypeURL] = responses
	}
	return responses
}

// named returns whose changes who asks for names is sent, and the resources.
func (b *bare) named(k content.Kind, names []string) (to []audience, responses []mem.BufferSlice, err error) {
	latest := b.set.Latest(k.TypeURL)
	asked := make([]content.Stamp, 0, len(names))
	for _, name := range names {
		i, err := content.Index(k.TypeURL, name)
		if err != nil {
			return nil, nil, err
		}
		to, asked = append(to, audience{k.TypeURL, i}), append(asked, latest[i])
	}
	var encoded [][]byte
	for _, body := range k.Delta(asked, ResponseBytes) {
		encoded = append(encoded, content.Finish(body, k.TypeURL, version(b.serial), version(b.serial)))
	}
	return to, messages(encoded), nil
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
