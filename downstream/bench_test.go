package downstream

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A benchClient is a stream without a transport, whose client answers each response immediately.
type benchClient struct {
	grpcCall
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

// handleNow handles a request as a worker does in the stream's turn.
func (s *stream) handleNow(r *wire.Request, now time.Time) error {
	return s.handle(r, s.identityIn(r), now)
}

// newBenchClient returns a client that subscribed to names of a type and has answered the complete first response.
func newBenchClient(b testing.TB, s *Server, delta bool, typeURL string, names []string) *benchClient {
	b.Helper()
	return newBenchClientOf(b, s, []byte{}, delta, typeURL, names)
}

// newBenchClientOf is newBenchClient for a client with an encoded Node.
func newBenchClientOf(b testing.TB, s *Server, node []byte, delta bool, typeURL string, names []string) *benchClient {
	b.Helper()
	c := &benchClient{typeURL: typeURL}
	c.st = &stream{
		server: s, cfg: &s.cfg, rpc: c, delta: delta,
		result: make(chan error, 1), timer: time.NewTimer(time.Hour),
	}
	c.st.turn.Store(turnRunning) // only flush sends, no worker
	b.Cleanup(c.st.close)
	first := &wire.Request{Delta: delta, TypeURL: typeURL, Node: node, Subscribe: names}
	check.OK(b, c.st.handleNow(first, time.Now()))
	for before := -1; before < c.sent; c.flush(b) { // a large set has several responses
		if before = c.sent; before > 0 {
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
		r.Version = c.last.Body.Version() // the decoder omits repeated names
	}
	if more, _ := c.st.accept(&r, c.st.identityIn(&r)); !more {
		b.Fatal(<-c.st.result)
	}
}

// deliveries are variants of a client that is sent one change of many resources.
var deliveries = []struct {
	name    string
	delta   bool
	typeURL string
	named   int // subscribed names; 0 is the wildcard
	others  int // resources that change too, without a subscribed client
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

// A deliveryBench changes one resource repeatedly, and has the clients that are sent the change.
type deliveryBench struct {
	w       *cache.Writer
	kind    cache.Kind
	updates [2]wire.Update
	others  [2]wire.Update // of the last resources
	clients []*benchClient
	names   []string
	changes int
}

func newDeliveryBench(b testing.TB, delta bool, typeURL string, named, resources, others int) *deliveryBench {
	b.Helper()
	group := new(countedGroup)
	view, w := cache.New(cache.Config{Fanout: group.counts.Followed})
	group.view = view
	server := check.Must(New(Config{Views: group}))
	d := &deliveryBench{w: w}
	var names []string
	all := wire.Update{TypeURL: typeURL}
	for i := range resources {
		names = append(names, benchName(i))
		all.Resources = append(all.Resources, benchResource(b, typeURL, i, "0"))
	}
	if named > 0 {
		d.kind, d.names = cache.ByName, names[:named]
		watch := view.Watch() // requests the names from the origin
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

// change changes the other resources, and then the resource.
func (d *deliveryBench) change() {
	d.changes++
	d.w.Apply(d.kind, d.others[d.changes%2])
	d.w.Apply(d.kind, d.updates[d.changes%2])
}

// deliver sends the change to each client, and has it answered.
func (d *deliveryBench) deliver(b testing.TB) {
	for _, c := range d.clients {
		c.flush(b)
		c.ack(b)
	}
}

// BenchmarkDelivery measures the cost of computing a response and handling its answer: one change among 10,000
// resources, for 100 clients. It excludes the transport, the encoding and the change itself.
func BenchmarkDelivery(b *testing.B) {
	for _, bb := range deliveries {
		b.Run(bb.name, func(b *testing.B) {
			d := newDeliveryBench(b, bb.delta, bb.typeURL, bb.named, 10_000, bb.others)
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

// deliveryAllocations is the number of allocations for one more client that is sent a shared response: the response
// around the shared body, and its nonce.
const deliveryAllocations = 2

// TestSharedDeliveriesAllocateLittle checks that the cost of one more client does not grow with the number of
// resources.
func TestSharedDeliveriesAllocateLittle(t *testing.T) {
	for _, tt := range deliveries {
		if tt.named > 0 {
			continue // each client has a separate body
		}
		t.Run(tt.name, func(t *testing.T) {
			d := newDeliveryBench(t, tt.delta, tt.typeURL, tt.named, 100, 0)
			for _, c := range d.clients {
				c.st.nonces += 1000 // shorter numbers need no allocation
			}
			measure := func() float64 {
				return testing.AllocsPerRun(20, func() {
					d.change()
					d.deliver(t)
				})
			}
			many := measure()
			for _, c := range d.clients[benchStreams/2:] {
				c.st.close()
			}
			d.clients = d.clients[:benchStreams/2]
			few := measure()
			if got := (many - few) / (benchStreams / 2); got < deliveryAllocations-0.5 || got > deliveryAllocations+0.5 {
				t.Errorf("got %.2f allocations for each further client, want %d", got, deliveryAllocations)
			}
		})
	}
}
