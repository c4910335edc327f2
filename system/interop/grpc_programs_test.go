package interop_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// TestInterop_GRPCPrograms: gRPC clients in other languages find their backends through one relay, and through a
// chain of two (B.41), with go-control-plane as the origin. They follow changes across restarts of the origin and of
// the relay, and no call fails.
func TestInterop_GRPCPrograms(t *testing.T) {
	noLeaks(t)
	for _, tt := range []struct {
		name   string
		lang   language
		origin string
		relays int
	}{
		{"node.js", nodeJS, controlplane.Linear, 1},
		{"node.js, chain", nodeJS, controlplane.ADSSnapshots, 2},
		{"python", python, controlplane.ADSSnapshots, 1},
		{"python, chain", python, controlplane.Linear, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // the programs mostly wait
			programScenario(t, tt.lang, tt.origin, tt.relays)
		})
	}
}

// programScenario runs the steps of TestInterop_GRPCPrograms with one program. kind is the kind of the control plane.
func programScenario(t *testing.T, lang language, kind string, relays int) {
	one, two := newNamedBackend(t, "one"), newNamedBackend(t, "two")
	o := controlplane.New(t, kind, nil, grpcWorld(one.addr)...)
	address := proxy.FreeAddress(t)
	r, above := chain(t, o, relays, address)
	p := newGRPCProgram(t, lang, address, "program")
	p.moves(one)

	o.Put(relaytest.Endpoints("service-endpoints", two.addr))
	p.moves(two)
	o.Put(relaytest.Cluster("other"), relaytest.Endpoints("other", one.addr), relaytest.Route("service-route", []string{"*"}, "other"))
	p.moves(one)

	mark := above.Log.Len()
	o.Stop()
	above.Log.Await(t, mark, "upstream stream closed")
	one.isCalled(t, 20)
	o.Edit([]proto.Message{relaytest.Endpoints("other", two.addr)}, nil)
	o.Restart()
	p.moves(two)

	r.Stop()
	two.isCalled(t, 20)
	o.Put(relaytest.Endpoints("other", one.addr))
	r, _ = chain(t, o, relays, address)
	p.moves(one)

	// Another client receives changes after the program has disconnected. Some programs send an empty subscription
	// first, which must not affect other clients.
	other := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true, Node: relaytest.GRPCNode("other")})
	other.Subscribe(relaytest.EndpointType, "other")
	o.Follow(other, relaytest.EndpointType, "other")
	p.ends()
	o.Put(relaytest.Endpoints("other", two.addr))
	o.Follow(other, relaytest.EndpointType, "other")
}
