package upstream_test

import (
	"fmt"
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

// sotwOnly is an origin that speaks SotW, with versions that a view shows.
var sotwOnly = relaytest.Behaviour{SotW: true, Wrap: true}

// forced is for tests that are not about finding out what an origin speaks.
var forced = upstream.Config{Protocol: upstream.ProtocolSotW}

// sotwResponse returns a response with resources written name@version, where the
// version is content only.
func sotwResponse(typeURL string, resources ...string) *discoverypb.DiscoveryResponse {
	resp := &discoverypb.DiscoveryResponse{TypeUrl: typeURL}
	for _, r := range response(typeURL, resources...).GetResources() {
		resp.Resources = append(resp.Resources, r.GetResource())
	}
	return resp
}

// names shows what is present without versions, of which unwrapped resources have
// none.
func names(shown string) string { return strings.ReplaceAll(present(shown), "@", "") }

// Each request states all names, the version accepted last, and the nonce of the
// last response; a NACK has the version before. Only the first has the Node.
func TestR020_R076_SotWRequestListsAllNames(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, forced, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		r.watch.Subscribe(endpoints, []string{"b", "a"})
		s := r.Accept(t.Context())
		r.pass(soon)
		s.SendSotW(sotwResponse(clusters, "x@1")) // 1
		s.SendSotW(sotwResponse(endpoints, "a@1", "b@1"))
		r.pass(soon)
		r.watch.Subscribe(endpoints, []string{"c"})
		r.pass(soon)
		s.SendSotW(sotwResponse(endpoints, "c@1", "c@1")) // 3, refused
		r.pass(soon)
		r.watch.Subscribe(endpoints, []string{"d"})
		r.pass(soon)
		s.SendSotW(sotwResponse(endpoints, "c@1"))
		r.pass(soon)
		r.expect("stream", strings.ReplaceAll(r.conversation(0), "ClusterLoadAssignment", "E"),
			"[Cluster node] [E a b] [Cluster version=v1 ack 1] [E a b version=v2 ack 2]"+
				" [E a b c version=v2 ack 2] [E a b c version=v2 nack 3] [E a b c d version=v2 ack 3] [E a b c d version=v4 ack 4]")
		r.expect("clusters", names(r.members(clusters)), "x")
		r.expect("endpoints", names(r.named(endpoints)), "a b c")
	})
}

// A change is one request, however many names it has.
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
			t.Errorf("%d requests, the last with %d names, want 3, an ACK among them, and 1202", len(reqs), len(reqs[2].SotW.GetResourceNames()))
		}
	})
}

// statedNames returns how many requests of a type the origin got, and with how many names in all.
func (r *rig) statedNames(typeURL string) (requests, names int) {
	for _, req := range r.State().Requests(typeURL) {
		requests++
		names += len(req.SotW.GetResourceNames())
	}
	return requests, names
}

// subscribesHerd has clients subscribe one after the other, to 100 names each, of which the origin has the first so many.
func (r *rig) subscribesHerd(clients, has int, every time.Duration) {
	if names := numbered(100 * clients)[:has]; has > 0 {
		r.put(endpoints, names...)
	}
	for i := range clients {
		r.watch.Subscribe(endpoints, nameOnly(numbered(100 * clients)[100*i:100*(i+1)]))
		r.pass(every)
	}
	r.pass(10 * time.Second)
}

// All names of a herd are stated a few times, not once for each client: six times if it comes at once, and if it takes its time, at most
// 80,000 names a second beside that. Each client has its own in time.
func TestB5_SotWBatchesManyNames(t *testing.T) {
	for _, every := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond} {
		inBubble(t, relaytest.Behaviour{SotW: true}, forced, func(t *testing.T, r *rig) {
			r.subscribesHerd(100, 10_000, every)
			most := 6*10_000 + int(80_000*(100*every).Seconds())
			if requests, names := r.statedNames(endpoints); names > most {
				t.Errorf("every %v: %d requests with %d names, want at most %d", every, requests, names, most)
			}
			if got := len(strings.Fields(present(r.named(endpoints)))); got != 10_000 {
				t.Errorf("every %v: clients have %d names, want 10,000", every, got)
			}
		})
	}
}

// Nothing is asked for while a response is outstanding, but not for longer than a second: an origin need not answer for what it does not
// have.
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
		stated("outstanding", 1)
		r.watch.Subscribe(clusters, []string{"of another type"})
		r.pass(soon)
		check.Equal(t, "requests of another type", len(r.State().Requests(clusters)), 1)
		s.SendSotW(sotwResponse(endpoints, "a@1"))
		r.pass(soon)
		stated("answered", 1, 4)
		r.watch.Subscribe(endpoints, []string{"e", "f", "g", "h"})
		r.pass(800 * time.Millisecond)
		stated("outstanding again", 1, 4)
		r.pass(250 * time.Millisecond)
		stated("not answered", 1, 4, 8)
		r.watch.Unsubscribe(endpoints, r.view.Find(endpoints, []string{"a"}))
		r.pass(time.Hour)
		stated("given up", 1, 4, 8, 7)
	})
}

