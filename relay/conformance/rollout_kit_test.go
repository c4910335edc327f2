package conformance_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/xdstender/tender/relay/relaytest"
)

// A rolloutWorld is an world whose relay distributes changes in stages, and keeps snapshots: canary has a change for ten
// minutes, then second for ten more, then everybody.
type rolloutWorld struct {
	*world
	env     []string
	restart func() *running // runs the relay
}

const rolloutStages = "TENDER_ROLLOUT=id=canary* 10m, id=second* 10m"

// rolloutBubble runs f in a world with what an origin has from the start, for both variants.
func rolloutBubble(t *testing.T, f func(w *rolloutWorld, v relaytest.Variant), env ...string) {
	t.Helper()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		env := append(slices.Clone(env), rolloutStages, "TENDER_DELTA_VERSIONS=content", operated, "TENDER_SNAPSHOT_DIR="+filepath.Join(t.TempDir(), "snapshots"))
		worldBubble(t, env, func(w *world) {
			world := &rolloutWorld{w, env, func() *running { return start(w.t, w.origin, env...) }}
			world.change("cds a@1", "cds b@1", "eds a@1", "eds b@1", "lds l@1", "rds routes@1")
			f(world, v)
		})
	})
}

// A rolloutClient is a client that follows clusters, listeners, endpoints and a route.
type rolloutClient struct {
	*relaytest.Client
	w    *rolloutWorld
	node string
}

// client returns a client that accepts all but what reject returns an error for; nil rejects nothing.
func (w *rolloutWorld) client(v relaytest.Variant, node string, reject func(*relaytest.Response) error) *rolloutClient {
	return w.clientAt(w.relay, v, node, reject)
}

// clientAt is client of another relay.
func (w *rolloutWorld) clientAt(r *running, v relaytest.Variant, node string, reject func(*relaytest.Response) error) *rolloutClient {
	c := w.connect(r, v, node, reject)
	c.follow()
	return c
}

// connect returns a client that subscribes to nothing yet.
func (w *rolloutWorld) connect(r *running, v relaytest.Variant, node string, reject func(*relaytest.Response) error) *rolloutClient {
	options := relaytest.ClientOptions{Variant: v, Node: relaytest.EnvoyNode(node), AutoAck: true, Reject: reject}
	return &rolloutClient{w: w, node: node, Client: r.Client(options)}
}

// follow has a client subscribe to what all of them do.
func (c *rolloutClient) follow() {
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.EndpointType, "a", "b")
	c.Subscribe(relaytest.ListenerType)
	c.Subscribe(relaytest.RouteType, "routes")
	synctest.Wait()
}

// clients returns clients of nodes, which accept everything, once they have what the origin had.
func (w *rolloutWorld) clients(v relaytest.Variant, nodes ...string) (all []*rolloutClient) {
	for _, node := range nodes {
		all = append(all, w.client(v, node, nil))
	}
	w.settle()
	w.expectResources("cds a@1 b@1", all...)
	return all
}

// have fails the test unless each client has just these resources of a type: "cds a@1 b@2".
func (w *rolloutWorld) expectResources(want string, all ...*rolloutClient) {
	w.t.Helper()
	short, rest, _ := strings.Cut(want, " ")
	for _, c := range all {
		var got []string
		state := c.State()
		for _, name := range state.Names(typeURLs[short]) {
			got = append(got, name+"@"+w.revs[state.Digest(typeURLs[short], name)])
		}
		if !slices.Equal(got, strings.Fields(rest)) {
			w.t.Fatalf("%s has %s %q, want %q", c.node, short, got, rest)
		}
	}
}

// refuses returns a client's Reject for responses that hold some content: "lds l@2".
func (w *rolloutWorld) rejecting(what string) func(*relaytest.Response) error {
	c := w.parse(what)
	digest := relaytest.DigestOf(w.message(c.short, c.name, c.rev))
	return func(r *relaytest.Response) error {
		for _, res := range r.Resources {
			if r.TypeURL == typeURLs[c.short] && res.Digest == digest {
				return fmt.Errorf("%s is not valid", res.Name)
			}
		}
		return nil
	}
}

// restartRelay ends the relay, begins another one with the same directory, and has clients return to it.
func (w *rolloutWorld) restartRelay(all ...*rolloutClient) {
	w.t.Helper()
	w.relay.Stop()
	w.relay = w.restart()
	synctest.Wait()
	for _, c := range all {
		c.Reconnect(w.relay.Conn())
	}
}
