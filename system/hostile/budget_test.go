package hostile_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
)

// Limits of the relay in TestB35_TheBudget. They are so low that the incomplete bodies of the test would exceed the budget
// without the limit of buffered requests.
const (
	budgetConnections = 16
	budgetStreams     = 32
	budgetRequest     = 2 * mebibyte
	budgetUnread      = 4 * budgetRequest // buffered request bytes
	budgetNames       = 500               // names per stream
	budgetNameBytes   = 256               // of the names in the test, which are shorter than the relay allows
	budgetOrigin      = 1000              // names at the origin
	budgetGroups      = 2
	budgetNodeBytes   = 256 << 10 // without rules, only Nodes that wait to be decoded are kept, one per stream
	budgetPeers       = 3         // number of client addresses, not a limit of the relay
)

// budget is the maximum memory in bytes for these limits, by the formula in deploy/docs/configuration.md.
const budget = budgetUnread +
	budgetConnections*(400<<10) +
	budgetStreams*(64<<10+16<<10) + budgetStreams*budgetNames*200 +
	budgetOrigin*(budgetNameBytes+500) +
	budgetStreams*budgetNodeBytes +
	budgetGroups*(8<<20)

// clientBytes is an estimate of the memory of the test's clients, which run in the same process.
const clientBytes = budgetConnections * (256 << 10)

// TestB35_TheBudget: clients send random requests to every service. The live heap never exceeds the
// budget of the limits, and the neighbour is served.
func TestB35_TheBudget(t *testing.T) {
	undo := limitBuffers(budgetUnread)
	v := serve(t, "TENDER_MAX_CONNECTIONS="+fmt.Sprint(budgetConnections), "TENDER_MAX_STREAMS="+fmt.Sprint(budgetStreams),
		"TENDER_MAX_REQUEST_BYTES="+fmt.Sprint(budgetRequest),
		"TENDER_MAX_NAMES="+fmt.Sprint(budgetNames), "TENDER_MAX_ORIGIN_NAMES="+fmt.Sprint(budgetOrigin),
		"TENDER_MAX_GROUPS="+fmt.Sprint(budgetGroups), "TENDER_NODE_GROUP_BY=cluster",
		"TENDER_LRS=aggregate", "TENDER_DYNAMIC_PARAMETERS=on")
	undo()
	const workers, acts = 8, 25
	said := newSayings(t)
	v.during(func() {
		grown := peak(func() {
			var all sync.WaitGroup
			for i := range workers {
				all.Go(func() { // awaited below
					b := &budgeted{victim: v, said: said, random: rand.New(rand.NewPCG(1, uint64(i))), peer: fmt.Sprintf("127.0.0.%d", 10+i%budgetPeers)}
					defer b.leave()
					for range acts {
						if b.act(); len(b.opened) > budgetConnections/workers {
							b.leave()
						}
					}
				})
			}
			all.Wait()
		})
		t.Logf("the heap grew by at most %d bytes of a budget of %d", grown, budget)
		if grown > budget+clientBytes {
			t.Errorf("the heap grew by %d bytes, want at most %d for the limits and %d for the clients", grown, budget, clientBytes)
		}
	})
	v.await("no buffered request bytes", func() bool { return v.Stats().Unread == 0 })
}

// sayings holds the messages that clients of TestB35_TheBudget send. They are made beforehand, so that their
// allocation does not count as memory of the relay.
type sayings struct {
	requests, reports [][]byte
	bodies            []string // bodies of polls
}

// newSayings returns a dozen random messages of each kind.
func newSayings(t *testing.T) *sayings {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	s := new(sayings)
	add := func(to *[][]byte, m proto.Message) {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		*to = append(*to, b)
	}
	for range 12 {
		add(&s.requests, anyRequest(random))
		add(&s.reports, anyReport(random))
		s.bodies = append(s.bodies, `{"node":{"id":"n","cluster":"`+anyCluster(random)+`","metadata":{"k":[`+strings.Repeat("1,", random.IntN(mebibyte))+`1]}}}`)
	}
	return s
}

// one returns a random message.
func one(random *rand.Rand, of [][]byte) *wire.Message {
	return &wire.Message{Bytes: of[random.IntN(len(of))]}
}

// A budgeted client sends random messages. Its connections stay open until leave is called.
type budgeted struct {
	*victim
	said   *sayings
	random *rand.Rand
	peer   string   // IP address from which it connects
	opened []func() // close the open connections
}

// leave closes all connections.
func (b *budgeted) leave() {
	for _, end := range b.opened {
		end()
	}
	b.opened = nil
}