// Nothing survives a stream: not the nonce, and not the version, so that the origin
// answers whatever it makes of one (R021). What is resent unchanged moves nothing.
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
				r.pass(time.Hour)
			}
			check.Equal(t, "position", r.view.Generation().Seq, seq)
			first := r.State().Last().Requests[0].SotW
			if first.GetVersionInfo()+first.GetResponseNonce() != "" || first.GetNode() == nil {
				t.Errorf("first request of a stream: %v", first)
			}
		})
	}
}

// A list of a full-state type is complete at once; that of another type, and an
// empty one, after a while as in Delta.
func TestB7_SotWListIsComplete(t *testing.T) {
	tests := []struct {
		typeURL   string
		resources []string
		at        time.Duration // confirmed
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
				t.Errorf("%s %v: confirmed after %v, want %v", tt.typeURL, tt.resources, tt.at/2, tt.at)
			}
			r.pass(tt.at/2 + soon)
			if p := r.view.Generation().Type(tt.typeURL).Phase; p != cache.Confirmed {
				t.Errorf("%s %v: %v after %v, want confirmed", tt.typeURL, tt.resources, p, tt.at)
			}
		})
	}
}

// What the origin listed on a stream and lists no more is gone at once, however
// much it is; of partial types absence says nothing.
func TestR065_R067_SotWAbsence(t *testing.T) {
	tests := []struct {
		typeURL string
		want    string
	}{
		{clusters, "n099@1"},
		{listeners, "n099@1"},
		{scopes, "n099@1"},
		{endpoints, shown(numbered(100))},
	}
	for _, tt := range tests {
		inBubble(t, sotwOnly, forced, func(t *testing.T, r *rig) {
			r.put(tt.typeURL, numbered(100)...)
			r.watch.SubscribeAll(tt.typeURL)
			r.pass(confirmed)
			r.Apply(removing(tt.typeURL, nameOnly(numbered(99))...))
			r.pass(time.Hour)
			r.expect(tt.typeURL, present(r.members(tt.typeURL)), tt.want)
		})
	}
}

// Of a name that the first request of a stream had, absence says that there is
// none. Of one that was asked for later it says so only once it was listed: the
// list may have been under way.
func TestR070_R071_SotWNames(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, forced, func(t *testing.T, r *rig) {
		r.watch.Subscribe(listeners, []string{"a", "none"})
		s := r.Accept(t.Context())
		r.namedAfter(soon, "before the first list", listeners, "")
		s.SendSotW(sotwResponse(listeners))
		r.namedAfter(soon, "an empty list, which may be that of an origin that has just started", listeners, "")
		s.SendSotW(sotwResponse(listeners, "a@1"))
		r.namedAfter(soon, "first list", listeners, "!none a@")

		r.watch.Subscribe(listeners, []string{"later"})
		r.pass(soon)
		s.SendSotW(sotwResponse(listeners, "a@2"))
		r.namedAfter(time.Hour, "a list without the later name", listeners, "!none a@")
		s.SendSotW(sotwResponse(listeners, "a@2", "later@1", "none@1"))
		r.pass(soon)
		r.expect("a list with it", names(r.named(listeners)), "a later none")
		s.SendSotW(sotwResponse(listeners, "none@1"))
		r.pass(soon)
		r.expect("a list without both", names(r.named(listeners)), "none")
		r.expect("nothing is left over", r.members(listeners), "")
	})
}

// A glob is answered under the names of its members, so a list never has it.
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

// A list that comes before its type was asked for says nothing by what it lacks.
func TestR071_SotWResponseBeforeRequest(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, forced, func(t *testing.T, r *rig) {
		r.watch.Subscribe(endpoints, []string{"e"})
		s := r.Accept(t.Context())
		r.pass(soon)
		r.watch.Subscribe(listeners, []string{"a", "b"})
		r.pass(time.Millisecond) // names are sent after 5ms
		s.SendSotW(sotwResponse(listeners, "a@1"))
		r.namedAfter(soon, "named", listeners, "a@")
		r.expect("stream", r.conversation(0), "[ClusterLoadAssignment node e] [Listener a b]")
	})
}

// An origin that was not told what is held need not be asked twice when another
// instance of it answers.
func TestB15_SotWOtherInstance(t *testing.T) {
	inBubble(t, sotwOnly, forced, func(t *testing.T, r *rig) {
		r.SetControlPlane("one")
		r.follow(clusters, "a@1")
		r.SetControlPlane("two")
		r.Restart()
		r.pass(time.Hour)
		check.Equal(t, "streams", r.streams(), 2)
	})
}

