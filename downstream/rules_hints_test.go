package downstream

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/subscription"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestMain runs each property with 100 random inputs, times -rounds.
func TestMain(m *testing.M) { check.MainOfRapid(m, 100) }

// A recordingClient is an aggregated Delta stream without a transport. It records the resources in responses.
type recordingClient struct {
	grpcCall
	t         *rapid.T
	st        *stream
	received  []string          // since the last flush: type, name and version
	resources map[string]string // version by type and name, or removed
	unacked   map[string]string // nonce by type
}

const removed = "removed"

func (c *recordingClient) Context() context.Context { return context.Background() }

// SendMsg implements call.
func (c *recordingClient) SendMsg(m any) error {
	encoded, err := wire.Codec{}.Marshal(m)
	if err != nil {
		return err
	}
	var r discoverypb.DeltaDiscoveryResponse
	if err := proto.Unmarshal(encoded.Materialize(), &r); err != nil {
		return err
	}
	for _, resource := range r.Resources {
		c.record(r.TypeUrl+" "+resource.Name, resource.Version)
	}
	for _, name := range r.RemovedResources {
		c.record(r.TypeUrl+" "+name, removed)
	}
	c.unacked[r.TypeUrl] = r.Nonce
	return nil
}

// record records a resource and its version, or removed.
func (c *recordingClient) record(resource, version string) {
	c.received = append(c.received, resource+" "+version)
	c.resources[resource] = version
}

// newRecordingClient returns a client of a view. Without hints, the stream reads the logs of the view.
func newRecordingClient(t *rapid.T, s *Server, v *cache.View, hints bool) *recordingClient {
	c := &recordingClient{t: t, resources: map[string]string{}, unacked: map[string]string{}}
	c.st = &stream{
		server: s, cfg: &s.cfg, rpc: c, delta: true, startedAt: time.Now(),
		result: make(chan error, 1), timer: time.NewTimer(time.Hour),
	}
	c.st.turn.Store(turnRunning) // only flush sends, no worker
	if !hints {
		c.st.group, c.st.watch = Group{View: v, Leave: func() {}}, v.Watch()
		c.st.client = &client{cfg: &s.cfg, Client: subscription.Client{
			Settings: &s.cfg.subscriptions, Watch: c.st.watch, Delta: true,
		}}
		c.st.lastNode.seen = true
	}
	return c
}

// request sends a request, with a Node if it is the first.
func (c *recordingClient) request(r wire.Request) {
	r.Delta = true
	if c.st.watch == nil {
		r.Node = []byte{}
	}
	check.OK(c.t, c.st.handleNow(&r, time.Now()))
}

// ack answers the newest response of a type, unless it was answered.
func (c *recordingClient) ack(typeURL string) {
	if nonce := c.unacked[typeURL]; nonce != "" {
		delete(c.unacked, typeURL)
		c.request(wire.Request{TypeURL: typeURL, Nonce: nonce})
	}
}

// flush runs a turn of the stream, and returns the received resources in sorted order.
func (c *recordingClient) flush() []string {
	c.received = nil
	if c.st.flushTurn(true); c.st.ended {
		c.t.Fatal(<-c.st.result)
	}
	slices.Sort(c.received)
	return c.received
}

// A testOrigin applies updates to a view.
type testOrigin struct {
	t       *rapid.T
	w       *cache.Writer
	changes int
}

var hintedTypes = []string{wire.ClusterType, wire.EndpointType, wire.RouteType}

// put changes resources of a type, of the wildcard set or by name.
func (o *testOrigin) put(kind cache.Kind, typeURL string, names ...string) {
	u := wire.Update{TypeURL: typeURL}
	for _, name := range names {
		o.changes++
		version := fmt.Sprint(o.changes)
		value := []byte(version)
		if typeURL == wire.ClusterType {
			eds := &clusterpb.Cluster_Type{Type: clusterpb.Cluster_EDS}
			value = check.Must(proto.Marshal(&clusterpb.Cluster{
				Name: name, AltStatName: version, ClusterDiscoveryType: eds,
			}))
		}
		r, err := wire.NewResource(typeURL, name, version, value)
		check.OK(o.t, err)
		u.Resources = append(u.Resources, r)
	}
	o.w.Apply(kind, u)
}

