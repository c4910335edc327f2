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

// These are ways in which real control planes differ from what the protocol asks.
// Each test has a client of both variants below the relay, on a clock of its own.

const (
	quirkCDS = relaytest.ClusterType
	quirkEDS = relaytest.EndpointType
)

// A quirkWorld is an origin, a relay, and clients that follow all clusters and name
// the endpoints "a" and "b".
type quirkWorld struct {
	*relaytest.Origin
	t       *testing.T
	clients []*relaytest.Client
}

// quirkBubble runs a test for each of the ways in which an origin may behave.
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
				for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
					c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
					c.Subscribe(quirkCDS)
					c.Subscribe(quirkEDS, "a", "b")
					w.clients = append(w.clients, c)
				}
				test(w)
				for _, typeURL := range []string{quirkCDS, quirkEDS} {
					if st := w.State().Type(typeURL); st.NACKs != 0 {
						t.Errorf("the relay refused %d responses:\n%v", st.NACKs, w.State())
					}
				}
				r.Stop()
			})
		})
	}
}

// rest lets time pass.
func (w *quirkWorld) rest(d time.Duration) {
	time.Sleep(d) // virtual
	synctest.Wait()
}

// expect fails the test unless every client has exactly these names of a type.
func (w *quirkWorld) expect(when, typeURL string, names ...string) {
	w.t.Helper()
	for _, c := range w.clients {
		if s := c.State(); !s.Has(typeURL, names...) || len(s.Names(typeURL)) != len(names) {
			w.t.Errorf("%s: %v has %v, want %v", when, c, s.Names(typeURL), names)
		}
	}
}

// quiet runs f and fails the test if it had any client receive anything.
func (w *quirkWorld) quiet(what string, f func()) {
	w.t.Helper()
	before := make([]int, len(w.clients))
	for i, c := range w.clients {
		before[i] = len(c.Responses())
	}
	f()
	for i, c := range w.clients {
		if news := c.Responses()[before[i]:]; len(news) != 0 {
			w.t.Errorf("%s: %v received %v, want nothing", what, c, news)
		}
	}
}

// send sends wrapped resources on a stream, in its variant.
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
	return relaytest.Wrapped(&discoverypb.Resource{Name: name, Version: "1", Resource: relaytest.Opaque(typeURL, name, []byte(content))})
}

// An origin that gives its resources no versions, and does not change the version
// of the whole either, is believed by its bytes.
func TestQuirk_NoVersionsAndAConstantOne(t *testing.T) {
	t.Parallel()
	quirkBubble(t, []relaytest.Behaviour{
		{EmptyVersions: true, SystemVersion: "constant"},
		{EmptyVersions: true, SystemVersion: "constant", SotW: true},
		{EmptyVersions: true, SystemVersion: "constant", SotW: true, Wrap: true},
	}, func(w *quirkWorld) {
		w.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Endpoints("a", "127.0.0.1:1"))
		w.rest(10 * time.Second)
		for i := range 3 {
			w.Put(relaytest.Cluster("a", fmt.Sprint("service", i)), relaytest.Endpoints("a", fmt.Sprintf("127.0.0.1:%d", i+2)))
			w.rest(time.Second)
			for _, c := range w.clients {
				if got, want := c.State().Digest(quirkCDS, "a"), relaytest.DigestOf(relaytest.Cluster("a", fmt.Sprint("service", i))); got != want {
					w.t.Errorf("%v did not get change %d of the cluster", c, i)
				}
				if got, want := c.State().Digest(quirkEDS, "a"), relaytest.DigestOf(relaytest.Endpoints("a", fmt.Sprintf("127.0.0.1:%d", i+2))); got != want {
					w.t.Errorf("%v did not get change %d of the endpoints", c, i)
				}
			}
		}
		w.Remove(quirkCDS, "b")
		w.rest(time.Second)
		w.expect("after a removal", quirkCDS, "a")
		w.quiet("a restart", func() {
			w.Restart()
			w.rest(time.Minute)
		})
	})
}

// An origin that does not look at initial_resource_versions and sends everything
// again, is heard without a word to any client.
func TestQuirk_InitialResourceVersionsIgnored(t *testing.T) {
	t.Parallel()
	quirkBubble(t, []relaytest.Behaviour{{IgnoreIRV: true}, {SotW: true}}, func(w *quirkWorld) {
		w.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Endpoints("a", "127.0.0.1:1"))
		w.rest(10 * time.Second)
		sent := w.State().Type(quirkCDS).Sent
		w.quiet("a resync", func() {
			w.Restart()
			w.rest(time.Minute)
		})
		if w.State().Type(quirkCDS).Sent == sent {
			w.t.Error("the origin sent nothing again, so it shows nothing")
		}
		w.Put(relaytest.Cluster("b", "other"))
		w.rest(time.Second)
		for _, c := range w.clients {
			if c.State().Digest(quirkCDS, "b") != relaytest.DigestOf(relaytest.Cluster("b", "other")) {
				w.t.Errorf("%v did not get the change after the resync", c)
			}
		}
	})
}