// The first list may have been under way, too, when a name was asked for.
func TestR071_SotWNameBeforeFirstResponse(t *testing.T) {
	cfg := upstream.Config{Protocol: upstream.ProtocolSotW, Linger: time.Minute}
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, cfg, func(t *testing.T, r *rig) {
		again := r.watch.Subscribe(listeners, []string{"again", "a", "none"})[:1] // at once, or the first request may name but one
		s := r.Accept(t.Context())
		r.pass(soon)
		r.watch.Unsubscribe(listeners, again)
		r.pass(2 * time.Minute)
		r.watch.Subscribe(listeners, []string{"again", "later"})
		r.pass(soon)
		s.SendSotW(sotwResponse(listeners, "a@1"))
		r.namedAfter(soon, "first list", listeners, "!none a@")
		r.expect("stream", r.conversation(0), "[Listener node a again none] [Listener a none] [Listener a again later none]"+
			" [Listener a again later none version=v1 ack 1]")
	})
}

// A name that was given up and is wanted again is like one that was never asked
// for.
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
			t.Errorf("%v is known to be %v, want unknown", n, set.Get(n))
		}
		r.expect("stream", r.conversation(0), "[Listener node a b] [Listener a b version=v1 ack 1] [Listener a version=v1 ack 1]"+
			" [Listener a b version=v1 ack 1] [Listener a b version=v2 ack 2]")
	})
}

// A resource may come under another name than it was asked for by.
func TestR092_SotWAliases(t *testing.T) {
	inBubble(t, sotwOnly, forced, func(t *testing.T, r *rig) {
		r.SetRaw(listeners, &discoverypb.Resource{
			Name: "own", Version: "1", Aliases: []string{"alias"}, Resource: relaytest.Opaque(listeners, "own", nil),
		})
		r.watch.Subscribe(listeners, []string{"alias", "own"})
		r.namedAfter(time.Second, "both names", listeners, "alias@1 own@1")
		r.put(listeners, "other@1")
		r.namedAfter(time.Second, "after another list", listeners, "alias@1 own@1")
		r.Remove(listeners, "own")
		r.pass(time.Second)
		r.expect("when it is gone", present(r.named(listeners)), "")
	})
}

// Lifetimes are no list: what a heartbeat does not mention is still there (R106).
func TestR106_SotWHeartbeatRemovesNothing(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, forced, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		s := r.Accept(t.Context())
		s.SendSotW(sotwResponse(clusters, "a@1", "b@1"))
		r.pass(soon)
		beat := sotwResponse(clusters)
		beat.Resources = append(beat.Resources, relaytest.Wrapped(&discoverypb.Resource{Name: "a", Ttl: durationpb.New(time.Minute)}))
		s.SendSotW(beat)
		r.pass(30 * time.Second)
		r.expect("members", names(r.members(clusters)), "a b")
		s.SendSotW(sotwResponse(clusters, "b@1"))
		r.pass(soon)
		r.expect("members after the next list", names(r.members(clusters)), "b")
	})
}

// What cannot be told by its name is refused with a reason, and changes nothing.
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
					good.Resources = append(good.Resources, relaytest.Wrapped(res))
				}
				s.SendSotW(good)
				r.pass(soon)
				s.SendSotW(tt.resp)
				r.pass(soon)
				reqs := s.State().Requests
				last := reqs[len(reqs)-1].SotW
				if got := last.GetErrorDetail().GetMessage(); !strings.Contains(got, tt.want) || last.GetVersionInfo() != "v1" || last.GetResponseNonce() != "2" {
					t.Errorf("answer %v, want a NACK of 2 that has version v1 and says %q", last, tt.want)
				}
				r.expect("members", r.members(tt.resp.GetTypeUrl()), "a@1")
			})
		})
	}
}

// A type that was not asked for is not acknowledged: a list without names would ask
// for all of it.
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

// One type by wildcard and by name has two streams in SotW as well: older servers
// know no "*", and of a list it could not be told what belongs to which.
func TestB5_SotWWildcardAndNamesOfOneType(t *testing.T) {
	only := func(_, name string) bool { return name == "only" }
	inBubble(t, relaytest.Behaviour{SotW: true, Wrap: true, NamedOnly: only}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "only@1", "all@1")
		r.watch.SubscribeAll(clusters)
		r.pass(time.Second)
		r.watch.Subscribe(clusters, []string{"only"})
		r.pass(time.Second)
		r.expect("main stream", r.conversation(0), "[Cluster node] [Cluster version=v1 ack 1]")
		r.expect("auxiliary stream", r.conversation(1), "[Cluster node only] [Cluster only version=v1 ack 1]")
		r.expect("members", r.members(clusters), "all@1")
		r.expect("named", r.named(clusters), "only@1")
		r.Remove(clusters, "only")
		r.membersAfter(time.Second, "members", clusters, "all@1")
		r.expect("named", r.named(clusters), "!only")
	})
}

// A wildcard that was given up is said to be, and takes a new stream when it is
// wanted again, since only that has a form of it that all servers know. What the old
// stream still says is not taken for it.
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
		r.membersAfter(soon, "members before the new stream has answered", clusters, "")
		s.SendSotW(sotwResponse(clusters, "a@1", "b@1"))
		r.pass(soon)
		r.expect("members", names(r.members(clusters)), "a b")
		r.expect("second stream", r.conversation(1), "[Cluster node] [Cluster version=v1 ack 1]")
	})
}

// A wildcard of a type that none is by itself is "*" (R054), on a new stream if the type was
// asked for before.
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
