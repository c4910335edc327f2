package downstream

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A benchClient is a stream without a transport: what it is sent is answered at once.
type benchClient struct {
	grpc.ServerStream
	st      *stream
	typeURL string
	last    *wire.Response
	sent    int
}

func (c *benchClient) Context() context.Context { return context.Background() }

func (c *benchClient) SendMsg(m any) error {
	c.last = m.(*wire.Response)
	c.sent++
	return nil
}

// say handles a request as if it were the stream's turn.
func (s *stream) say(r *wire.Request, now time.Time) error {
	return s.receiver().handle(r, s.identification().identityIn(r), now)
}

// newBenchClient returns a client that subscribed to names of a type, and has what
// there is.
func newBenchClient(b testing.TB, s *Server, delta bool, typeURL string, names []string) *benchClient {
	b.Helper()
	return newBenchClientOf(b, s, []byte{}, delta, typeURL, names)
}

// newBenchClientOf is newBenchClient for a Node.
func newBenchClientOf(b testing.TB, s *Server, node []byte, delta bool, typeURL string, names []string) *benchClient {
	b.Helper()
	c := &benchClient{typeURL: typeURL}
	c.st = &stream{
		server: s, cfg: &s.cfg, rpc: c, delta: delta,
		result: make(chan error, 1), timer: time.NewTimer(time.Hour),
	}
	c.st.turn.Store(turnRunning) // no worker sends, but flush
	b.Cleanup(c.st.close)
	first := &wire.Request{Delta: delta, TypeURL: typeURL, Node: node, Subscribe: names}
	check.OK(b, c.st.say(first, time.Now()))
	for had := -1; had < c.sent; c.flush(b) { // a large set comes in parts
		if had = c.sent; had > 0 {
			c.ack(b)
		}
	}
	if c.sent == 0 {
		b.Fatal("the first request was not answered")
	}
	return c
}

func (c *benchClient) flush(b testing.TB) {
	if c.st.flushTurn(true); c.st.ended {
		b.Fatal(<-c.st.result)
	}
}

func (c *benchClient) ack(b testing.TB) {
	r := wire.Request{Delta: c.st.delta, TypeURL: c.typeURL, Nonce: c.last.Nonce}
	if !r.Delta {
		r.Version = c.last.Body.Version() // names that it repeats are left out when it is decoded
	}
	if more, _ := c.st.receiver().accept(&r, c.st.identification().identityIn(&r)); !more {
		b.Fatal(<-c.st.result)
	}
}

// deliveries are the ways in which a client may be sent one change among resources.
var deliveries = []struct {
	name    string
	delta   bool
	typeURL string
	named   int // of all; 0 is the wildcard
	others  int // that change before, and that nobody of the clients wants
}{
	{"delta-wildcard", true, wire.ClusterType, 0, 0},
	{"delta-50-names", true, wire.EndpointType, 50, 0},
	{"delta-50-names-sparse", true, wire.EndpointType, 50, 200},
	{"delta-1000-names", true, wire.EndpointType, 1000, 0},
	{"delta-10000-names", true, wire.EndpointType, 10_000, 0},
	{"sotw-wildcard", false, wire.ClusterType, 0, 0},
	{"sotw-50-names", false, wire.EndpointType, 50, 0},
	{"sotw-1000-names", false, wire.EndpointType, 1000, 0},
	{"sotw-10000-names", false, wire.EndpointType, 10_000, 0},
}

const benchStreams = 100

// A delivering has one resource change again and again, and clients that see it.
type delivering struct {
	w       *cache.Writer
	kind    cache.Kind
	updates [2]wire.Update
	others  [2]wire.Update // of further resources, the last ones
	clients []*benchClient
	names   []string
	turn    int
}