// An origin that has just been started, and says of clusters that there are none
// before it has read its own configuration, takes none from a client (C15). If it
// goes on saying so, it is believed after the hold in SotW, where it cannot say it
// more clearly; in Delta it says it by naming what is removed.
func TestQuirk_EmptyFirstResponse(t *testing.T) {
	t.Parallel()
	for _, recovers := range []bool{true, false} {
		t.Run(fmt.Sprintf("recovers=%v", recovers), func(t *testing.T) {
			quirkBubble(t, []relaytest.Behaviour{{Manual: true}, {Manual: true, SotW: true, Wrap: true}}, func(w *quirkWorld) {
				all := []*anypb.Any{quirkResource(quirkCDS, "a", "1"), quirkResource(quirkCDS, "b", "1"), quirkResource(quirkCDS, "c", "1")}
				s := w.Accept(w.t.Context())
				w.send(s, quirkCDS, all...)
				w.rest(10 * time.Second)
				w.expect("before", quirkCDS, "a", "b", "c")

				w.quiet("an empty first response", func() {
					w.Restart()
					s = w.Accept(w.t.Context())
					w.rest(time.Second)
					w.send(s, quirkCDS)
					w.rest(5 * time.Minute)
				})
				if recovers {
					w.quiet("all that there was", func() {
						w.send(s, quirkCDS, all...)
						w.rest(time.Hour)
					})
					return
				}
				w.rest(7 * time.Minute) // an empty list is no end of a set, which is confirmed after a minute
				if w.State().Last().SotW {
					w.rest(time.Second)
					w.send(w.Accept(w.t.Context()), quirkCDS) // the second look
					w.rest(2 * time.Minute)
					w.expect("after the hold", quirkCDS)
					return
				}
				w.expect("after any time", quirkCDS, "a", "b", "c")
			})
		})
	}
}

// A name that the origin does not know is answered by some with an empty resource:
// one that is valid is relayed as it is. One without a body is no answer: it removes
// nothing, and what comes later is delivered.
func TestQuirk_EmptyResourceForAnUnknownName(t *testing.T) {
	t.Parallel()
	quirkBubble(t, []relaytest.Behaviour{{Manual: true}, {Manual: true, SotW: true, Wrap: true}}, func(w *quirkWorld) {
		s := w.Accept(w.t.Context())
		w.rest(time.Second)
		w.send(s, quirkCDS, quirkResource(quirkCDS, "a", "1"))
		empty := relaytest.Endpoints("a")
		body, err := anypb.New(empty)
		if err != nil {
			w.t.Fatal(err)
		}
		w.send(s, quirkEDS, relaytest.Wrapped(&discoverypb.Resource{Name: "a", Version: "1", Resource: body}))
		w.rest(10 * time.Second)
		for _, c := range w.clients {
			if c.State().Digest(quirkEDS, "a") != relaytest.DigestOf(empty) {
				w.t.Errorf("%v does not have the empty endpoints", c)
			}
		}
		w.quiet("resources without a body, known and unknown", func() {
			for _, version := range []string{"", "1", "2"} {
				w.send(s, quirkEDS, relaytest.Wrapped(&discoverypb.Resource{Name: "b", Version: version}))
				w.send(s, quirkCDS, relaytest.Wrapped(&discoverypb.Resource{Name: "unknown", Version: version}))
				w.rest(time.Minute)
			}
		})
		w.expect("before the real one", quirkEDS, "a")
		w.send(s, quirkEDS, quirkResource(quirkEDS, "b", "1"))
		w.rest(time.Second)
		w.expect("after the real one", quirkEDS, "a", "b")
		w.expect("clusters", quirkCDS, "a")
	})
}

// Responses of nothing but removals, or of nothing at all, are acknowledged; only
// the removal of what is there reaches a client.
func TestQuirk_ResponsesOfNothing(t *testing.T) {
	t.Parallel()
	quirkBubble(t, []relaytest.Behaviour{{}}, func(w *quirkWorld) {
		w.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Endpoints("a", "127.0.0.1:1"), relaytest.Endpoints("b", "127.0.0.1:1"))
		w.rest(10 * time.Second)
		answers := w.State().Type(quirkCDS).ACKs + w.State().Type(quirkEDS).ACKs
		w.quiet("responses of nothing", func() {
			for _, typeURL := range []string{quirkCDS, quirkEDS} {
				w.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL})
				w.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL, RemovedResources: []string{"never", "was"}})
			}
			w.rest(time.Minute)
		})
		w.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: quirkCDS, RemovedResources: []string{"b", "never"}})
		w.rest(time.Second)
		w.expect("after a removal", quirkCDS, "a")
		if got := w.State().Type(quirkCDS).ACKs + w.State().Type(quirkEDS).ACKs; got != answers+5 {
			w.t.Errorf("%d responses were acknowledged, want 5", got-answers)
		}
	})
	quirkBubble(t, []relaytest.Behaviour{{SotW: true}}, func(w *quirkWorld) {
		w.Put(relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:1"), relaytest.Endpoints("b", "127.0.0.1:1"))
		w.rest(10 * time.Second)
		answers := w.State().Type(quirkEDS).ACKs
		w.quiet("a response of nothing", func() {
			w.InjectSotW(&discoverypb.DiscoveryResponse{TypeUrl: quirkEDS})
			w.rest(time.Minute)
		})
		w.expect("endpoints", quirkEDS, "a", "b")
		if got := w.State().Type(quirkEDS).ACKs; got != answers+1 {
			w.t.Errorf("%d responses were acknowledged, want 1", got-answers)
		}
	})
}
