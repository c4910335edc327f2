package downstream

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/loadreport"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// marshalNode encodes a Node.
func marshalNode(tb testing.TB, n *node) []byte {
	tb.Helper()
	encoded := check.Must(proto.Marshal(n))
	return encoded
}

// nodeOfBytes returns a Node with an encoded size in bytes.
func nodeOfBytes(tb testing.TB, size int) *node {
	tb.Helper()
	n := &node{Id: "n"}
	n.Cluster = strings.Repeat("x", size-proto.Size(n)-1-protowire.SizeVarint(uint64(size))) // tag, length
	if got := proto.Size(n); got != size {
		tb.Fatalf("the Node has %d bytes, want %d", got, size)
	}
	return n
}

// B.35: streams, polls and load reports apply the same limits to a Node, without its extensions.
func TestB35_NodeLimits(t *testing.T) {
	const most = 256 << 10
	extension := func(size int) []*corepb.Extension { return []*corepb.Extension{{Name: strings.Repeat("x", size)}} }
	full := nodeOfBytes(t, most-2*guard.MaxNodeValues)
	full.ClientFeatures = make([]string, guard.MaxNodeValues) // of two bytes each
	full.Extensions = extension(most)
	for _, tt := range []struct {
		name string
		node *node
		want string // part of the error; empty if the Node is accepted
	}{
		{"256 KiB and 10,000 values, and extensions", full, ""},
		{"a byte more", nodeOfBytes(t, most+1),
			"node of 262145 bytes without its extensions, at most 262144 are allowed (node_bytes)"},
		{"a value more", &node{ClientFeatures: make([]string, guard.MaxNodeValues+1)},
			"node of more than 10000 values, counting list elements and fields of structs at any depth: " +
				"no more are allowed (node_bytes)"},
		{"1 MiB of extensions", &node{Id: "n", Extensions: extension(1 << 20)},
			"at most 1048576 are allowed (node_bytes)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			encoded := marshalNode(t, tt.node)
			for service, err := range map[string]error{
				"stream": streamNodeError(t, encoded), "load report": loadReportNodeError(t, encoded),
				"poll": pollNodeError(t, check.Must(protojson.Marshal(tt.node))),
			} {
				switch {
				case tt.want == "" && err != nil:
					t.Errorf("%s: error %v, want none", service, err)
				case tt.want != "" && (status.Code(err) != codes.InvalidArgument ||
					!strings.Contains(status.Convert(err).Message(), tt.want)):
					t.Errorf("%s: error %v, want INVALID_ARGUMENT and %q", service, err, tt.want)
				}
			}
		})
	}
}

// B.35: the limits are at least four times the size of recorded Nodes of Envoy.
func TestB35_RecordedNodeIsBelowLimits(t *testing.T) {
	recorded := stockNode(t)
	r := &wire.Request{Delta: true}
	check.OK(t, r.Decode(firstRequest(recorded)))
	found := check.Must(wire.CountElements((&node{}).ProtoReflect().Descriptor(), r.Node, guard.MaxNodeDepth,
		wire.Elements{Messages: 1000, Values: 1000}))
	if r.NodeBytes != 61_090 || len(r.Node) != 174 || found.Values != 4 {
		t.Errorf("the Node has %d bytes, %d without its extensions, and %d values, want 61090, 174 and 4", r.NodeBytes,
			len(r.Node), found.Values)
	}
	if 4*r.NodeBytes > guard.MaxNodeBytes || 4*len(r.Node) > 256<<10 || 4*found.Values > guard.MaxNodeValues {
		t.Error("the limits are less than four times the size of the recorded Node")
	}
}

// streamNodeError returns the error of a stream for a Node.
func streamNodeError(t *testing.T, encoded []byte) error {
	t.Helper()
	view, _ := cache.New(cache.Config{})
	s := newTestStream(t, view, Config{})
	s.lastNode.seen = false
	r := &wire.Request{Delta: true, Limits: wire.Limits{MaxNodeBytes: guard.MaxNodeBytes}}
	check.OK(t, r.Decode(firstRequest(encoded)))
	ident := s.identityIn(r)
	if ident.err == nil {
		ident.release()
	}
	return ident.err
}

