package conformance_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// B.35: a request over a limit, other than of names, gets an error that names the limit, and is counted. Existing streams are not affected.
func TestB35_RequestsOverALimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit   guard.Limit
		value   string // of its variable; empty if the limit is constant
		code    codes.Code
		request func(c *relaytest.Client)
	}{
		{guard.LimitStreams, "1", codes.ResourceExhausted, func(*relaytest.Client) {}},
		{guard.LimitNameBytes, "", codes.InvalidArgument, func(c *relaytest.Client) {
			c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeRDS,
				InitialResourceVersions: map[string]string{strings.Repeat("n", 4097): "1"}})
		}},
		{guard.LimitNameBytes, "", codes.InvalidArgument, func(c *relaytest.Client) {
			c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeRDS,
				ResourceLocatorsSubscribe: []*discoverypb.ResourceLocator{
					{Name: "a", DynamicParameters: map[string]string{"k": strings.Repeat("v", 4097)}},
				}})
		}},
		{guard.LimitNodeBytes, "", codes.InvalidArgument, func(c *relaytest.Client) {
			c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeRDS, Node: &corepb.Node{Id: strings.Repeat("n", 1<<20)}})
		}},
		{guard.LimitNameBytes, "", codes.InvalidArgument,
			func(c *relaytest.Client) { c.Subscribe(typeRDS, strings.Repeat("n", 4097)) }},
		{guard.LimitRequest, "4KiB", codes.ResourceExhausted,
			func(c *relaytest.Client) { c.Subscribe(typeRDS, strings.Repeat("n", 4<<10)) }},
		{guard.LimitTypes, "", codes.ResourceExhausted, func(c *relaytest.Client) {
			for i := range 64 {
				c.Subscribe(fmt.Sprint(acmeType, i), "a")
			}
		}},
		{guard.LimitGroups, "1", codes.ResourceExhausted, func(c *relaytest.Client) { c.Subscribe(typeCDS) }},
	} {
		t.Run(tt.limit.String(), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Put(relaytest.Cluster("a"))
				var env []string
				if tt.value != "" {
					env = append(env, tt.limit.String()+"="+tt.value)
				}
				if tt.limit == guard.LimitGroups {
					env = append(env, "TENDER_NODE_GROUP_BY=id")
				}
				r := start(t, o, env...)
				before := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
				before.Subscribe(typeCDS)
				expectNames(t, before.Recv(t.Context()), typeCDS, "a")
				c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, Node: relaytest.EnvoyNode("other"), AutoAck: true})
				tt.request(c)
				err := c.WaitEnd(t.Context())
				named := strings.HasSuffix(status.Convert(err).Message(), "("+tt.limit.String()+")")
				if status.Code(err) != tt.code || !named && tt.limit != guard.LimitRequest { // grpc-go creates this status
					t.Errorf("the stream ended with %v, want %v with the limit", err, tt.code)
				}
				synctest.Wait()
				if s := r.Stats(); s.Refused[tt.limit] != 1 || s.Ended[guard.EndedRefused] != 1 || s.Streams != 1 {
					t.Errorf("got the counts %+v, want 1 refusal for the limit, and 1 stream", s)
				}
				o.Put(relaytest.Cluster("a", "changed"))
				expectNames(t, before.Recv(t.Context()), typeCDS, "a")
			})
		})
	}
}

// B.35: the number of names at an origin is limited across clients. At the limit, names that are already
// subscribed, wildcards and replacements are still served; ended subscriptions free their slots.
func TestB35_NamesOfAnOriginAreBounded(t *testing.T) {
	t.Parallel()
	const tooMany = "clients subscribe to 4 resource names of one origin, at most 3 are allowed (TENDER_MAX_ORIGIN_NAMES)"
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"), domainRoute("a", "1"), domainRoute("b", "1"), domainRoute("c", "1"))
		r := start(t, o, "TENDER_MAX_ORIGIN_NAMES=3", "TENDER_NODE_GROUP_BY=id", operated)
		client := func(id string) *relaytest.Client {
			return r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode(id)})
		}
		one, two := client("one"), client("client")
		one.Subscribe(typeRDS, "a", "b")
		expectNames(t, one.Recv(t.Context()), typeRDS, "a", "b")
		two.Subscribe(typeRDS, "a") // in another group
		expectNames(t, two.Recv(t.Context()), typeRDS, "a")
		expectNamesAtOrigin := func(want int) {
			t.Helper()
			synctest.Wait()
			if got := metricsOf(t, r)["tender_origin_names default"]; got != float64(want) {
				t.Errorf("got %v names at the origin, want %d", got, want)
			}
		}
		expectNamesAtOrigin(3)

		refused := client("client")
		refused.Subscribe(typeRDS, "b")
		expectQuiet(t, refused, time.Second)
		poll := restPoller(t, r, false)
		poll.poll("routes", "", "", "b").expectStatus(http.StatusTooManyRequests, tooMany)
		poll.poll("routes", "", "", "a").expectNames("a")
		all := client("client")
		all.Subscribe(typeCDS)
		expectNames(t, all.Recv(t.Context()), typeCDS, "a")
		expectNamesAtOrigin(3)

		swap := newRequest(v, typeRDS, "", "b")
		if delta, ok := swap.(*discoverypb.DeltaDiscoveryRequest); ok {
			delta.ResourceNamesUnsubscribe = []string{"a"}
		}
		two.Send(swap)
		expectNames(t, two.Recv(t.Context()), typeRDS, "b")
		expectNamesAtOrigin(3)
		two.Close()
		expectNamesAtOrigin(2)
		all.Subscribe(typeRDS, "c")
		expectNames(t, all.Recv(t.Context()), typeRDS, "c")
		expectNamesAtOrigin(3)
		o.Put(domainRoute("a", "2"))
		expectNames(t, one.Recv(t.Context()), typeRDS, "a")
		if n := r.Stats().Refused[guard.LimitOriginNames]; n != 2 {
			t.Errorf("counted %d refusals, want 2", n)
		}
	})
}

// R130, B.35: a name that groups share counts once, for any number of groups.
func TestB35_SharedNamesCountOnce(t *testing.T) {
	t.Parallel()
	const dir = "xdstp://authority/envoy.config.route.v3.RouteConfiguration/"
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(domainRoute(dir+"a", "1"), domainRoute(dir+"b", "1"))
		r := start(t, o, "TENDER_MAX_ORIGIN_NAMES=2", "TENDER_NODE_GROUP_BY=id", operated)
		for _, id := range []string{"one", "two", "three"} {
			c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode(id)})
			c.Subscribe(typeRDS, dir+"a")
			expectNames(t, c.Recv(t.Context()), typeRDS, dir+"a")
		}
		synctest.Wait()
		if got := metricsOf(t, r)["tender_origin_names default"]; got != 1 {
			t.Errorf("got %v names at the origin, want 1", got)
		}
		c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode("one")})
		c.Subscribe(typeRDS, dir+"b", dir+"c")
		sleep(10 * time.Second)
		var got []string
		for resp := c.TryRecv(); resp != nil; resp = c.TryRecv() {
			got = append(got, resp.Names()...)
		}
		// c is over the limit. It is subscribed to nevertheless if the shared view has not counted b yet. Then a Delta
		// client receives a removal of c, which does not exist.
		if want := []string{dir + "b"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		expectQuiet(t, c, time.Minute)
	})
}
