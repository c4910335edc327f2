package conformance_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
)

// Real control planes deviate from the protocol in these ways. Each test has a client of each variant, in virtual
// time.

const (
	quirkCDS = relaytest.ClusterType
	quirkEDS = relaytest.EndpointType
)

// A quirkWorld is an origin, a relay, and clients that subscribe to the cluster wildcard and to the endpoints a
// and b.
type quirkWorld struct {
	*relaytest.Origin
	t       *testing.T
	clients []*relaytest.Client
}

// quirkBubble runs a test for each behaviour of an origin.
func quirkBubble(t *testing.T, behaviours []relaytest.Behaviour, test func(w *quirkWorld)) {
	t.Helper()
	for _, b := range behaviours {
		name := "Delta"
		if b.SotW {
			name = "SotW"
		}
		t.Run(fmt.Sprintf("%s, wrapped=%v", name, b.Wrap), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &quirkWorld{Origin: relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Behaviour: b}), t: t}
				r := start(t, w.Origin)
				w.clients = r.bothVariants(relaytest.ClientOptions{}, func(c *relaytest.Client) {
					c.Subscribe(quirkCDS)
					c.Subscribe(quirkEDS, "a", "b")
				})
				test(w)
				for _, typeURL := range []string{quirkCDS, quirkEDS} {
					if st := w.State().Type(typeURL); st.NACKs != 0 {
						t.Errorf("the relay sent %d NACKs:\n%v", st.NACKs, w.State())
					}
				}
				r.Stop()
			})
		})
	}
}

// expect fails the test unless each client has exactly these names of a type.
func (w *quirkWorld) expect(when, typeURL string, names ...string) {
	w.t.Helper()
	for _, c := range w.clients {
		if s := c.State(); !s.Has(typeURL, names...) || len(s.Names(typeURL)) != len(names) {
			w.t.Errorf("%s: %v has %v, want %v", when, c, s.Names(typeURL), names)
		}
	}
}

// expectQuiet fails the test if a client receives a response while f runs.
func (w *quirkWorld) expectQuiet(what string, f func()) {
	w.t.Helper()
	before := make([]int, len(w.clients))
	for i, c := range w.clients {
		before[i] = len(c.Responses())
	}
	f()
	for i, c := range w.clients {
		if news := c.Responses()[before[i]:]; len(news) != 0 {
			w.t.Errorf("%s: %v got %v, want no response", what, c, news)
		}
	}
}

// send sends wrapped resources on a stream, in the stream's variant.
func (w *quirkWorld) send(s *relaytest.OriginStream, typeURL string, bodies ...*anypb.Any) {
	if s.State().SotW {
		s.SendSotW(&discoverypb.DiscoveryResponse{TypeUrl: typeURL, Resources: bodies})
		return
	}
	resp := &discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL}
	for _, body := range bodies {
		r := new(discoverypb.Resource)
		if err := body.UnmarshalTo(r); err != nil {
			w.t.Fatal(err)
		}
		resp.Resources = append(resp.Resources, r)
	}
	s.Send(resp)
}

func quirkResource(typeURL, name, content string) *anypb.Any {
	return relaytest.Pack(&discoverypb.Resource{Name: name, Version: "1",
		Resource: relaytest.Opaque(typeURL, name, []byte(content))})
}

// If an origin sends no resource versions and a constant system version, changes are detected by content.
func TestQuirk_NoVersionsAndAConstantOne(t *testing.T) {
	t.Parallel()
	quirkBubble(t, []relaytest.Behaviour{
		{EmptyVersions: true, SystemVersion: "constant"},
		{EmptyVersions: true, SystemVersion: "constant", SotW: true},
		{EmptyVersions: true, SystemVersion: "constant", SotW: true, Wrap: true},
	}, func(w *quirkWorld) {
		w.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Endpoints("a", "127.0.0.1:1"))
		sleep(10 * time.Second)
		for i := range 3 {
			w.Put(relaytest.Cluster("a", fmt.Sprint("service", i)), relaytest.Endpoints("a", fmt.Sprintf("127.0.0.1:%d", i+2)))
			sleep(time.Second)
			for _, c := range w.clients {
				if got, want := c.State().Digest(quirkCDS, "a"),
					relaytest.DigestOf(relaytest.Cluster("a", fmt.Sprint("service", i))); got != want {
					w.t.Errorf("%v did not get change %d of the cluster", c, i)
				}
				if got, want := c.State().Digest(quirkEDS, "a"),
					relaytest.DigestOf(relaytest.Endpoints("a", fmt.Sprintf("127.0.0.1:%d", i+2))); got != want {
					w.t.Errorf("%v did not get change %d of the endpoints", c, i)
				}
			}
		}
		w.Remove(quirkCDS, "b")
		sleep(time.Second)
		w.expect("after a removal", quirkCDS, "a")
		w.expectQuiet("a restart", func() {
			w.Restart()
			sleep(time.Minute)
		})
	})
}

// An origin that ignores initial_resource_versions sends everything again. Clients receive no response.
func TestQuirk_InitialResourceVersionsIgnored(t *testing.T) {
	t.Parallel()
	quirkBubble(t, []relaytest.Behaviour{{IgnoreIRV: true}, {SotW: true}}, func(w *quirkWorld) {
		w.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Endpoints("a", "127.0.0.1:1"))
		sleep(10 * time.Second)
		sent := w.State().Type(quirkCDS).Sent
		w.expectQuiet("a resync", func() {
			w.Restart()
			sleep(time.Minute)
		})
		if w.State().Type(quirkCDS).Sent == sent {
			w.t.Error("the origin did not resend its resources, so the test has no effect")
		}
		w.Put(relaytest.Cluster("b", "other"))
		sleep(time.Second)
		for _, c := range w.clients {
			if c.State().Digest(quirkCDS, "b") != relaytest.DigestOf(relaytest.Cluster("b", "other")) {
				w.t.Errorf("%v did not get the change after the resync", c)
			}
		}
	})
}