// loadReportNodeError returns the error of a stream of load reports for a Node.
func loadReportNodeError(t *testing.T, encoded []byte) error {
	t.Helper()
	view, _ := cache.New(cache.Config{})
	server := check.Must(New(Config{Views: oneView{view}, SumLoads: true, Loads: noLoads{}}))
	rpc := &loadClient{ctx: t.Context(), report: &lrspb.LoadStatsRequest{Node: new(node)}}
	check.OK(t, proto.Unmarshal(encoded, rpc.report.GetNode()))
	return loadService{server}.serve(rpc)
}

// A loadClient sends one load report, and half-closes its stream.
type loadClient struct {
	grpcCall
	ctx    context.Context
	report *lrspb.LoadStatsRequest
}

func (c *loadClient) Context() context.Context { return c.ctx }

func (c *loadClient) RecvMsg(m any) (err error) {
	if c.report == nil {
		return io.EOF
	}
	m.(*wire.Message).Bytes, err = proto.Marshal(c.report)
	c.report = nil
	return err
}

// noLoads is an origin that discards load reports.
type noLoads struct{ loadreport.Origin }

func (noLoads) ReportLoads(ctx context.Context, _ *loadreport.Group) { <-ctx.Done() }

// pollNodeError returns the error of a poll for a Node in JSON.
func pollNodeError(t *testing.T, inJSON []byte) error {
	t.Helper()
	s, _, _ := restServer(t)
	reply := restPoll(t.Context(), s, "1", `{"node":`+string(inJSON)+`,"resource_names":["a"]}`)
	if reply.Code == http.StatusBadRequest {
		return status.Error(codes.InvalidArgument, reply.Body.String())
	}
	return nil // the Node was accepted
}

// peerClient returns an eagerClient with the address of a host, that sends a request with each of the encoded Nodes. If
// connection is nil, its memory is not charged.
func peerClient(ctx context.Context, host string, connection credentials.AuthInfo, encoded ...[]byte) *eagerClient {
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(host), Port: 1}, AuthInfo: connection})
	return &eagerClient{ctx: ctx, sent: make(chan *wire.Response, 10), next: func() (wire.Request, error) {
		if len(encoded) == 0 {
			<-ctx.Done()
			return wire.Request{}, ctx.Err()
		}
		n := encoded[0]
		encoded = encoded[1:]
		return wire.Request{Delta: true, TypeURL: wire.ClusterType, Node: n, NodeBytes: len(n)}, nil
	}}
}

// A blockingViews blocks Join for nodes with the id "held" until open is closed.
type blockingViews struct {
	oneView
	open    chan struct{}
	joins   atomic.Int64 // started calls for this id
	workers atomic.Int64 // calls by queue workers
}

func (g *blockingViews) Join(n *node, by Caller) (Group, error) {
	if strings.Contains(string(debug.Stack()), "(*queue).work") {
		g.workers.Add(1)
	}
	if n.GetId() == "held" {
		g.joins.Add(1)
		<-g.open
	}
	return g.oneView.Join(n, by)
}

