package subscription

import (
	"fmt"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// newClient returns a subscription of a client that is not Envoy.
func newClient(view *cache.View, typeURL string, delta bool) *Subscription {
	settings := &Settings{ResponseBytes: 1 << 20, AckWait: 5 * time.Second}
	c := &Client{Settings: settings, Watch: view.Watch(), Delta: delta}
	return New(c, TraitsOf(typeURL, Software{}), wire.Unwrapped, false, noCounter{})
}

// list makes a SotW client list names, and returns the response.
func (s *Subscription) list(view *cache.View, w *cache.Writer, sum uint64, names ...string) *wire.Body {
	s.ApplyRequest(&wire.Request{Subscribe: names, NamesSum: sum}, time.Now())
	w.TakeDemand()
	return s.nextBody(view)
}

// nextBody returns the body of the next response.
func (s *Subscription) nextBody(view *cache.View) *wire.Body {
	g := view.Generation()
	r, _, _ := s.Next(&Turn{Newest: g, Cut: g, Now: time.Now()}, g.Seq)
	return r.Body
}

// A glob that a SotW client omits and lists again is answered again, even if the set is the last one that was sent
// (R044).
func TestR044_GlobRemovedAndAddedAgain(t *testing.T) {
	const glob = "xdstp://x/envoy.config.listener.v3.Listener/*"
	view, w := cache.New(cache.Config{})
	key := cache.Collection(wire.ListenerType, glob)
	r := check.Must(wire.NewResource(wire.ListenerType, "xdstp://x/envoy.config.listener.v3.Listener/a", "1", nil))
	s := newClient(view, wire.ListenerType, false)
	s.list(view, w, 1, glob)
	w.Apply(cache.Wildcard, wire.Update{TypeURL: key, Resources: []*wire.Resource{r}})
	w.SetPhase(key, cache.Confirmed)
	if got := s.list(view, w, 1, glob); got == nil || got.Len() != 1 {
		t.Fatalf("got %v, want a set of one", got)
	}
	s.list(view, w, 2, "a")
	if got := s.list(view, w, 3, glob, "a"); got == nil || got.Len() != 1 {
		t.Errorf("after the glob was added again: got %v, want the set of one again", got)
	}
}

// The variant that a client was sent of a name is dropped when the client unsubscribes (D.4, 11).
func TestB1_VariantsOfUnsubscribedNamesAreDropped(t *testing.T) {
	view, w := cache.New(cache.Config{})
	s := newClient(view, wire.EndpointType, false)
	for i := range 100 {
		name := fmt.Sprint(i)
		s.list(view, w, uint64(i+1), name)
		w.Apply(cache.ByName, constrained(t, name))
		if r := s.nextBody(view); r == nil {
			t.Fatalf("%s: nothing was sent, want the resource", name)
		}
	}
	check.Equal(t, "variants are remembered", len(s.variants), 1)
}

// constrained returns an update with a variant for clients without the parameter env.
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
	check.OK(t, err)
	u, err := wire.Decoder{}.Decode(msg)
	check.OK(t, err)
	return u
}
