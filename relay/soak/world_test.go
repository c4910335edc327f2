package soak

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// A world is two origins, two relays, and clients of two node groups.
type world struct {
	t       *testing.T
	random  *rand.Rand // of the schedule: its only source
	deck    []fault    // to be drawn
	origins []*relaytest.Origin
	links   links // to them, in their order
	groups  []*group
	process *process
	inside  *inside
	clients []client
	wrong   atomic.Int64 // what clients were told that is
}

func newWorld(t *testing.T, seed uint64, clients int) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 0))}
	for range 2 {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
		w.origins = append(w.origins, o)
		w.links = append(w.links, relaytest.NewProxy(t, o.Addr()))
	}
	for _, name := range []string{"blue", "green"} {
		w.groups = append(w.groups, newGroup(name, w.origins))
	}
	env := []string{
		"TENDER_ORIGIN=" + w.links[0].Addr() + "," + w.links[1].Addr(),
		"TENDER_NODE_GROUP_BY=cluster",
		"TENDER_ADMIN_LISTEN=127.0.0.1:0",
		"TENDER_DRAIN=2s",
		"TENDER_COLD_WAIT=2s",
		"TENDER_ACK_WAIT=1s",
		"TENDER_MASS_DELETE_HOLD=1s",
	}
	w.process = newProcess(t, env)
	w.inside = newInside(t, env)
	for i := range clients {
		w.clients = append(w.clients, w.stream(i))
	}
	for i := range max(2, clients/50) {
		w.clients = append(w.clients, w.poller(i))
	}
	return w
}

// complain takes what a client was told that is wrong.
func (w *world) complain(who, what string) {
	if w.wrong.Add(1) <= 20 {
		w.t.Errorf("%s was told what is wrong: %s", who, what)
	}
}

func (w *world) changes() (n int) {
	for _, g := range w.groups {
		n += g.ledger.Changes()
	}
	return n
}

// dialers reach the relays.
func (w *world) dialers() (dial []func() (*grpc.ClientConn, error)) {
	for _, address := range []string{w.process.address, w.inside.address} {
		dial = append(dial, func() (*grpc.ClientConn, error) {
			return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		})
	}
	return dial
}

// end lets all clients go, and looks whether the relays are rid of them.
func (w *world) end() {
	for _, c := range w.clients {
		c.stop()
	}
	w.process.leaks()
	if got := w.inside.Audit(); got.Faults > 0 {
		w.t.Errorf("the drift audit found %d faults", got.Faults)
	}
}

// A group is a node group: what the origins say to it, and all that they ever said.
type group struct {
	name     string
	ledger   *relaytest.Ledger
	contents []*relaytest.Content // of each origin
	n        int                  // contents that were made
}

// sizes says how many resources there are of each type.
var sizes = map[string]int{relaytest.ClusterType: 40, relaytest.EndpointType: 40, relaytest.ListenerType: 10, relaytest.RouteType: 10}

var types = []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, relaytest.RouteType}

func newGroup(name string, origins []*relaytest.Origin) *group {
	g := &group{name: name, ledger: relaytest.NewLedger()}
	for _, o := range origins {
		g.contents = append(g.contents, o.For(func(n *corepb.Node) bool { return n.GetCluster() == name }))
	}
	g.changeAll()
	return g
}

func resource(i int) string { return fmt.Sprint("service-", i) }

// content returns a resource that is like no other.
func (g *group) content(typeURL, name string) proto.Message {
	g.n++
	unique := fmt.Sprint(g.name, "-", g.n)
	switch typeURL {
	case relaytest.ClusterType:
		return relaytest.Cluster(name, unique)
	case relaytest.EndpointType:
		return relaytest.Endpoints(name, fmt.Sprintf("127.%d.%d.%d:%d", len(g.name), g.n>>8&255, g.n&255, 1+g.n>>16))
	case relaytest.ListenerType:
		return relaytest.APIListener(name, unique)
	default:
		return relaytest.Route(name, []string{"*"}, unique)
	}
}

// change makes one change: most often other content, now and then a removal.
func (g *group) change(random *rand.Rand) {
	typeURL := types[random.IntN(len(types))]
	name := resource(random.IntN(sizes[typeURL]))
	if random.IntN(8) == 0 {
		g.ledger.Remove(g.contents, typeURL, name)
		return
	}
	g.ledger.Put(g.contents, g.content(typeURL, name))
}

func (g *group) changeAll() {
	var all []proto.Message
	for _, typeURL := range types {
		for i := range sizes[typeURL] {
			all = append(all, g.content(typeURL, resource(i)))
		}
	}
	g.ledger.Put(g.contents, all...)
}

func (g *group) removeThird() {
	for _, typeURL := range types {
		_, present := g.ledger.Names(typeURL)
		g.ledger.Remove(g.contents, typeURL, present[:len(present)/3]...)
	}
}

// restore puts back what is not there.
func (g *group) restore() {
	for _, typeURL := range types {
		all, present := g.ledger.Names(typeURL)
		for _, name := range all {
			if !slices.Contains(present, name) {
				g.ledger.Put(g.contents, g.content(typeURL, name))
			}
		}
	}
}
