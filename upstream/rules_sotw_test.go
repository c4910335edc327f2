package upstream_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
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

// TestB5_SotWChangeIsOneRequest: a change is one request with any number of names.
func TestB5_SotWChangeIsOneRequest(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SotW: true}, forced, func(t *testing.T, r *rig) {
		r.put(endpoints, "first@1")
		r.watch.Subscribe(endpoints, []string{"first"})
		r.pass(soon)
		many := make([]string, 1201)
		for i := range many {
			many[i] = fmt.Sprint("many", i)
		}
		r.watch.Subscribe(endpoints, many)
		r.pass(soon)
		reqs := r.State().Requests(endpoints)
		if len(reqs) != 3 || len(reqs[2].SotW.GetResourceNames()) != 1202 {
			t.Errorf("%d requests, the last with %d names, want 3 including an ACK, and 1202", len(reqs), len(reqs[2].SotW.GetResourceNames()))
		}
	})
}

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

// TestB5_SotWWaitsForAResponse: no request for names is sent while a response is outstanding, for at most 1s: an origin
// need not respond to unknown names.
func TestB5_SotWWaitsForAResponse(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, forced, func(t *testing.T, r *rig) {
		stated := func(when string, want ...int) {
			t.Helper()
			var got []int
			for _, req := range r.State().Requests(endpoints) {
				got = append(got, len(req.SotW.GetResourceNames()))
			}
			check.Equal(t, when, fmt.Sprint(got), fmt.Sprint(want))
		}
		r.watch.Subscribe(endpoints, []string{"a"})
		s := r.Accept(t.Context())
		r.pass(soon)
		r.watch.Subscribe(endpoints, []string{"b", "c", "d"})
		r.pass(800 * time.Millisecond)
		stated("names per request while a response is outstanding", 1)
		r.watch.Subscribe(clusters, []string{"of another type"})
		r.pass(soon)
		check.Equal(t, "requests of another type", len(r.State().Requests(clusters)), 1)
		s.SendSotW(sotwResponse(endpoints, "a@1"))
		r.pass(soon)
		stated("names per request after the response", 1, 4)
		r.watch.Subscribe(endpoints, []string{"e", "f", "g", "h"})
		r.pass(800 * time.Millisecond)
		stated("names per request while another response is outstanding", 1, 4)
		r.pass(250 * time.Millisecond)
		stated("names per request after 1s without a response", 1, 4, 8)
		r.watch.Unsubscribe(endpoints, r.view.Find(endpoints, []string{"a"}))
		r.pass(longAfter)
		stated("names per request after the linger time", 1, 4, 8, 7)
	})
}

// TestR019_R021_SotWNewStreamHasNoNonce: a new stream starts without nonce and version, so that the origin responds in
// any case (R021). Unchanged resources cause no change.
func TestR019_R021_SotWNewStreamHasNoNonce(t *testing.T) {
	for _, b := range []relaytest.Behaviour{sotwOnly, {SotW: true}, {SotW: true, SystemVersion: "always"}} {
		inBubble(t, b, upstream.Config{}, func(t *testing.T, r *rig) {
			r.put(clusters, numbered(20)...)
			r.put(endpoints, "a@1")
			r.watch.SubscribeAll(clusters)
			r.watch.Subscribe(endpoints, []string{"a"})
			r.pass(confirmed)
			seq := r.view.Generation().Seq
			for range 3 {
				r.Restart()
				r.pass(longAfter)
			}
			check.Equal(t, "position", r.view.Generation().Seq, seq)
			first := r.State().Last().Requests[0].SotW
			if first.GetVersionInfo()+first.GetResponseNonce() != "" || first.GetNode() == nil {
				t.Errorf("first request of a stream: %v, want a node and neither version nor nonce", first)
			}
		})
	}
}

// TestB7_SotWListIsComplete: a response of a full-state type makes the set complete at once. For another type, or if it
// is empty, the set settles as in Delta.
func TestB7_SotWListIsComplete(t *testing.T) {
	tests := []struct {
		typeURL   string
		resources []string
		at        time.Duration // time until the set is confirmed
	}{
		{clusters, []string{"a@1"}, 0},
		{listeners, []string{"a@1"}, 0},
		{scopes, []string{"a@1"}, 0},
		{clusters, nil, 10 * time.Second},
		{endpoints, []string{"a@1"}, 10 * time.Second},
	}
	for _, tt := range tests {
		inBubble(t, sotwOnly, forced, func(t *testing.T, r *rig) {
			r.put(tt.typeURL, tt.resources...)
			r.watch.SubscribeAll(tt.typeURL)
			r.pass(tt.at / 2)
			if p := r.view.Generation().Type(tt.typeURL).Phase; p == cache.Confirmed && tt.at > 0 {
				t.Errorf("%s %v: confirmed after %v, want only after %v", tt.typeURL, tt.resources, tt.at/2, tt.at)
			}
			r.pass(tt.at/2 + soon)
			if p := r.view.Generation().Type(tt.typeURL).Phase; p != cache.Confirmed {
				t.Errorf("%s %v: phase %v after %v, want confirmed", tt.typeURL, tt.resources, p, tt.at)
			}
		})
	}
}

