package upstream_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream"
)

const scopes = "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration"

// sotwOnly is an origin that implements only SotW, with wrapped resources, so that the view shows versions.
var sotwOnly = relaytest.Behaviour{SotW: true, Wrap: true}

// forced skips the detection of the variant.
var forced = upstream.Config{Protocol: upstream.ProtocolSotW}

// sotwResponse returns a response with resources written name@version. The version is part of the content only.
func sotwResponse(typeURL string, resources ...string) *discoverypb.DiscoveryResponse {
	resp := &discoverypb.DiscoveryResponse{TypeUrl: typeURL}
	for _, r := range response(typeURL, resources...).GetResources() {
		resp.Resources = append(resp.Resources, r.GetResource())
	}
	return resp
}

// names returns the present names without versions, which unwrapped resources lack.
func names(shown string) string { return strings.ReplaceAll(present(shown), "@", "") }

// requestedNames returns the number of requests of a type that the origin received, and the total number of names in
// them.
func (r *rig) requestedNames(typeURL string) (requests, names int) {
	for _, req := range r.State().Requests(typeURL) {
		requests++
		names += len(req.SotW.GetResourceNames())
	}
	return requests, names
}

// TestB5_SotWBatchesManyNames: when many clients connect, the relay does not send all names once per client. It sends
// them at most six times, plus 80,000 names per second while clients connect. Each client receives its resources.
func TestB5_SotWBatchesManyNames(t *testing.T) {
	const clients, each = 100, 40
	for _, every := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond} {
		inBubble(t, relaytest.Behaviour{SotW: true}, forced, func(t *testing.T, r *rig) {
			resources := numbered(clients * each)
			r.put(endpoints, resources...)
			for names := range slices.Chunk(nameOnly(resources), each) {
				r.watch.Subscribe(endpoints, names)
				r.pass(every)
			}
			r.pass(10 * time.Second)
			most := 6*len(resources) + int(80_000*(clients*every).Seconds())
			if requests, names := r.requestedNames(endpoints); names > most {
				t.Errorf("interval %v: %d requests with %d names in total, want at most %d", every, requests, names, most)
			}
			if got := len(strings.Fields(present(r.named(endpoints)))); got != len(resources) {
				t.Errorf("interval %v: clients receive %d resources, want %d", every, got, len(resources))
			}
		})
	}
}

// TestR106_SotWHeartbeatRemovesNothing: a heartbeat does not remove the resources that it omits (R106).
func TestR106_SotWHeartbeatRemovesNothing(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, forced, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		s := r.Accept(t.Context())
		s.SendSotW(sotwResponse(clusters, "a@1", "b@1"))
		r.pass(soon)
		beat := sotwResponse(clusters)
		beat.Resources = append(beat.Resources, relaytest.Pack(&discoverypb.Resource{Name: "a", Ttl: durationpb.New(time.Minute)}))
		s.SendSotW(beat)
		r.pass(30 * time.Second)
		r.expect("members", names(r.members(clusters)), "a b")
		s.SendSotW(sotwResponse(clusters, "b@1"))
		r.pass(soon)
		r.expect("members after the next list", names(r.members(clusters)), "b")
	})
}

// TestB9_SotWNacks: for a response with an unidentifiable resource, the relay sends a NACK with a reason and changes
// nothing.
func TestB9_SotWNacks(t *testing.T) {
	const acme = "type.googleapis.com/acme.Foo"
	tests := []struct {
		name string
		resp *discoverypb.DiscoveryResponse
		want string
	}{
		{"unknown type without a wrapper", sotwResponse(acme, "a@2"), `the origin must wrap them in "type.googleapis.com/envoy.service.discovery.v3.Resource"`},
		{"a name twice", sotwResponse(clusters, "a@2", "a@3"), `duplicate resource name "a"`},
		{"another type", &discoverypb.DiscoveryResponse{TypeUrl: clusters, Resources: sotwResponse(listeners, "a@2").GetResources()}, "resource of another type"},
		{"no name", sotwResponse(clusters, "@2"), "resource without a name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, forced, func(t *testing.T, r *rig) {
				r.watch.SubscribeAll(tt.resp.GetTypeUrl())
				s := r.Accept(t.Context())
				good := &discoverypb.DiscoveryResponse{TypeUrl: tt.resp.GetTypeUrl()}
				for _, res := range response(tt.resp.GetTypeUrl(), "a@1").GetResources() {
					good.Resources = append(good.Resources, relaytest.Pack(res))
				}
				s.SendSotW(good)
				r.pass(soon)
				s.SendSotW(tt.resp)
				r.pass(soon)
				reqs := s.State().Requests
				last := reqs[len(reqs)-1].SotW
				if got := last.GetErrorDetail().GetMessage(); !strings.Contains(got, tt.want) || last.GetVersionInfo() != "v1" || last.GetResponseNonce() != "2" {
					t.Errorf("last request %v, want a NACK of nonce 2 with version v1 and the message %q", last, tt.want)
				}
				r.expect("members", r.members(tt.resp.GetTypeUrl()), "a@1")
			})
		})
	}
}
