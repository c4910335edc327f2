package downstream

import (
	"fmt"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// sotwClient returns a subscription of a SotW client that is not Envoy.
func sotwClient(view *cache.View, typeURL string) *subscription {
	cfg := &Config{ResponseBytes: 1 << 20}
	return &subscription{
		Traits: cfg.traitsOf(typeURL, Software{}), conversation: new(conversation), key: typeURL,
		client: &client{cfg: cfg, watch: view.Watch()},
	}
}

// list has a client list names, and returns what it is sent for that.
func (s *subscription) list(view *cache.View, w *cache.Writer, sum uint64, names ...string) *Response {
	s.request(&wire.Request{Subscribe: names, NamesSum: sum}, time.Now())
	w.TakeDemand()
	g := view.Generation()
	r, _, _ := s.next(&pass{head: g, now: time.Now()}, g, g.Type(s.key), g.Seq)
	return r
}

// A glob that a SotW client leaves out and lists again is answered again, though the
// set is the one that was sent last (R044).
func TestR044_AGlobThatComesBack(t *testing.T) {
	const glob = "xdstp://x/envoy.config.listener.v3.Listener/*"
	view, w := cache.New(cache.Config{})
	key := cache.Collection(wire.ListenerType, glob)
	r, err := wire.NewResource(wire.ListenerType, "xdstp://x/envoy.config.listener.v3.Listener/a", "1", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := sotwClient(view, wire.ListenerType)
	s.list(view, w, 1, glob)
	w.Apply(cache.Wildcard, wire.Update{TypeURL: key, Resources: []*wire.Resource{r}})
	w.SetPhase(key, cache.Confirmed)
	if got := s.list(view, w, 1, glob); got == nil || got.Body.Len() != 1 {
		t.Fatalf("got %v, want a set of one", got)
	}
	s.list(view, w, 2, "a")
	if got := s.list(view, w, 3, glob, "a"); got == nil || got.Body.Len() != 1 {
		t.Errorf("after it came back: got %v, want the set of one again", got)
	}
}

// Which variant a client was sent of a name that it gave up is forgotten (D.4, 11).
func TestB1_VariantsOfNamesThatAreGone(t *testing.T) {
	view, w := cache.New(cache.Config{})
	s := sotwClient(view, wire.EndpointType)
	for i := range 100 {
		name := fmt.Sprint(i)
		s.list(view, w, uint64(i+1), name)
		w.Apply(cache.ByName, constrained(t, name))
		g := view.Generation()
		if r, err := s.changes(g, g.Type(s.key), g.Seq, time.Now()); err != nil || r == nil {
			t.Fatalf("%s: got %v, %v, want the resource", name, r, err)
		}
	}
	if got := len(s.variants); got != 1 {
		t.Errorf("%d variants are remembered, want 1", got)
	}
}

// constrained returns an update with a variant for those who have no env.
func constrained(t *testing.T, name string) wire.Update {
	t.Helper()
	exists := &discoverypb.DynamicParameterConstraints_SingleConstraint{
		Key: "env", ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Exists_{},
	}
	msg, err := proto.Marshal(&discoverypb.DeltaDiscoveryResponse{
		TypeUrl: wire.EndpointType,
		Resources: []*discoverypb.Resource{{
			ResourceName: &discoverypb.ResourceName{Name: name, DynamicParameterConstraints: &discoverypb.DynamicParameterConstraints{
				Type: &discoverypb.DynamicParameterConstraints_NotConstraints{NotConstraints: &discoverypb.DynamicParameterConstraints{
					Type: &discoverypb.DynamicParameterConstraints_Constraint{Constraint: exists},
				}},
			}},
			Version: "1", Resource: &anypb.Any{TypeUrl: wire.EndpointType},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	u, err := wire.Decoder{}.Decode(msg)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
