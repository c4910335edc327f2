package soak

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/ledger"
)

// A group is a node group with the resources that the origins serve to it. Its methods must be called from the
// goroutine of the test, except beat.
type group struct {
	name     string
	ledger   *ledger.Ledger       // every content that the origins ever served
	contents []*relaytest.Content // one for each origin
	n        int                  // number of contents so far; makes each one unique
}

// sizes is the number of resources of each type, without fleeting, bulk and common resources.
var sizes = map[string]int{relaytest.ClusterType: 40, relaytest.EndpointType: 40, relaytest.ListenerType: 12, relaytest.RouteType: 12}

// unasked are resources to which no client subscribes by name.
var unasked = map[string][]string{
	relaytest.ClusterType: {resource(38), resource(39)}, relaytest.ListenerType: {resource(10), resource(11)}, relaytest.RouteType: {resource(10), resource(11)},
}

// types are the types whose resources churn changes.
var types = []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, relaytest.RouteType}

// Fleeting resources are endpoints with a TTL, which the origins renew by heartbeats.
const (
	fleetings     = 3
	fleetingLife  = 3 * time.Second // TTL
	fleetingEvery = time.Second     // between heartbeats
)

// The bulk resource is larger than the flow-control window of a client. A client that does not read it stalls its
// stream.
const (
	bulkType  = "type.googleapis.com/soak.Bulk"
	bulkName  = "bulk"
	bulkBytes = 200 << 10
)

// newGroup returns a group with initial resources at all origins. The origins serve them to nodes whose cluster is
// name.
func newGroup(name string, origins []*relaytest.Origin) *group {
	g := &group{name: name, ledger: ledger.New()}
	for _, o := range origins {
		g.contents = append(g.contents, o.For(func(n *corepb.Node) bool { return n.GetCluster() == name }))
	}
	g.changeAll(types...)
	g.changeBulk()
	for i := range fleetings {
		g.changeFleeting(i)
	}
	return g
}

// service is the prefix of the names that resource returns.
const service = "service-"

func resource(i int) string { return fmt.Sprint(service, i) }

func fleeting(i int) string { return fmt.Sprint("fleeting-", i) }

// unique returns a string that no earlier content of the group contains.
func (g *group) unique() string {
	g.n++
	return fmt.Sprint(g.name, "-", g.n)
}

// endpoints returns endpoints that differ from all earlier ones of the group.
func (g *group) endpoints(name string) proto.Message {
	g.n++
	return relaytest.Endpoints(name, fmt.Sprintf("127.%d.%d.%d:%d", len(g.name), g.n>>8&255, g.n&255, 1+g.n>>16))
}

// content returns a resource that differs from all earlier ones of the group.
func (g *group) content(typeURL, name string) proto.Message {
	switch typeURL {
	case relaytest.ClusterType:
		return relaytest.Cluster(name, g.unique())
	case relaytest.EndpointType:
		return g.endpoints(name)
	case relaytest.ListenerType:
		return relaytest.APIListener(name, g.unique())
	default:
		return relaytest.Route(name, []string{"*"}, g.unique())
	}
}

// change makes one random change: usually new content, sometimes a removal.
func (g *group) change(random *rand.Rand) {
	typeURL := types[random.IntN(len(types))]
	name := resource(random.IntN(sizes[typeURL]))
	switch random.IntN(16) {
	case 0, 1:
		g.ledger.Remove(g.contents, typeURL, name)
	case 2:
		g.changeFleeting(random.IntN(fleetings))
	default:
		g.ledger.Put(g.contents, g.content(typeURL, name))
	}
}

// changeFleeting changes a fleeting resource, which renews its TTL.
func (g *group) changeFleeting(i int) {
	g.ledger.PutWithTTL(g.contents, g.endpoints(fleeting(i)), fleetingLife)
}

// beat sends a heartbeat for each fleeting resource. It may be called from any goroutine.
func (g *group) beat() {
	for _, c := range g.contents {
		for i := range fleetings {
			c.Heartbeat(relaytest.EndpointType, fleeting(i))
		}
	}
}

func (g *group) changeBulk() {
	g.ledger.Put(g.contents, relaytest.Opaque(bulkType, bulkName, bytes.Repeat([]byte(g.unique()+" "), bulkBytes/8)))
}

// changeAll changes all resources of some types, in one change of each origin.
func (g *group) changeAll(of ...string) {
	var all []proto.Message
	for _, typeURL := range of {
		for i := range sizes[typeURL] {
			all = append(all, g.content(typeURL, resource(i)))
		}
	}
	g.ledger.Put(g.contents, all...)
}

// names returns all names that ever existed of a type, and those that exist now. It omits fleeting, bulk and common
// resources.
func (g *group) names(typeURL string) (all, present []string) {
	other := func(name string) bool { return !strings.HasPrefix(name, service) }
	all, present = g.ledger.Names(typeURL)
	return slices.DeleteFunc(all, other), slices.DeleteFunc(present, other)
}

// removeThird removes a third of the resources of each type.
func (g *group) removeThird() {
	for _, typeURL := range types {
		_, present := g.names(typeURL)
		g.ledger.Remove(g.contents, typeURL, present[:len(present)/3]...)
	}
}

// restore adds all resources again that were removed, with new content.
func (g *group) restore() {
	for _, typeURL := range types {
		all, present := g.names(typeURL)
		for _, name := range all {
			if !slices.Contains(present, name) {
				g.ledger.Put(g.contents, g.content(typeURL, name))
			}
		}
	}
}

// A commons holds the resources that the origins serve to all groups: endpoints with xdstp names.
type commons struct {
	groups   []*group
	contents []*relaytest.Content
}

const (
	commonsDir  = "xdstp://soak/envoy.config.endpoint.v3.ClusterLoadAssignment/shared/"
	commonsSize = 8
)

func common(i int) string { return fmt.Sprint(commonsDir, i) }

// newCommons returns the common resources and adds them to all origins.
func newCommons(groups []*group, origins []*relaytest.Origin) *commons {
	c := &commons{groups: groups}
	for _, o := range origins {
		c.contents = append(c.contents, o.Content) // for nodes outside the groups, as relays present for shared names
	}
	for i := range commonsSize {
		c.put(i)
	}
	return c
}

// put changes a common resource. The ledgers of all groups record the content before an origin serves it.
func (c *commons) put(i int) {
	msg := c.groups[0].endpoints(common(i))
	for _, g := range c.groups {
		g.ledger.Put(nil, msg)
	}
	for _, to := range c.contents {
		to.Put(msg)
	}
}

// remove removes a common resource. The ledgers of all groups record the removal first.
func (c *commons) remove(i int) {
	for _, g := range c.groups {
		g.ledger.Remove(nil, relaytest.EndpointType, common(i))
	}
	for _, from := range c.contents {
		from.Remove(relaytest.EndpointType, common(i))
	}
}

// change makes one random change: usually new content, sometimes a removal.
func (c *commons) change(random *rand.Rand) {
	if i := random.IntN(commonsSize); random.IntN(8) == 0 {
		c.remove(i)
	} else {
		c.put(i)
	}
}
