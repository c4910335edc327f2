package envoy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// A kind is a node group with one Envoy. The control plane has a World for its Node.cluster. Some of its resources
// have the same names as those of other kinds.
type kind struct {
	name     string
	backends [2]*envoytest.Backend
	envoy    *envoytest.Envoy
	load     *envoytest.Load
}

// change puts the next state of the kind's World into a control plane. It changes the endpoints of a shared cluster,
// and adds or removes a listener and a cluster.
func (k *kind) change(origin *envoytest.ControlPlane, round int) {
	own := k.name + "-only"
	origin.Apply(k.name, func(w *envoytest.World) {
		w.Put(web("shared", k.backends[round%2])...)
		if round%2 == 0 {
			w.Put(relaytest.Listener(own, own), relaytest.Route(own, []string{"*"}, own), relaytest.StaticCluster(own, k.backends[0].Addr))
			return
		}
		w.Remove(relaytest.ListenerType, own)
		w.Remove(relaytest.RouteType, own)
		w.Remove(relaytest.ClusterType, own)
	})
}

// TestEnvoy_TwoKinds: one relay serves Envoys of two node groups whose resources have the same names. No Envoy
// receives a resource of the other group, also while both groups change. (B.4)
func TestEnvoy_TwoKinds(t *testing.T) {
	const rounds = 11 // odd, so that the resources of only one kind exist after the last round
	scenario(t, ads, func(t *testing.T, s *setup) {
		var kinds []*kind
		for _, name := range []string{"edge", "inner"} {
			k := &kind{name: name}
			for i := range k.backends {
				k.backends[i] = envoytest.NewBackend(t, fmt.Sprintf("%s-%d", name, i))
			}
			k.change(s.origin, 0)
			kinds = append(kinds, k)
		}
		start := func(k *kind, server, id string) *envoytest.Envoy {
			o := s.options(server, id)
			o.Node.Cluster = k.name
			return envoytest.Start(t, o)
		}
		for _, k := range kinds {
			k.envoy = start(k, s.server, k.name)
			k.load = envoytest.StartLoad(t, k.envoy.Listener("web"), interval)
		}
		for round := range rounds {
			for _, k := range kinds {
				k.change(s.origin, round)
			}
			s.settle(t)
			for _, k := range kinds {
				k.load.Continue(2)
			}
		}
		for _, k := range kinds {
			direct := start(k, s.origin.Addr, "direct")
			direct.Listener(k.name + "-only")
			s.await(k.envoy, "configuration of an Envoy that starts now", func() error { return k.envoy.DiffersFrom(direct) })
			want, got := []string{k.name + "-only", "web"}, k.envoy.Config().Names("dynamic_listeners")
			if !s.direct && !slices.Equal(want, got) {
				t.Errorf("Envoy %s has listeners %v, want %v", k.name, got, want)
			}
			r := k.load.Stop()
			s.judge(k.envoy, r)
			for answer := range r.Answers {
				if !strings.HasPrefix(answer, k.name) {
					t.Errorf("Envoy %s routes requests to %s of the other group", k.name, answer)
				}
			}
		}
	}, "TENDER_NODE_GROUP_BY=cluster")
}

// unifiedMux returns a runtime layer that enables Envoy's unified mux, which handles SotW and Delta by the same code.
func unifiedMux() *bootstrappb.RuntimeLayer {
	return &bootstrappb.RuntimeLayer{Name: "unified mux", LayerSpecifier: &bootstrappb.RuntimeLayer_StaticLayer{
		StaticLayer: &structpb.Struct{Fields: map[string]*structpb.Value{
			"envoy.reloadable_features.unified_mux": structpb.NewBoolValue(true),
		}},
	}}
}

// TestEnvoy_GroupedSets: an Envoy with SotW and the unified mux has two Secrets, two filters and two runtime layers.
// It applies a change of one of each. It would reject a response that contains only the changed resource. (B.17)
func TestEnvoy_GroupedSets(t *testing.T) {
	scenario(t, []variant{sotw}, groupedSets, "TENDER_SECRETS=loopback")
}

// groupedSets is the scenario of TestEnvoy_GroupedSets.
func groupedSets(t *testing.T, s *setup) {
	ca, backend := certs.NewCA(t), envoytest.NewBackend(t, "one")
	s.origin.Put(web("one", backend)...)
	put := func(name string, generation int) {
		s.origin.Put(certificate(name, ca.Sign(certs.Leaf{Names: []string{"web.example"}})), buffer(name, generation),
			layer(name, fmt.Sprint("generation-", generation)))
	}
	for _, name := range []string{"first", "second"} {
		m := &hcmpb.HttpConnectionManager{StatPrefix: name, RouteSpecifier: &hcmpb.HttpConnectionManager_Rds{
			Rds: &hcmpb.Rds{ConfigSource: byADS(), RouteConfigName: "web"},
		}}
		l := filtered(name, m, name, byADS())
		l.FilterChains[0].TransportSocket = withSecrets(byADS(), name)
		s.origin.Put(l)
		put(name, 1)
	}
	o := s.options(s.server, "edge-1")
	o.Edit = func(b *bootstrappb.Bootstrap) {
		b.LayeredRuntime = layers(byADS(), "first", "second")
		b.LayeredRuntime.Layers = append(b.LayeredRuntime.Layers, unifiedMux())
	}
	e := envoytest.Start(t, o)
	e.Listener("second")
	before := e.Config()
	put("first", 2)
	s.await(e, "change", func() error {
		c := e.Config()
		for section, text := range map[string]string{"ecds_filters/first": "1002", "runtime": "generation-2"} {
			if !strings.Contains(c[section], text) {
				return fmt.Errorf("%s: no %s in %s", section, text, c[section])
			}
		}
		if secret := "dynamic_active_secrets/first"; c[secret] == before[secret] {
			return fmt.Errorf("%s has not changed", secret)
		}
		return nil
	})
	after := e.Config()
	for _, other := range []string{"ecds_filters/second", "dynamic_active_secrets/second"} {
		if after[other] == "" || after[other] != before[other] {
			t.Errorf("%s: got %q, want %q", other, after[other], before[other])
		}
	}
	s.judge(e, envoytest.Report{})
}
