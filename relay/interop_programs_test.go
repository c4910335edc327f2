package relay_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestInterop_GRPCPrograms has gRPC clients of other languages find their backends
// through the relay, and through two in a row (B.41), with go-control-plane as the
// origin; and follow changes through the deaths of the origin and of the relay, with
// no call that fails.
func TestInterop_GRPCPrograms(t *testing.T) {
	interopLeaks(t)
	for _, tt := range []struct {
		name   string
		lang   language
		origin string
		relays int
	}{
		{"node.js", nodeJS, linearCaches, 1},
		{"node.js, chain", nodeJS, adsSnapshots, 2},
		{"python", python, adsSnapshots, 1},
		{"python, chain", python, linearCaches, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			programScenario(t, tt.lang, tt.origin, tt.relays)
		})
	}
}

func programScenario(t *testing.T, lang language, kind string, relays int) {
	one, two := newNamedBackend(t, "one"), newNamedBackend(t, "two")
	o := newControlPlane(t, kind, nil, grpcWorld(one.addr)...)
	address := relaytest.FreeAddress(t)
	r, log := interopChain(t, o.Target(), address, relays)
	p := newProgram(t, lang, address, "program")
	p.moves(one)

	o.Put(relaytest.Endpoints("service-endpoints", two.addr))
	p.moves(two)
	o.Put(relaytest.Cluster("other"), relaytest.Endpoints("other", one.addr), relaytest.Route("service-route", []string{"*"}, "other"))
	p.moves(one)

	mark := log.mark()
	o.Stop()
	log.await(t, mark, "upstream stream closed")
	one.isCalled(t, 20)
	o.edit([]proto.Message{relaytest.Endpoints("other", two.addr)}, nil)
	o.Restart()
	p.moves(two)

	r.stop()
	two.isCalled(t, 20)
	o.Put(relaytest.Endpoints("other", one.addr))
	r, _ = interopChain(t, o.Target(), address, relays)
	p.moves(one)

	// Another client is told what changes after the program has left, which some
	// do with a request for nothing.
	other := r.client(relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true, Node: relaytest.GRPCNode("other")})
	other.Subscribe(relaytest.EndpointType, "other")
	follow(other, o, relaytest.EndpointType, "other")
	p.ends()
	o.Put(relaytest.Endpoints("other", two.addr))
	follow(other, o, relaytest.EndpointType, "other")
}
