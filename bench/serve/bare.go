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
	windows = 1 << 20 // flow-control windows in bytes, as in Tender
)

// bare is grpc-go without a control plane above it, to measure the cost of grpc-go's
// transport. Each message is encoded once for all streams. A request for a type
// subscribes the stream to all of its resources, or to the requested names if byName
// is set.
type bare struct {
	set    *content.Set
	sotw   bool
	byName bool
	secure []grpc.ServerOption // TLS credentials; nil for plaintext

	// Guarded by mu. Work is handed to shards under mu, so that the first response of a
	// stream and the later changes keep their order.
	mu     sync.Mutex
	shards []*shard // one per worker, or one per stream if own is set
	own    bool
	next   int                          // stream count, to distribute streams over shards
	serial int                          // number of changes, used as version and nonce
	first  map[string][]mem.BufferSlice // by type: the responses for a new client; nil after a change
	last   map[string]mem.BufferSlice   // by type: the latest change
}

// A shard sends on some of the streams, in one goroutine.
type shard struct {
	wake chan struct{}

	// Guarded by mu.
	mu   sync.Mutex
	todo []func(*shard)

	// Owned by run.
	streams map[audience][]grpc.ServerStream
}

// An audience is the key of a set of streams: the subscribers of one resource, or of a whole type.
type audience struct {
	typeURL string
	index   int // of the resource; everyIndex for the whole type
}

const everyIndex = -1

func newShard() *shard {
	return &shard{wake: make(chan struct{}, 1), streams: map[audience][]grpc.ServerStream{}}
}

// do makes the shard's goroutine call f. It does not wait.
func (s *shard) do(f func(*shard)) {
	s.mu.Lock()
	s.todo = append(s.todo, f)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// run calls the functions passed to do, until done is closed. It must be called once, on its own goroutine.
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

// send sends a message on every stream of an audience. Errors are ignored: the handler
// of a stream that has ended removes it from the shard.
func (s *shard) send(to audience, m mem.BufferSlice) {
	for _, stream := range s.streams[to] {
		_ = stream.SendMsg(m) // fails if the client has disconnected
	}
}

// leave removes a stream from all audiences.
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

// newBare returns a server, and starts its workers. Errors: invalid certificates.
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

// everything returns the responses with all resources of a kind.
func (b *bare) everything(k content.Kind) []mem.BufferSlice {
	return messages(everything(b.set, k, b.sotw, b.serial))
}

// messages returns encoded messages for passCodec. It does not copy them.
func messages(encoded [][]byte) (messages []mem.BufferSlice) {
	for _, m := range encoded {
		messages = append(messages, mem.BufferSlice{mem.SliceBuffer(m)})
	}
	return messages
}

// publish implements backend.
func (b *bare) publish(k content.Kind, changes batch) error {
	return changes.each(func(s content.Stamp) error {
		b.publishOne(k, s)
		return nil
	})
}

// publishOne makes the shards send one change.
func (b *bare) publishOne(k content.Kind, s content.Stamp) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serial++
	m := mem.BufferSlice{mem.SliceBuffer(update(b.set, k, s, b.sotw, b.serial))}
	b.last[k.TypeURL] = m
	b.first[k.TypeURL] = nil // stale: encoded again for the next client
	to := audience{k.TypeURL, everyIndex}
	if b.byName {
		to.index = s.Index
	}
	send := func(s *shard) { s.send(to, m) }
	for _, shard := range b.shards {
		shard.do(send)
	}
}

// serve receives the requests of a stream. A shard sends the responses.
func (b *bare) serve(_ any, stream grpc.ServerStream) error {
	s, leave := b.join(stream)
	defer leave()
	for {
		var m requestMessage
		if err := stream.RecvMsg(&m); err != nil {
			return nil // the client has disconnected
		}
		if r := readRequest(m.bytes, b.sotw); !r.answer {
			if err := b.subscribe(s, stream, r); err != nil {
				return err
			}
		}
	}
}

// join assigns a shard to a stream. The caller must call leave when the stream ends.
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
		close(ended)
	}()
	return s, func() {
		<-ended
		b.remove(s)
	}
}

// remove removes the shard of a stream that has ended.
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

// subscribe makes a shard send the requested resources on a stream, and subscribes the stream to their changes.
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
			_ = stream.SendMsg(m) // fails if the client has disconnected
		}
	})
	return nil
}

// asked returns the audiences that a request subscribes a stream to, and the first
// responses.
func (b *bare) asked(k content.Kind, r request) (to []audience, responses []mem.BufferSlice, err error) {
	if b.byName {
		return b.named(k, r.subscribe)
	}
	return []audience{{k.TypeURL, everyIndex}}, b.all(k, r.returning), nil
}

// all returns the responses with all resources of a type. For a client with initial
// versions it returns the latest change only, since all clients here disconnect before one change.
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

// named returns the audiences and the responses of a request with names.
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

// passCodec passes messages without encoding: it sends a mem.BufferSlice, and receives a requestMessage.
type passCodec struct{}

// A requestMessage is an encoded request, received by passCodec.
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

// adsService is the aggregated discovery service, with one handler for both of its methods.
func adsService(serve grpc.StreamHandler) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{ServiceName: service, Streams: []grpc.StreamDesc{
		{StreamName: "DeltaAggregatedResources", Handler: serve, ServerStreams: true, ClientStreams: true},
		{StreamName: "StreamAggregatedResources", Handler: serve, ServerStreams: true, ClientStreams: true},
	}}
}

// serveGRPC serves on a free port of loopback until the process ends, and returns the address.
func serveGRPC(server *grpc.Server) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	go func() { _ = server.Serve(l) }() // until the process ends
	return l.Addr().String(), nil
}