// A restarted origin first sends an empty set of clusters, because it has not read its own configuration. Clients
// keep their clusters (C15). If the set stays empty, a SotW origin's removals take effect after the hold. A Delta
// origin has to name the removals.
func TestQuirk_EmptyFirstResponse(t *testing.T) {
	t.Parallel()
	for _, recovers := range []bool{true, false} {
		t.Run(fmt.Sprintf("recovers=%v", recovers), func(t *testing.T) {
			quirkBubble(t, []relaytest.Behaviour{{Manual: true}, {Manual: true, SotW: true, Wrap: true}}, func(w *quirkWorld) {
				all := []*anypb.Any{quirkResource(quirkCDS, "a", "1"), quirkResource(quirkCDS, "b", "1"),
					quirkResource(quirkCDS, "c", "1")}
				s := w.Accept(w.t.Context())
				w.send(s, quirkCDS, all...)
				sleep(10 * time.Second)
				w.expect("before", quirkCDS, "a", "b", "c")

				w.expectQuiet("an empty first response", func() {
					w.Restart()
					s = w.Accept(w.t.Context())
					sleep(time.Second)
					w.send(s, quirkCDS)
					sleep(5 * time.Minute)
				})
				if recovers {
					w.expectQuiet("all that there was", func() {
						w.send(s, quirkCDS, all...)
						sleep(settled)
					})
					return
				}
				sleep(7 * time.Minute) // an empty list does not confirm a set, so this takes a minute
				if w.State().Last().SotW {
					sleep(time.Second)
					w.send(w.Accept(w.t.Context()), quirkCDS) // the verification request
					sleep(2 * time.Minute)
					w.expect("after the hold", quirkCDS)
					return
				}
				w.expect("after any time", quirkCDS, "a", "b", "c")
			})
		})
	}
}

// Some origins answer an unknown name with an empty resource. A valid one is passed on. One without a body has no
// effect, and later responses are processed.
func TestQuirk_EmptyResourceForAnUnknownName(t *testing.T) {
	t.Parallel()
	quirkBubble(t, []relaytest.Behaviour{{Manual: true}, {Manual: true, SotW: true, Wrap: true}}, func(w *quirkWorld) {
		s := w.Accept(w.t.Context())
		sleep(time.Second)
		w.send(s, quirkCDS, quirkResource(quirkCDS, "a", "1"))
		empty := relaytest.Endpoints("a")
		body, err := anypb.New(empty)
		if err != nil {
			w.t.Fatal(err)
		}
		w.send(s, quirkEDS, relaytest.Pack(&discoverypb.Resource{Name: "a", Version: "1", Resource: body}))
		sleep(10 * time.Second)
		for _, c := range w.clients {
			if c.State().Digest(quirkEDS, "a") != relaytest.DigestOf(empty) {
				w.t.Errorf("%v did not get the empty endpoints", c)
			}
		}
		w.expectQuiet("resources without a body, known and unknown", func() {
			for _, version := range []string{"", "1", "2"} {
				w.send(s, quirkEDS, relaytest.Pack(&discoverypb.Resource{Name: "b", Version: version}))
				w.send(s, quirkCDS, relaytest.Pack(&discoverypb.Resource{Name: "unknown", Version: version}))
				sleep(time.Minute)
			}
		})
		w.expect("before the real one", quirkEDS, "a")
		w.send(s, quirkEDS, quirkResource(quirkEDS, "b", "1"))
		sleep(time.Second)
		w.expect("after the real one", quirkEDS, "a", "b")
		w.expect("clusters", quirkCDS, "a")
	})
}

// Responses with only removals, or without any content, are ACKed. A client receives a removal only of a resource
// that it has.
func TestQuirk_EmptyResponses(t *testing.T) {
	t.Parallel()
	quirkBubble(t, []relaytest.Behaviour{{}}, func(w *quirkWorld) {
		w.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Endpoints("a", "127.0.0.1:1"),
			relaytest.Endpoints("b", "127.0.0.1:1"))
		sleep(10 * time.Second)
		answers := w.State().Type(quirkCDS).ACKs + w.State().Type(quirkEDS).ACKs
		w.expectQuiet("responses of nothing", func() {
			for _, typeURL := range []string{quirkCDS, quirkEDS} {
				w.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL})
				w.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL, RemovedResources: []string{"never", "was"}})
			}
			sleep(time.Minute)
		})
		w.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: quirkCDS, RemovedResources: []string{"b", "never"}})
		sleep(time.Second)
		w.expect("after a removal", quirkCDS, "a")
		if got := w.State().Type(quirkCDS).ACKs + w.State().Type(quirkEDS).ACKs; got != answers+5 {
			w.t.Errorf("got %d ACKs, want 5", got-answers)
		}
	})
	quirkBubble(t, []relaytest.Behaviour{{SotW: true}}, func(w *quirkWorld) {
		w.Put(relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:1"), relaytest.Endpoints("b", "127.0.0.1:1"))
		sleep(10 * time.Second)
		answers := w.State().Type(quirkEDS).ACKs
		w.expectQuiet("a response of nothing", func() {
			w.InjectSotW(&discoverypb.DiscoveryResponse{TypeUrl: quirkEDS})
			sleep(time.Minute)
		})
		w.expect("endpoints", quirkEDS, "a", "b")
		if got := w.State().Type(quirkEDS).ACKs; got != answers+1 {
			w.t.Errorf("got %d ACKs, want 1", got-answers)
		}
	})
}