// TestR065_R067_SotWAbsence: a resource that the origin listed on a stream and then omits is removed at once, in any
// number. For partial types, absence has no meaning.
func TestR065_R067_SotWAbsence(t *testing.T) {
	tests := []struct {
		typeURL string
		want    string
	}{
		{clusters, "n099@1"},
		{listeners, "n099@1"},
		{scopes, "n099@1"},
		{endpoints, joined(numbered(100))},
	}
	for _, tt := range tests {
		inBubble(t, sotwOnly, forced, func(t *testing.T, r *rig) {
			r.put(tt.typeURL, numbered(100)...)
			r.watch.SubscribeAll(tt.typeURL)
			r.pass(confirmed)
			r.Apply(removing(tt.typeURL, nameOnly(numbered(99))...))
			r.pass(longAfter)
			r.expect(tt.typeURL, present(r.members(tt.typeURL)), tt.want)
		})
	}
}

// TestR132_SotWGlobIsNotMissing: a response to a glob lists its members and never the glob itself, so the glob does not
// count as missing.
func TestR132_SotWGlobIsNotMissing(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, forced, func(t *testing.T, r *rig) {
		const dir = "xdstp://authority/envoy.config.listener.v3.Listener/dir/"
		r.watch.Subscribe(listeners, []string{dir + "*", dir + "none"})
		s := r.Accept(t.Context())
		r.pass(soon)
		s.SendSotW(sotwResponse(listeners, dir+"a@1"))
		r.namedAfter(soon, "named", listeners, "!"+dir+"none")
	})
}

// TestR071_SotWResponseBeforeRequest: a response before the first request of its type has no meaning for absent
// resources.
func TestR071_SotWResponseBeforeRequest(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, forced, func(t *testing.T, r *rig) {
		r.watch.Subscribe(endpoints, []string{"e"})
		s := r.Accept(t.Context())
		r.pass(soon)
		r.watch.Subscribe(listeners, []string{"a", "b"})
		r.pass(time.Millisecond) // the relay sends names after 5ms
		s.SendSotW(sotwResponse(listeners, "a@1"))
		r.namedAfter(soon, "named", listeners, "a@")
		r.expect("stream", r.conversation(0), "[ClusterLoadAssignment node e] [Listener a b]")
	})
}

// TestB15_SotWOtherInstance: when another instance of a SotW origin responds, the relay need not compare content, since
// it reported no versions.
func TestB15_SotWOtherInstance(t *testing.T) {
	inBubble(t, sotwOnly, forced, func(t *testing.T, r *rig) {
		r.SetControlPlane("one")
		r.follow(clusters, "a@1")
		r.SetControlPlane("two")
		r.Restart()
		r.pass(longAfter)
		check.Equal(t, "streams", r.streams(), 2)
	})
}

// TestR071_SotWNameBeforeFirstResponse: even the first response may have been in flight when the relay requested a
// name, so that the omission of the name has no meaning.
func TestR071_SotWNameBeforeFirstResponse(t *testing.T) {
	cfg := upstream.Config{Protocol: upstream.ProtocolSotW, Linger: time.Minute}
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, cfg, func(t *testing.T, r *rig) {
		again := r.watch.Subscribe(listeners, []string{"again", "a", "none"})[:1] // one call, so that the first request has all
		s := r.Accept(t.Context())
		r.pass(soon)
		r.watch.Unsubscribe(listeners, again)
		r.pass(2 * time.Minute)
		r.watch.Subscribe(listeners, []string{"again", "later"})
		r.pass(soon)
		s.SendSotW(sotwResponse(listeners, "a@1"))
		r.namedAfter(soon, "after the first list", listeners, "!none a@")
		r.expect("stream", r.conversation(0), "[Listener node a again none] [Listener a none] [Listener a again later none]"+
			" [Listener a again later none version=v1 ack 1]")
	})
}

// TestR071_SotWNameResubscribed: a name that is unsubscribed and subscribed again is like a new one.
func TestR071_SotWNameResubscribed(t *testing.T) {
	cfg := upstream.Config{Protocol: upstream.ProtocolSotW, Linger: time.Minute}
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, cfg, func(t *testing.T, r *rig) {
		b := r.watch.Subscribe(listeners, []string{"a", "b"})[1:]
		s := r.Accept(t.Context())
		s.SendSotW(sotwResponse(listeners, "a@1", "b@1"))
		r.pass(soon)
		r.watch.Unsubscribe(listeners, b)
		r.pass(2 * time.Minute)
		n := r.watch.Subscribe(listeners, []string{"b"})[0]
		r.pass(soon)
		s.SendSotW(sotwResponse(listeners, "a@2"))
		r.pass(soon)
		if set := r.view.Generation().Type(listeners).ByName; set.Get(n) != nil {
			t.Errorf("entry of %v: %v, want none", n, set.Get(n))
		}
		r.expect("stream", r.conversation(0), "[Listener node a b] [Listener a b version=v1 ack 1] [Listener a version=v1 ack 1]"+
			" [Listener a b version=v1 ack 1] [Listener a b version=v2 ack 2]")
	})
}

