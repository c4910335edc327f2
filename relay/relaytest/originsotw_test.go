package relaytest

import (
	"slices"
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// listOf returns a SotW request that answers a response, or none.
func listOf(typeURL string, answers *Response, names ...string) *discoverypb.DiscoveryRequest {
	req := &discoverypb.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names}
	if answers != nil {
		req.ResponseNonce, req.VersionInfo = answers.Nonce, answers.Version
	}
	return req
}

func TestSotWOriginFollowsProtocol(t *testing.T) {
	ctx := t.Context()
	o := NewOrigin(t, OriginOptions{Behaviour: Behaviour{SotW: true}})
	o.Put(Cluster("a"), Cluster("b"), Endpoints("a"), Endpoints("b"))
	c := NewClient(t, o.Dial(), ClientOptions{Variant: SotW})
	expect := func(what string, want string) *Response {
		t.Helper()
		resp := c.Recv(ctx)
		if got := strings.Join(resp.Names(), " "); got != want {
			t.Fatalf("%s: got %q, want %q", what, got, want)
		}
		return resp
	}
	c.Send(listOf(ClusterType, nil))
	all := expect("legacy wildcard", "a b")
	c.Send(listOf(ClusterType, all)) // an ACK without a response
	c.Send(listOf(EndpointType, nil, "a", "none"))
	one := expect("names of a partial type", "a")
	c.Send(listOf(EndpointType, one, "a", "b"))
	one = expect("a name more", "b")
	c.Send(listOf(EndpointType, one, "a", "b"))
	o.Put(Endpoints("a", "127.0.0.1:1"))
	one = expect("a change of a partial type", "a")
	c.Send(listOf(EndpointType, one, "a", "b"))
	o.Remove(EndpointType, "b") // SotW cannot express this removal
	o.Remove(ClusterType, "b")
	all = expect("a removal of a full-state type", "a")
	c.Send(listOf(ClusterType, all, "a", "c"))
	all = expect("names of a full-state type", "a")
	c.Send(listOf(ClusterType, all, "c"))
	o.WaitFor(ctx, "the shorter list", func(s *OriginState) bool { return s.Subscribed(ClusterType, "c") })
	o.Put(Cluster("c"))
	all = expect("a name that came to be", "c")
	c.Send(listOf(ClusterType, all))
	o.WaitFor(ctx, "no interest", func(s *OriginState) bool { return s.Subscribed(ClusterType) })
	if st := o.State().Type(ClusterType); st.ACKs != 4 || st.NACKs+st.Strays != 0 {
		t.Errorf("%d ACKs, %d NACKs, %d strays, want 4, 0, 0", st.ACKs, st.NACKs, st.Strays)
	}
}

func TestSotWOriginWraps(t *testing.T) {
	o := NewOrigin(t, OriginOptions{Behaviour: Behaviour{SotW: true}})
	o.Set(ClusterType, "bare", Cluster("bare"), "1")
	o.SetRaw(ClusterType, &discoverypb.Resource{Name: "aliased", Aliases: []string{"alias"}, Resource: Pack(Cluster("x"))})
	wrapped := func() (names []string) {
		c := NewClient(t, o.Dial(), ClientOptions{Variant: SotW, Node: WithFeatures(EnvoyNode("client"), FeatureWrapper)})
		c.Subscribe(ClusterType)
		for _, body := range c.Recv(t.Context()).Message.(*discoverypb.DiscoveryResponse).GetResources() {
			if r := new(discoverypb.Resource); body.UnmarshalTo(r) == nil {
				names = append(names, r.GetName()+"@"+r.GetVersion())
			}
		}
		return names
	}
	if got := wrapped(); !slices.Equal(got, []string{"aliased@"}) {
		t.Errorf("wrapped resources %q, want the one with an alias", got)
	}
	o.Change(func(b *Behaviour) { b.Wrap = true })
	if got := wrapped(); !slices.Equal(got, []string{"aliased@", "bare@1"}) {
		t.Errorf("wrapped resources %q, want all", got)
	}
}

func TestOriginImplementsOneVariant(t *testing.T) {
	for _, sotw := range []bool{false, true} {
		o := NewOrigin(t, OriginOptions{Behaviour: Behaviour{SotW: sotw}})
		other := SotW
		if sotw {
			other = Delta
		}
		c := NewClient(t, o.Dial(), ClientOptions{Variant: other})
		c.Subscribe(ClusterType)
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Unimplemented {
			t.Errorf("%v at an origin with SotW=%v ended with %v, want Unimplemented", other, sotw, err)
		}
	}
}