func (o *testOrigin) remove(kind cache.Kind, typeURL, name string) {
	o.w.Apply(kind, wire.Update{TypeURL: typeURL, Removed: []string{name}})
}

// TestRandomHintedStreamsSendWhatOthersSend checks that a stream with hints sends in each turn what a stream without hints
// sends, for random changes, requests and answers. In the end, each client must have the current resources (B.1, B.11,
// B.12).
func TestRandomHintedStreamsSendWhatOthersSend(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}
	rapid.Check(t, func(t *rapid.T) {
		view, w := cache.New(cache.Config{})
		server := check.Must(New(Config{Views: oneView{view}}))
		o := &testOrigin{t: t, w: w}
		w.SetConnected(true)
		w.SetPhase(wire.ClusterType, cache.Confirmed)
		hinted, plain := newRecordingClient(t, server, view, true), newRecordingClient(t, server, view, false)
		defer hinted.st.close()
		defer plain.st.close()
		both := func(f func(*recordingClient)) {
			f(hinted)
			f(plain)
			w.TakeDemand()
		}
		flush := func() (sent bool) {
			got, want := hinted.flush(), plain.flush()
			if !slices.Equal(got, want) {
				t.Fatalf("got %q, want %q", got, want)
			}
			return len(got) > 0
		}
		if rapid.Bool().Draw(t, "wildcard") {
			both(func(c *recordingClient) { c.request(wire.Request{TypeURL: wire.ClusterType}) })
		}
		both(func(c *recordingClient) { c.request(wire.Request{TypeURL: wire.EndpointType, Subscribe: names}) })
		for _, name := range names { // otherwise routes would wait for endpoints that were requested from the origin
			o.remove(cache.ByName, wire.EndpointType, name)
		}

		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			typeURL, name := rapid.SampledFrom(hintedTypes).Draw(t, "type"), rapid.SampledFrom(names).Draw(t, "name")
			kind := cache.ByName
			if typeURL == wire.ClusterType {
				kind = cache.Kind(rapid.IntRange(0, 1).Draw(t, "kind"))
			}
			switch rapid.IntRange(0, 11).Draw(t, "step") {
			case 0:
				both(func(c *recordingClient) { c.request(wire.Request{TypeURL: typeURL, Subscribe: []string{name}}) })
			case 1:
				both(func(c *recordingClient) { c.request(wire.Request{TypeURL: typeURL, Unsubscribe: []string{name}}) })
			case 2:
				o.remove(kind, typeURL, name)
			case 3:
				o.put(kind, typeURL, names...)
			case 4, 5:
				both(func(c *recordingClient) { c.ack(typeURL) })
			case 6, 7:
				flush()
			default:
				o.put(kind, typeURL, name)
			}
		}
		for more := true; more; {
			for _, typeURL := range hintedTypes {
				both(func(c *recordingClient) { c.ack(typeURL) })
			}
			more = flush()
		}
		for _, c := range []*recordingClient{hinted, plain} {
			c.checkCurrent(view.Generation())
		}
	})
}

// checkCurrent checks that the client has the current versions of the resources that it subscribed to by name.
func (c *recordingClient) checkCurrent(g *cache.Generation) {
	for _, typeURL := range hintedTypes {
		sub := c.st.subscription(typeURL)
		if sub == nil {
			continue
		}
		for _, n := range sub.Names() {
			e, _ := g.Type(typeURL).Lookup(n)
			switch got := c.resources[typeURL+" "+n.String()]; {
			case e.Present() && got != e.Resource.Version, e != nil && !e.Present() && got != removed:
				c.t.Fatalf("%s %v: got %q at the end, want %v", typeURL, n, got, e)
			}
		}
	}
}
