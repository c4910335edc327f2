package conformance_test

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest"
)

// Envoys that want all and gRPC clients that name what they want are served at
// once, in groups of their own and in one; there names go by the auxiliary
// stream, whichever came first. What only gRPC named is no
// member, and a name comes back as it was asked for.
func TestR055_MixedFleet(t *testing.T) {
	t.Parallel()
	for _, groupBy := range []string{"user_agent_name", "none"} {
		for _, envoyFirst := range []bool{true, false} {
			t.Run(groupBy, func(t *testing.T) {
				t.Parallel()
				mixedFleet(t, groupBy, envoyFirst)
			})
		}
	}
}

func mixedFleet(t *testing.T, groupBy string, envoyFirst bool) {
	const host = "shop.example:443"
	types := []string{relaytest.ListenerType, relaytest.ClusterType}
	o := sendOrigin(t, relaytest.OriginOptions{Behaviour: relaytest.Behaviour{
		NamedOnly: func(_, name string) bool { return name == host || name == "spare" },
	}}, types, "a", "b", host, "spare")
	r := start(t, o, "TENDER_NODE_GROUP_BY="+groupBy)
	var envoys, grpcs []*relaytest.Client
	for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
		envoys = append(envoys, r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true}))
		node := relaytest.GRPCNode("g")
		node.ClientFeatures = nil // which would make a group of its own (R143)
		grpcs = append(grpcs, r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: node}))
	}
	have := func(clients []*relaytest.Client, names ...string) {
		t.Helper()
		for _, c := range clients {
			c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(types[0], names...) && s.Has(types[1], names...) })
		}
	}
	all := func() {
		for _, c := range envoys {
			for _, typeURL := range types {
				c.Subscribe(typeURL)
			}
		}
		have(envoys, "a", "b")
	}
	if envoyFirst {
		all()
	}
	for _, c := range grpcs {
		for _, typeURL := range types {
			c.Subscribe(typeURL, host, "a")
		}
	}
	have(grpcs, host, "a")
	if !envoyFirst {
		all()
	}
	s := o.State()
	if s.Connections != 1 || len(s.Open()) != 2 {
		t.Errorf("the relay opened %d connections and %d streams, want 1 and 2: %v", s.Connections, len(s.Open()), s)
	}
	for _, stream := range s.Open() {
		if typ := stream.Type(types[0]); typ.Wildcard == (len(typ.Names) > 0) {
			t.Errorf("a stream has both kinds of demand, or none: %v", stream)
		}
	}

	sentinels := func(what string) {
		t.Helper()
		o.Put(sendThing(sendSentinel, "sentinel", what))
		want := relaytest.DigestOf(sendThing(sendSentinel, "sentinel", what))
		for _, c := range append(envoys, grpcs...) {
			c.Subscribe(sendSentinel, "sentinel")
			c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(sendSentinel, "sentinel") == want })
		}
	}
	// Only those who named it see it change and go.
	sentinels("begin")
	for _, typeURL := range types {
		o.Put(sendThing(typeURL, host, "second"))
		want := relaytest.DigestOf(sendThing(typeURL, host, "second"))
		for _, c := range grpcs {
			c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(typeURL, host) == want })
		}
		o.Put(sendThing(typeURL, "a", "second"))
		want = relaytest.DigestOf(sendThing(typeURL, "a", "second"))
		for _, c := range append(envoys, grpcs...) {
			c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(typeURL, "a") == want })
		}
		o.Remove(typeURL, host)
	}
	have(grpcs, "a")
	sentinels("end")
	have(envoys, "a", "b")
	for _, c := range append(envoys, grpcs...) {
		for _, resp := range c.Responses() {
			for _, name := range append(resp.Names(), resp.Removed...) {
				named := name == host
				if isEnvoy := c == envoys[0] || c == envoys[1]; name == "spare" || named == isEnvoy && (named || name == "b") {
					t.Errorf("%v was sent %q: %v", c, name, resp)
				}
			}
		}
	}
}