// act does one random thing. Errors are ignored, because the relay may refuse anything.
func (b *budgeted) act() {
	switch b.random.IntN(6) {
	case 0, 1:
		b.halfABody()
	case 2:
		b.poll()
	default:
		b.stream()
	}
}

// halfABody begins a poll and sends all of its body but the last byte.
func (b *budgeted) halfABody() {
	conn, err := dialer(b.peer).DialContext(b.t.Context(), "tcp", b.RESTAddrs()[0].String())
	if err != nil {
		return
	}
	b.opened = append(b.opened, func() { _ = conn.Close() })
	go func() { // ends with the connection
		_, _ = fmt.Fprintf(conn, "POST /v3/discovery:clusters HTTP/1.1\r\nHost: relay\r\nContent-Length: %d\r\n\r\n", budgetRequest)
		_, _ = conn.Write(bytes.Repeat([]byte(" "), budgetRequest-1))
	}()
}

// poll sends one poll with a random body.
func (b *budgeted) poll() {
	body := b.said.bodies[b.random.IntN(len(b.said.bodies))]
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, "http://"+b.RESTAddrs()[0].String()+"/v3/discovery:clusters", strings.NewReader(body))
	if err != nil {
		return
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: dialer(b.peer).DialContext,
	}}
	if answer, err := client.Do(r); err == nil {
		_ = answer.Body.Close()
	}
}

// stream opens a stream of a random service and sends one or two random messages.
func (b *budgeted) stream() {
	options := []grpc.DialOption{
		from(b.peer), grpc.WithReadBufferSize(0), grpc.WithWriteBufferSize(0),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.Codec{})),
	}
	conn := b.Conn(options...)
	ctx, cancel := context.WithCancel(b.t.Context())
	b.opened = append(b.opened, func() { cancel(); _ = conn.Close() })
	open := func(method string) grpc.ClientStream {
		rpc, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			return nil // the relay has closed the connection
		}
		return rpc
	}
	switch b.random.IntN(4) {
	case 0:
		if rpc := open(lrspb.LoadReportingService_StreamLoadStats_FullMethodName); rpc != nil {
			_ = rpc.SendMsg(one(b.random, b.said.reports))
		}
	case 1:
		if rpc := open(healthpb.Health_Watch_FullMethodName); rpc != nil {
			_ = rpc.SendMsg(one(b.random, b.said.requests))
		}
	default:
		if rpc := open(discoverypb.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName); rpc != nil {
			_ = rpc.SendMsg(one(b.random, b.said.requests))
			_ = rpc.SendMsg(one(b.random, b.said.requests))
		}
	}
}

// anyCluster returns a random node group, of twice as many as the limit allows.
func anyCluster(random *rand.Rand) string { return fmt.Sprint("group-", random.IntN(2*budgetGroups)) }

// anyNode returns a random Node of up to 2 MiB.
func anyNode(random *rand.Rand) *corepb.Node {
	n := &corepb.Node{Id: "n", Cluster: anyCluster(random)}
	switch random.IntN(3) {
	case 0:
		n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"k": structpb.NewStringValue(strings.Repeat("\x00", random.IntN(2*mebibyte)))}}
	case 1:
		n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for i := range random.IntN(12_000) {
			n.Metadata.Fields[fmt.Sprint(i)] = structpb.NewNumberValue(1)
		}
	}
	return n
}

// anyRequest returns a random request with up to twice as many names as the limit allows, some in locators.
func anyRequest(random *rand.Rand) *discoverypb.DeltaDiscoveryRequest {
	types := []string{relaytest.ClusterType, relaytest.EndpointType, "type.example/" + anyCluster(random)}
	r := &discoverypb.DeltaDiscoveryRequest{Node: anyNode(random), TypeUrl: types[random.IntN(len(types))]}
	for range random.IntN(2 * budgetNames) {
		name := fmt.Sprint(random.IntN(3*budgetOrigin), strings.Repeat("x", random.IntN(budgetNameBytes)))
		switch random.IntN(3) {
		case 0:
			r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, name)
		case 1:
			r.ResourceLocatorsSubscribe = append(r.ResourceLocatorsSubscribe, &discoverypb.ResourceLocator{
				Name: name, DynamicParameters: map[string]string{"a": "1", "b": name[:1]},
			})
		default:
			if r.InitialResourceVersions == nil {
				r.InitialResourceVersions = make(map[string]string)
			}
			r.InitialResourceVersions[name] = "1"
		}
	}
	return r
}

// anyReport returns a load report with up to 300,000 empty localities.
func anyReport(random *rand.Rand) *lrspb.LoadStatsRequest {
	return loadReport(&corepb.Node{Id: "n", Cluster: anyCluster(random)}, random.IntN(300_000))
}
