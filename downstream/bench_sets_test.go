package downstream

import (
	"fmt"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// setChanges are variants of changes of the complete set of clusters that SotW clients are sent.
var setChanges = []struct {
	name      string
	replaces  bool // a cluster is added while another is removed, so the union is sent first
	forms     int  // number of encodings of the set, by client features
	responses int  // per client
}{
	{"plain", false, 1, 1},
	{"replacement", true, 1, 2},
	{"plain-two-forms", false, 2, 1},
	{"replacement-two-forms", true, 2, 2},
}

// newSetClients returns clients that subscribed to all clusters, with a number of different encodings.
func newSetClients(b testing.TB, resources, clients, forms int) (w *cache.Writer, all []*benchClient) {
	group := new(countedGroup)
	view, w := cache.New(cache.Config{Fanout: group.counts.Followed})
	group.view = view
	server := check.Must(New(Config{Views: group}))
	w.SetConnected(true)
	update := wire.Update{TypeURL: wire.ClusterType}
	for i := range resources {
		update.Resources = append(update.Resources, benchResource(b, wire.ClusterType, i, "0"))
	}
	w.Apply(cache.Wildcard, update)
	w.SetPhase(wire.ClusterType, cache.Confirmed)
	for i := range clients {
		node := &corepb.Node{}
		if i%forms > 0 {
			node.ClientFeatures = []string{"xds.config.resource-in-sotw"}
		}
		all = append(all, newBenchClientOf(b, server, check.Must(proto.Marshal(node)), false, wire.ClusterType, nil))
	}
	return w, all
}

// changeSet changes a cluster, or with replaces adds one and removes another.
func changeSet(b testing.TB, w *cache.Writer, replaces bool, turn, resources int) {
	u := wire.Update{TypeURL: wire.ClusterType}
	if !replaces {
		u.Resources = []*wire.Resource{benchResource(b, wire.ClusterType, 7, fmt.Sprint(turn+1))}
	} else {
		u.Resources = []*wire.Resource{benchResource(b, wire.ClusterType, resources+turn, "0")}
		u.Removed = []string{benchName(resources + turn - 1)}
	}
	w.Apply(cache.Wildcard, u)
}

// BenchmarkSets measures the cost of computing and encoding complete sets, as BenchmarkDelivery does: 1,000 clients,
// one change among 10,000 clusters.
func BenchmarkSets(b *testing.B) {
	const resources, clients = 10_000, 1000
	for _, bb := range setChanges {
		b.Run(bb.name, func(b *testing.B) {
			w, all := newSetClients(b, resources, clients, bb.forms)
			turn, sent := 0, 0
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				changeSet(b, w, bb.replaces, turn, resources)
				turn++
				b.StartTimer()
				for _, c := range all {
					sent -= c.sent
					c.settle(b)
					sent += c.sent
				}
			}
			b.StopTimer()
			if sent != b.N*clients*bb.responses {
				b.Fatalf("got %d responses, want %d", sent, b.N*clients*bb.responses)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(sent), "ns/delivery")
		})
	}
}

// settle flushes and answers until nothing is due to the client.
func (c *benchClient) settle(b testing.TB) {
	for before := -1; before < c.sent; {
		before = c.sent
		if c.flush(b); c.sent > before {
			c.ack(b)
		}
	}
}

// TestSetsAreMadeOncePerForm checks that clients at the same position share the bytes of a set or union, and that each
// encoding is made once.
func TestSetsAreMadeOncePerForm(t *testing.T) {
	const resources, clients = 20, 12
	for _, tt := range setChanges {
		t.Run(tt.name, func(t *testing.T) {
			w, all := newSetClients(t, resources, clients, tt.forms)
			for turn := range 3 {
				changeSet(t, w, tt.replaces, turn, resources)
				for range tt.responses {
					bodies := make(map[*wire.Body]int)
					for _, c := range all {
						before := c.sent
						if c.flush(t); c.sent != before+1 {
							t.Fatalf("turn %d: got %d responses, want one", turn, c.sent-before)
						}
						c.ack(t)
						bodies[c.last.Body]++
					}
					if len(bodies) != tt.forms {
						t.Errorf("turn %d: %d clients were sent %d bodies, want %d", turn, clients, len(bodies), tt.forms)
					}
				}
			}
		})
	}
}