// TestR092_SotWAliases: a resource may arrive under another name than the subscribed one.
func TestR092_SotWAliases(t *testing.T) {
	inBubble(t, sotwOnly, forced, func(t *testing.T, r *rig) {
		r.SetRaw(listeners, &discoverypb.Resource{
			Name: "own", Version: "1", Aliases: []string{"alias"}, Resource: relaytest.Opaque(listeners, "own", nil),
		})
		r.watch.Subscribe(listeners, []string{"alias", "own"})
		r.namedAfter(time.Second, "alias and name", listeners, "alias@1 own@1")
		r.put(listeners, "other@1")
		r.namedAfter(time.Second, "after another list", listeners, "alias@1 own@1")
		r.Remove(listeners, "own")
		r.pass(time.Second)
		r.expect("after the removal", present(r.named(listeners)), "")
	})
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

// TestR045_SotWTypeNotRequested: a response of a type without a subscription is not acknowledged: a request without
// names would subscribe to all resources.
func TestR045_SotWTypeNotRequested(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, forced, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		s := r.Accept(t.Context())
		s.SendSotW(sotwResponse(listeners, "x@1"))
		s.SendSotW(sotwResponse(clusters, "a@1"))
		r.pass(soon)
		r.expect("stream", r.conversation(0), "[Cluster node] [Cluster version=v2 ack 2]")
		r.expect("listeners", r.members(listeners), "")
	})
}

// TestR051_SotWWildcardResubscribed: the relay unsubscribes from a wildcard, and uses a new stream to subscribe again,
// since all servers support only the form of the first request. Late responses on the old stream are ignored.
func TestR051_SotWWildcardResubscribed(t *testing.T) {
	cfg := upstream.Config{Protocol: upstream.ProtocolSotW, WildcardLinger: time.Minute, Linger: time.Minute}
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, cfg, func(t *testing.T, r *rig) {
		all := r.watch.SubscribeAll(clusters)
		s := r.Accept(t.Context())
		s.SendSotW(sotwResponse(clusters, "a@1", "b@1"))
		r.pass(soon)
		r.watch.UnsubscribeAll(all)
		r.pass(2 * time.Minute)
		a := r.watch.Subscribe(clusters, []string{"a"})
		r.pass(soon)
		s.SendSotW(sotwResponse(clusters, "a@1"))
		r.pass(soon)
		r.watch.Unsubscribe(clusters, a)
		r.pass(2 * time.Minute)
		r.expect("first stream", r.conversation(0), "[Cluster node] [Cluster version=v1 ack 1]"+
			" [Cluster * version=v1 ack 1] [Cluster version=v1 ack 1] [Cluster a version=v1 ack 1] [Cluster a version=v2 ack 2] [Cluster version=v2 ack 2]")

		s.SendSotW(sotwResponse(clusters, "late@1"))
		r.watch.SubscribeAll(clusters)
		s = r.Accept(t.Context())
		r.membersAfter(soon, "members before a response on the new stream", clusters, "")
		s.SendSotW(sotwResponse(clusters, "a@1", "b@1"))
		r.pass(soon)
		r.expect("members", names(r.members(clusters)), "a b")
		r.expect("second stream", r.conversation(1), "[Cluster node] [Cluster version=v1 ack 1]")
	})
}

// TestR054_SotWWildcardByName: for a type without a legacy wildcard, the wildcard is "*" (R054), on a new stream if the
// type was requested before.
func TestR054_SotWWildcardByName(t *testing.T) {
	inBubble(t, sotwOnly, upstream.Config{Protocol: upstream.ProtocolSotW, WildcardLinger: time.Minute}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1")
		all := r.watch.SubscribeAll(endpoints)
		r.pass(time.Second)
		r.watch.UnsubscribeAll(all)
		r.pass(2 * time.Minute)
		r.watch.SubscribeAll(endpoints)
		r.pass(time.Second)
		r.expect("first stream", strings.ReplaceAll(r.conversation(0), "ClusterLoadAssignment", "E"),
			"[E node *] [E * version=v1 ack 1] [E version=v1 ack 1]")
		r.expect("second stream", strings.ReplaceAll(r.conversation(1), "ClusterLoadAssignment", "E"),
			"[E node *] [E * version=v1 ack 1]")
		r.expect("members", r.members(endpoints), "a@1")
	})
}
