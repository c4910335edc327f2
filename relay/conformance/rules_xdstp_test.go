package conformance_test

import (
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/relay/relaytest"
)

const shop = "xdstp://one/acme.Thing/shop/"

// malformed names, none of which any resource can have.
var malformed = []string{
	shop + "x?a=1&a=2", shop + "x?=1", shop + "x#entry=y", "xdstp://one", "xdstp://one/acme.Thing", "xdstp://one/acme.Thing/",
	"xdstp://one//x", "xdstp://one/no type/x", "xdstp://one/acme.Thing/%", "xdstp://%zz/acme.Thing/x", shop + "x?a=%",
}

// TestX23_MalformedNamesAreNeverSentOn: nobody is asked for a name that cannot be, and
// who asks for nothing else asks for nothing: neither for everything, nor is the
// stream ended. Clients that understand it are told UNAVAILABLE, once.
func TestX23_MalformedNamesAreNeverSentOn(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		node   *corepb.Node
		errors bool
	}{{"envoy", relaytest.EnvoyNode("n"), false}, {"grpc", relaytest.GRPCNode("n"), true}} {
		t.Run(tt.name, func(t *testing.T) {
			eachVariant(t, func(t *testing.T, v relaytest.Variant) {
				worldBubble(t, nil, func(w *world) {
					w.change("acme "+shop+"x@1", "acme plain@1", "cds plain@1", "cds other@1")
					for _, short := range []string{"acme", "cds"} { // which have a legacy wildcard
						for _, name := range malformed {
							c := w.dial(relaytest.ClientOptions{Variant: v, Node: tt.node})
							c.Subscribe(typeURLs[short], name)
							w.sleep(time.Minute)
							var told []relaytest.ResourceError
							for r := c.TryRecv(); r != nil; r = c.TryRecv() {
								told = append(told, r.Errors...)
								if c.Ack(r); len(r.Resources)+len(r.Removed) > 0 {
									t.Errorf("%s %q is answered: %v", short, name, r)
								}
							}
							if tt.errors != (len(told) == 1) || tt.errors && (told[0].Name != name || told[0].Code != codes.Unavailable) {
								t.Errorf("%s %q: told %v", short, name, told)
							}
							w.sleep(time.Minute)
							if r := c.TryRecv(); r != nil {
								t.Errorf("%s %q: told once more: %v", short, name, r)
							}
							c.subscribe(short, "plain") // its stream lives
							w.sleep(time.Second)
							c.expectAndAck(formatFor(v, short+" plain@1"))
						}
					}
					for _, short := range []string{"acme", "cds"} {
						if !w.origin.State().Subscribed(typeURLs[short], "plain") {
							t.Errorf("the origin was asked for something else:\n%v", w.origin.State())
						}
					}
				})
			})
		})
	}
}

// xdstpClient returns a client by hand that is told the names of what it gets.
func xdstpClient(w *world, v relaytest.Variant) *worldClient {
	return w.dial(relaytest.ClientOptions{Variant: v, Node: wrapNode()})
}

// wrapNode is a node of software that is told the names of what it gets, in SotW too.
func wrapNode() *corepb.Node {
	n := relaytest.EnvoyNode("n")
	n.ClientFeatures = []string{"xds.config.resource-in-sotw"}
	return n
}

// TestB16_EndpointsOfAGlobFollowTheirCluster: a cluster that changed is followed by its
// endpoints, although these did not, where a glob has them.
func TestB16_EndpointsOfAGlobFollowTheirCluster(t *testing.T) {
	t.Parallel()
	const dir = "xdstp://one/envoy.config.endpoint.v3.ClusterLoadAssignment/dir/"
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, nil, func(w *world) {
			w.change("eds "+dir+"a@1", "eds "+dir+"b@1")
			cluster := func(stat string) {
				c := relaytest.Cluster("c", dir+"a")
				c.AltStatName = stat
				w.origin.Put(c)
				synctest.Wait()
			}
			cluster("1")
			c := w.dial(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: wrapNode()}).subscribe("eds", dir+"*")
			w.settle()
			c.expect(formatFor(v, "eds "+dir+"a@1 "+dir+"b@1"))
			c.subscribe("cds", "")
			w.settle()
			c.expect(formatFor(v, "cds c@?"), formatFor(v, "eds "+dir+"a@1"))
			cluster("2")
			c.expect(formatFor(v, "cds c@?"), formatFor(v, "eds "+dir+"a@1"))
			w.sleep(time.Hour)
			c.expect()
		})
	})
}
