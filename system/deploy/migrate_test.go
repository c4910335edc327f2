package deploy_test

import (
	"slices"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestB3_MovingToTheRelayAndBack moves a client from its control plane to a relay, and back. In Delta it receives again
// only the endpoints that it subscribes to by name, which Envoys may have dropped. In SotW it receives each type once.
func TestB3_MovingToTheRelayAndBack(t *testing.T) {
	const cds, eds, lds = relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType
	for name, want := range map[string]struct {
		variant     relaytest.Variant
		there, back []string
	}{
		"delta-ads.yaml": {relaytest.Delta, []string{eds}, nil},
		"sotw-ads.yaml":  {relaytest.SotW, []string{cds, eds, lds}, []string{cds, eds, lds}},
	} {
		t.Run(name, func(t *testing.T) {
			b := readBootstrap(t, name)
			b.Node.UserAgentName = "envoy"
			options := relaytest.ClientOptions{Variant: want.variant, Node: b.GetNode(), AutoAck: true}
			s := newEnvoySite(t, b)
			s.origin.Change(func(o *relaytest.Behaviour) { o.SotW = want.variant == relaytest.SotW }) // for client and relay
			relayed, err := grpc.NewClient(s.relay.Addrs()[0].String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = relayed.Close() })
			direct := s.origin.Dial()
			s.has(relaytest.NewClient(t, relayed, options)) // so that the relay caches all resources
			c := relaytest.NewClient(t, direct, options)
			s.has(c)
			c.Reconnect(relayed)
			s.resent(c, want.there)
			c.Reconnect(direct)
			s.resent(c, want.back)
		})
	}
}

// has subscribes a client to all types, and waits until it has received all resources.
func (s *envoySite) has(c *relaytest.Client) {
	s.t.Helper()
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.EndpointType, "web", "api")
	c.Subscribe(relaytest.ListenerType)
	c.WaitState(s.t.Context(), func(st relaytest.State) bool {
		return st.Has(relaytest.ClusterType, "web", "api") && st.Has(relaytest.EndpointType, "web", "api") && st.Has(relaytest.ListenerType, "ingress", "admin")
	})
}

// resent receives one response of each given type. It then changes resources, and checks that the next responses are
// those changes, so that no other response was sent.
func (s *envoySite) resent(c *relaytest.Client, types []string) {
	s.t.Helper()
	var got []string
	for range types {
		got = append(got, c.Recv(s.t.Context()).TypeURL)
	}
	if slices.Sort(got); !slices.Equal(got, types) {
		s.t.Errorf("types sent again: %v, want %v", got, types)
	}
	s.changes++
	port := "127.0.0.1:" + strconv.Itoa(s.changes)
	c.Fence(s.t.Context(), relaytest.ListenerType, "admin", func() { s.content.Put(relaytest.Listener("admin", port)) })
	c.Fence(s.t.Context(), relaytest.EndpointType, "api", func() { s.content.Put(relaytest.Endpoints("api", port)) })
	c.Fence(s.t.Context(), relaytest.ClusterType, "api", func() { s.content.Put(relaytest.StaticCluster("api", port)) })
}
