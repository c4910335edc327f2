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

// malformed are invalid xdstp names.
var malformed = []string{
	shop + "x?a=1&a=2", shop + "x?=1", shop + "x#entry=y", "xdstp://one", "xdstp://one/acme.Thing",
	"xdstp://one/acme.Thing/",
	"xdstp://one//x", "xdstp://one/no type/x", "xdstp://one/acme.Thing/%", "xdstp://%zz/acme.Thing/x", shop + "x?a=%",
}

// The relay does not subscribe to invalid names. A request with only invalid names is no wildcard, and does not
// end the stream. Clients that support resource_errors get an error once.
func TestX23_MalformedNamesAreNotSubscribed(t *testing.T) {
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
					for _, short := range []string{"acme", "cds"} { // types with a legacy wildcard
						for _, name := range malformed {
							c := w.dial(relaytest.ClientOptions{Variant: v, Node: tt.node})
							c.Subscribe(typeURLs[short], name)
							w.sleep(time.Minute)
							var errs []relaytest.ResourceError
							for r := c.TryRecv(); r != nil; r = c.TryRecv() {
								errs = append(errs, r.Errors...)
								if c.Ack(r); len(r.Resources)+len(r.Removed) > 0 {
									t.Errorf("%s %q: got the response %v, want none", short, name, r)
								}
							}
							if tt.errors != (len(errs) == 1) || tt.errors && (errs[0].Name != name || errs[0].Code != codes.Unavailable) {
								t.Errorf("%s %q: got %v", short, name, errs)
							}
							w.sleep(time.Minute)
							if r := c.TryRecv(); r != nil {
								t.Errorf("%s %q: got another response: %v", short, name, r)
							}
							c.subscribe(short, "plain") // the stream is still open
							w.sleep(time.Second)
							c.expectAndAck(formatFor(v, short+" plain@1"))
						}
					}
					for _, short := range []string{"acme", "cds"} {
						if !w.origin.State().Subscribed(typeURLs[short], "plain") {
							t.Errorf("the origin got other subscriptions:\n%v", w.origin.State())
						}
					}
				})
			})
		})
	}
}

// xdstpClient returns a client that receives the names of resources and ACKs when the test does.
func xdstpClient(w *world, v relaytest.Variant) *worldClient {
	return w.dial(relaytest.ClientOptions{Variant: v, Node: wrapNode()})
}

// wrapNode returns a node of a client that receives the names of resources, in SotW by wrappers.
func wrapNode() *corepb.Node {
	n := relaytest.EnvoyNode("n")
	n.ClientFeatures = []string{"xds.config.resource-in-sotw"}
	return n
}

// Endpoints from a glob are resent after their cluster changed.
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
			w.sleep(settled)
			c.expect()
		})
	})
}