func newDelivering(b testing.TB, delta bool, typeURL string, named, resources, others int) *delivering {
	b.Helper()
	group := new(countedGroup)
	view, w := cache.New(cache.Config{Fanout: group.counts.Followed})
	group.view = view
	server := check.Must(New(Config{Views: group}))
	d := &delivering{w: w}
	var names []string
	all := wire.Update{TypeURL: typeURL}
	for i := range resources {
		names = append(names, benchName(i))
		all.Resources = append(all.Resources, benchResource(b, typeURL, i, "0"))
	}
	if named > 0 {
		d.kind, d.names = cache.ByName, names[:named]
		watch := view.Watch() // so that the names are asked for
		b.Cleanup(watch.Close)
		watch.Subscribe(typeURL, names)
		w.TakeDemand()
	}
	w.SetConnected(true)
	w.Apply(d.kind, all)
	w.SetPhase(typeURL, cache.Confirmed)
	for i := range d.updates {
		changed := benchResource(b, typeURL, 7, strconv.Itoa(i+1))
		d.updates[i] = wire.Update{TypeURL: typeURL, Resources: []*wire.Resource{changed}}
		d.others[i] = wire.Update{TypeURL: typeURL}
		for k := range others {
			d.others[i].Resources = append(d.others[i].Resources, benchResource(b, typeURL, resources-1-k, strconv.Itoa(i+1)))
		}
	}
	for range benchStreams {
		d.clients = append(d.clients, newBenchClient(b, server, delta, typeURL, d.names))
	}
	return d
}

func benchName(i int) string { return fmt.Sprintf("resource-%05d", i) }

func benchResource(b testing.TB, typeURL string, i int, version string) *wire.Resource {
	b.Helper()
	name, padding := benchName(i), fmt.Sprintf("%01000s", version)
	var m proto.Message = &clusterpb.Cluster{Name: name, AltStatName: padding}
	if typeURL == wire.EndpointType {
		m = &endpointpb.ClusterLoadAssignment{ClusterName: name, NamedEndpoints: map[string]*endpointpb.Endpoint{padding: {}}}
	}
	value := check.Must(proto.Marshal(m))
	r := check.Must(wire.NewResource(typeURL, name, version, value))
	return r
}

// change changes the resource, and the others before it.
func (d *delivering) change() {
	d.turn++
	d.w.Apply(d.kind, d.others[d.turn%2])
	d.w.Apply(d.kind, d.updates[d.turn%2])
}

// deliver has every client sent the change, and answer.
func (d *delivering) deliver(b testing.TB) {
	for _, c := range d.clients {
		c.flush(b)
		c.ack(b)
	}
}

// BenchmarkDelivery measures what it costs to find out what clients must be sent, and to
// take their answers: one change among 10,000 resources, for 100 clients. The transport
// and the encoding are not in it, nor is what the change itself costs.
func BenchmarkDelivery(b *testing.B) {
	for _, bb := range deliveries {
		b.Run(bb.name, func(b *testing.B) {
			d := newDelivering(b, bb.delta, bb.typeURL, bb.named, 10_000, bb.others)
			before := d.clients[0].sent
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				d.change()
				b.StartTimer()
				d.deliver(b)
			}
			b.StopTimer()
			for i, c := range d.clients {
				if c.sent-before != b.N {
					b.Fatalf("client %d: got %d responses, want %d", i, c.sent-before, b.N)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchStreams), "ns/delivery")
		})
	}
}

// deliveryAllocations is what it costs to have one more client sent what others are sent
// too, in allocations: the response around the shared body, and its nonce.
const deliveryAllocations = 2

// TestSharedDeliveriesAllocateLittle: what another client costs does not grow with the
// resources.
func TestSharedDeliveriesAllocateLittle(t *testing.T) {
	for _, tt := range deliveries {
		if tt.named > 0 {
			continue // each of these has a body of its own
		}
		t.Run(tt.name, func(t *testing.T) {
			d := newDelivering(t, tt.delta, tt.typeURL, tt.named, 500, 0)
			all := d.clients
			measure := func(clients int) float64 {
				d.clients = all[:clients]
				return testing.AllocsPerRun(20, func() {
					d.change()
					d.deliver(t)
				})
			}
			few, many := measure(benchStreams/2), measure(benchStreams)
			if got := (many - few) / (benchStreams / 2); got > deliveryAllocations {
				t.Errorf("got %.2f allocations for each further client, want at most %d", got, deliveryAllocations)
			}
		})
	}
}
