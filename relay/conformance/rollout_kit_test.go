package conformance_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/xdstender/tender/relay/relaytest"
)

// A rolloutWorld is a world whose relay uses staged rollouts and snapshots. Nodes canary* get a change first,
// second* ten minutes later, and all others after ten more.
type rolloutWorld struct {
	*world
	env     []string
	restart func() *running // starts the relay again
}

const rolloutStages = "TENDER_ROLLOUT=id=canary* 10m, id=second* 10m"

// rolloutBubble runs f in a rolloutWorld with initial resources, for both variants.
func rolloutBubble(t *testing.T, f func(w *rolloutWorld, v relaytest.Variant), env ...string) {
	t.Helper()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		env := append(slices.Clone(env), rolloutStages, "TENDER_DELTA_VERSIONS=content", operated,
			"TENDER_SNAPSHOT_DIR="+filepath.Join(t.TempDir(), "snapshots"))
		worldBubble(t, env, func(w *world) {
			world := &rolloutWorld{w, env, func() *running { return start(w.t, w.origin, env...) }}
			world.change("cds a@1", "cds b@1", "eds a@1", "eds b@1", "lds l@1", "rds routes@1")
			f(world, v)
		})
	})
}

// A rolloutClient is a client that subscribes to clusters, listeners, endpoints and a route.
type rolloutClient struct {
	*relaytest.Client
	w    *rolloutWorld
	node string
}

// client returns a subscribed client. It NACKs a response if reject returns an error; a nil reject ACKs all.
func (w *rolloutWorld) client(v relaytest.Variant, node string, reject func(*relaytest.Response) error) *rolloutClient {
	return w.clientAt(w.relay, v, node, reject)
}

// clientAt is client for another relay.
func (w *rolloutWorld) clientAt(r *running, v relaytest.Variant, node string,
	reject func(*relaytest.Response) error) *rolloutClient {
	c := w.connect(r, v, node, reject)
	c.follow()
	return c
}

// connect returns a client without subscriptions.
func (w *rolloutWorld) connect(r *running, v relaytest.Variant, node string,
	reject func(*relaytest.Response) error) *rolloutClient {
	options := relaytest.ClientOptions{Variant: v, Node: relaytest.EnvoyNode(node), AutoAck: true, Reject: reject}
	return &rolloutClient{w: w, node: node, Client: r.Client(options)}
}

// follow subscribes to the resources of a rolloutClient.
func (c *rolloutClient) follow() {
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.EndpointType, "a", "b")
	c.Subscribe(relaytest.ListenerType)
	c.Subscribe(relaytest.RouteType, "routes")
	synctest.Wait()
}

// clients returns clients of the nodes, which ACK everything and have the initial resources.
func (w *rolloutWorld) clients(v relaytest.Variant, nodes ...string) (all []*rolloutClient) {
	all = w.clientsOf(v, nodes...)
	w.expectResources("cds a@1 b@1", all...)
	return all
}

// clientsOf returns clients of the nodes, which ACK everything, once the sets are confirmed.
func (w *rolloutWorld) clientsOf(v relaytest.Variant, nodes ...string) (all []*rolloutClient) {
	for _, node := range nodes {
		all = append(all, w.client(v, node, nil))
	}
	w.settle()
	return all
}

// expectResources fails the test unless each client has exactly these resources of a type, such as "cds a@1 b@2".
func (w *rolloutWorld) expectResources(want string, all ...*rolloutClient) {
	w.t.Helper()
	short, rest, _ := strings.Cut(want, " ")
	for _, c := range all {
		var got []string
		state := c.State()
		for _, name := range state.Names(typeURLs[short]) {
			got = append(got, name+"@"+w.n.Revision(state.Digest(typeURLs[short], name)))
		}
		if !slices.Equal(got, strings.Fields(rest)) {
			w.t.Fatalf("%s has %s %q, want %q", c.node, short, got, rest)
		}
	}
}

// rejecting returns a reject function for responses that contain a resource, such as "lds l@2".
func (w *rolloutWorld) rejecting(what string) func(*relaytest.Response) error {
	c := w.n.Parse(what)
	digest := relaytest.DigestOf(w.n.Message(c.Short, c.Name, c.Rev))
	return func(r *relaytest.Response) error {
		for _, res := range r.Resources {
			if r.TypeURL == typeURLs[c.Short] && res.Digest == digest {
				return fmt.Errorf("%s is not valid", res.Name)
			}
		}
		return nil
	}
}

// withoutNames returns a function that rejects the same responses without naming a resource: that counts for all.
func withoutNames(rejects func(*relaytest.Response) error) func(*relaytest.Response) error {
	return func(r *relaytest.Response) error {
		if rejects(r) != nil {
			return errors.New("the update is not valid")
		}
		return nil
	}
}

// restartRelay replaces the relay by one with the same snapshot directory, and reconnects clients to it.
func (w *rolloutWorld) restartRelay(all ...*rolloutClient) {
	w.t.Helper()
	w.relay.Stop()
	w.relay = w.restart()
	synctest.Wait()
	for _, c := range all {
		c.Reconnect(w.relay.Conn())
	}
}
