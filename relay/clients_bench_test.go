package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/operator"
	"github.com/xdstender/tender/relay/page"
)

const benchStreams = 10_000

// BenchmarkClients queries a server with 10,000 streams for a page of clients, and for the holders of a resource.
func BenchmarkClients(b *testing.B) {
	server := crowded(b)
	f := operator.Fleet{Server: server}
	b.Run("page", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if c, err := f.Clients(admin.ClientQuery{Page: admin.Page{Limit: 100}}); err != nil ||
				c.Totals.Streams != benchStreams || len(c.Clients) != 100 {
				b.Fatal(c.Totals, err)
			}
		}
	})
	b.Run("all", func(b *testing.B) { // as tender clients reads them, with the encoding
		b.ReportAllocs()
		for b.Loop() {
			listed := 0
			for page := (admin.Clients{Next: ""}); listed == 0 || page.Next != ""; {
				var err error
				page, err = f.Clients(admin.ClientQuery{
					Sort: admin.ByNumber, NoTotals: listed > 0, Page: admin.Page{Limit: 1000, After: page.Next},
				})
				if err != nil {
					b.Fatal(err)
				}
				if err := json.NewEncoder(io.Discard).Encode(page); err != nil {
					b.Fatal(err)
				}
				listed += len(page.Clients)
			}
			if listed != benchStreams {
				b.Fatal(listed)
			}
		}
	})
	b.Run("client", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if c, err := f.Client(benchStreams/2, admin.ClientResourceQuery{Page: admin.Page{Limit: 1000}}); err != nil || len(c.Resources) != 100 {
				b.Fatal(c, err)
			}
		}
	})
	b.Run("by zone and state", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			q := admin.ClientQuery{Zone: "elsewhere", Sync: admin.Behind, Page: admin.Page{Limit: 100}}
			if c, err := f.Clients(q); err != nil || len(c.Clients) != 0 {
				b.Fatal(c.Totals, err)
			}
		}
	})
	b.Run("by node", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if c, err := f.Clients(admin.ClientQuery{Node: "node-17", Page: admin.Page{Limit: 100}}); err != nil ||
				len(c.Clients) == 0 {
				b.Fatal(c.Totals, err)
			}
		}
	})
	b.Run("holders", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if got := len(server.Holders(wire.ClusterType, "cluster-7")); got != benchStreams {
				b.Fatal(got)
			}
		}
	})
}

// BenchmarkPages renders status pages of such a server. A relay renders a page at most once per second.
func BenchmarkPages(b *testing.B) {
	pages := page.New(page.Config{Status: func() admin.Status { return admin.Status{} },
		Fleet: &operator.Fleet{Server: crowded(b)}, History: new(page.History)})
	b.Cleanup(pages.Close)
	for _, tt := range []struct{ name, path string }{
		{"overview", "/?"}, {"clients", "/clients?"}, {"by node", "/clients?node=node-17"}, {"client", "/clients/1?"},
	} {
		b.Run(tt.name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++ // a different URL each time, so that no page is cached
				w := httptest.NewRecorder()
				pages.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), http.MethodGet, fmt.Sprint(tt.path, "&n=", n), nil))
				if w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}

// crowded returns a server with 100 clusters and benchStreams clients that have accepted them.
func crowded(b *testing.B) *downstream.Server {
	view, w := cache.New(cache.Config{})
	server, err := downstream.New(downstream.Config{Views: everybody{view}})
	if err != nil {
		b.Fatal(err)
	}
	w.SetConnected(true)
	u := wire.Update{TypeURL: wire.ClusterType}
	for i := range 100 {
		r, err := wire.NewResource(wire.ClusterType, fmt.Sprint("cluster-", i), "1", []byte{10, 1, 'a'})
		if err != nil {
			b.Fatal(err)
		}
		u.Resources = append(u.Resources, r)
	}
	w.Apply(cache.Wildcard, u)
	w.SetPhase(wire.ClusterType, cache.Confirmed)
	const perConnection = 2000
	g := NewGRPCServer(1<<20, perConnection)
	server.Register(g)
	l := bufconn.Listen(1 << 20)
	go func() { _ = g.Serve(l) }() // ends by Stop
	b.Cleanup(g.Stop)
	for range benchStreams / perConnection {
		conn, err := grpc.NewClient("passthrough:///relay", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		for i := range perConnection {
			accept(b, conn, fmt.Sprint("node-", i))
		}
	}
	return server
}

// accept opens a stream of a client that subscribes to all clusters and accepts them.
func accept(b *testing.B, conn *grpc.ClientConn, id string) {
	labels, err := structpb.NewStruct(map[string]any{
		"labels": map[string]any{"app": "shop", "version": "v1", "zone": "b"}, "NAMESPACE": "shop",
	})
	if err != nil {
		b.Fatal(err)
	}
	stream, err := discoverypb.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	ask := &discoverypb.DeltaDiscoveryRequest{
		TypeUrl: wire.ClusterType, Node: &corepb.Node{Id: id, UserAgentName: "envoy", Metadata: labels},
	}
	if err := stream.Send(ask); err != nil {
		b.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		b.Fatal(err)
	}
	ask.ResponseNonce = answer.GetNonce()
	if err := stream.Send(ask); err != nil {
		b.Fatal(err)
	}
}

// everybody implements downstream.Views with one group for all nodes.
type everybody struct{ view *cache.View }

func (e everybody) Join(n *corepb.Node, _ downstream.Caller) (downstream.Group, error) {
	return downstream.Group{View: e.view, Key: "all", Node: n, Leave: func() {}}, nil
}