// B.35: a slow Join blocks no other client, no worker and no reader of the stream list. For clients of one peer that
// change their Nodes, the number of concurrent calls is limited.
func TestB35_SlowJoinBlocksNoOtherClient(t *testing.T) {
	held, neighbour := marshalNode(t, &node{Id: "held"}), marshalNode(t, &node{Id: "neighbour"})
	few := max(1, runtime.GOMAXPROCS(0)/2)
	for _, tt := range []struct {
		name    string
		nodes   [][]byte // sent by each client
		clients int
		atOnce  int // clients in Join
	}{
		{"new clients", [][]byte{held}, 4 * runtime.GOMAXPROCS(0), 4 * runtime.GOMAXPROCS(0)},
		{"clients that change their Node", [][]byte{neighbour, held}, few + 5, few},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				view, w := cache.New(cache.Config{})
				w.SetConnected(true)
				w.SetPhase(wire.ClusterType, cache.Confirmed)
				views := &blockingViews{oneView: oneView{view}, open: make(chan struct{})}
				server := check.Must(New(Config{Views: views, FirstRequestTimeout: time.Hour}))
				ctx, cancel := context.WithCancel(t.Context())
				connect := func(nodes ...[]byte) *eagerClient {
					c := peerClient(ctx, "192.0.2.1", nil, nodes...)
					go func() { _ = server.serveStream(c, "", true) }() // ends with ctx
					synctest.Wait()
					return c
				}
				for range tt.clients {
					connect(tt.nodes...)
				}
				check.Equal(t, "clients in Join", views.joins.Load(), int64(tt.atOnce))
				check.Equal(t, "responses to a neighbour that repeats its Node", len(connect(neighbour, neighbour).sent), 1)
				check.Equal(t, "listed streams", len(slices.Collect(server.Clients())), tt.clients+1)
				connect(held)
				check.Equal(t, "clients in Join, with a new client", views.joins.Load(), int64(tt.atOnce+1))
				close(views.open)
				time.Sleep(time.Second)
				check.Equal(t, "clients in Join after it was unblocked", views.joins.Load(), int64(tt.clients+1))
				check.Equal(t, "calls of Join by workers", views.workers.Load(), 0)
				cancel()
				synctest.Wait()
			})
		})
	}
}

// B.35: in each service, decoding a large Node takes a turn of the client's peer, while other peers have their own.
func TestB35_NodesOfAllServicesTakeTurns(t *testing.T) {
	held := &node{Id: "held", Cluster: strings.Repeat("x", 5<<10)} // more than is decoded without a turn
	encoded := marshalNode(t, held)
	for _, tt := range []struct {
		service string
		connect func(ctx context.Context, s *Server, host string)
	}{
		{"ADS", func(ctx context.Context, s *Server, host string) {
			_ = s.serveStream(peerClient(ctx, host, nil, encoded), "", true)
		}},
		{"a stream of one type", func(ctx context.Context, s *Server, host string) {
			_ = s.serveStream(peerClient(ctx, host, nil, encoded), wire.ClusterType, true)
		}},
		{"load reports", func(ctx context.Context, s *Server, host string) {
			ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(host), Port: 1}})
			_ = loadService{s}.serve(&loadClient{ctx: ctx, report: &lrspb.LoadStatsRequest{Node: held}})
		}},
		{"polls", func(ctx context.Context, s *Server, host string) {
			body := `{"node":` + string(check.Must(protojson.Marshal(held))) + `,"resource_names":["a"]}`
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v3/discovery:routes", strings.NewReader(body))
			r.RemoteAddr = host + ":1"
			s.REST().ServeHTTP(httptest.NewRecorder(), r)
		}},
	} {
		t.Run(tt.service, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				view, _ := cache.New(cache.Config{})
				views := &blockingViews{oneView: oneView{view}, open: make(chan struct{})}
				s := check.Must(New(Config{Views: views, FirstRequestTimeout: time.Hour, SumLoads: true, Loads: noLoads{}}))
				ctx, cancel := context.WithCancel(t.Context())
				turns := max(1, runtime.GOMAXPROCS(0)/2)
				for range turns {
					go func() { _ = s.serveStream(peerClient(ctx, "192.0.2.1", nil, encoded), "", true) }() // ends with ctx
				}
				synctest.Wait()
				for _, step := range []struct {
					host string
					want int
				}{{"192.0.2.1", turns}, {"192.0.2.2", turns + 1}} {
					go tt.connect(ctx, s, step.host) // ends with ctx
					synctest.Wait()
					check.Equal(t, "clients in Join, after one of "+step.host, views.joins.Load(), int64(step.want))
				}
				cancel()
				close(views.open)
				synctest.Wait()
			})
		})
	}
}
