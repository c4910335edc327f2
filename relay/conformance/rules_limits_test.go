package conformance_test

import (
	"net/http"
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

// B.35: who wants more than a limit allows, other than of names, is told RESOURCE_EXHAUSTED and the
// name of the variable, and counted; streams that there are go on.
func TestB35_WhoWantsMoreThanALimitAllowsIsTold(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit guard.Limit
		value string
		code  codes.Code
		ask   func(c *relaytest.Client)
	}{
		{guard.LimitStreams, "1", codes.ResourceExhausted, func(*relaytest.Client) {}},
		{guard.LimitNameBytes, "64B", codes.InvalidArgument, func(c *relaytest.Client) {
			c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeRDS, InitialResourceVersions: map[string]string{strings.Repeat("n", 65): "1"}})
		}},
		{guard.LimitNameBytes, "64B", codes.InvalidArgument, func(c *relaytest.Client) {
			c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeRDS, ResourceLocatorsSubscribe: []*discoverypb.ResourceLocator{
				{Name: "a", DynamicParameters: map[string]string{"k": strings.Repeat("v", 65)}},
			}})
		}},
		{guard.LimitNodeBytes, "1KiB", codes.InvalidArgument, func(c *relaytest.Client) {
			c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeRDS, Node: &corepb.Node{Id: strings.Repeat("n", 1<<10)}})
		}},
		{guard.LimitNameBytes, "64B", codes.InvalidArgument, func(c *relaytest.Client) { c.Subscribe(typeRDS, strings.Repeat("n", 65)) }},
		{guard.LimitRequest, "4KiB", codes.ResourceExhausted, func(c *relaytest.Client) { c.Subscribe(typeRDS, strings.Repeat("n", 4<<10)) }},
		{guard.LimitTypes, "1", codes.ResourceExhausted, func(c *relaytest.Client) { c.Subscribe(acmeType, "a") }},
		{guard.LimitGroups, "1", codes.ResourceExhausted, func(c *relaytest.Client) { c.Subscribe(typeCDS) }},
	} {
		t.Run(tt.limit.String(), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Put(relaytest.Cluster("a"))
				env := []string{tt.limit.String() + "=" + tt.value}
				if tt.limit == guard.LimitGroups {
					env = append(env, "TENDER_NODE_GROUP_BY=id")
				}
				r := start(t, o, env...)
				stays := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
				stays.Subscribe(typeCDS)
				expectNames(t, stays.Recv(t.Context()), typeCDS, "a")
				c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, Node: relaytest.EnvoyNode("other"), AutoAck: true})
				tt.ask(c)
				err := c.WaitEnd(t.Context())
				named := strings.HasSuffix(status.Convert(err).Message(), "("+tt.limit.String()+")")
				if status.Code(err) != tt.code || !named && tt.limit != guard.LimitRequest { // of which gRPC tells clients
					t.Errorf("the client was told %v, want %v and the variable", err, tt.code)
				}
				synctest.Wait()
				if s := r.Stats(); s.Refused[tt.limit] != 1 || s.Ended[guard.EndedRefused] != 1 || s.Streams != 1 {
					t.Errorf("counted: %+v, want 1 refused for the limit, and 1 stream", s)
				}
				o.Put(relaytest.Cluster("a", "changed"))
				expectNames(t, stays.Recv(t.Context()), typeCDS, "a")
			})
		})
	}
}

// B.35: clients may want so many names of an origin, whoever they are. Those that somebody wants
// already, wildcards, and names in the place of others are served at the limit too, and
// what is given up makes room.
func TestB35_NamesOfAnOriginAreBounded(t *testing.T) {
	t.Parallel()
	const tooMany = "clients want 4 resource names of one origin, it is asked for at most 3 (TENDER_MAX_ORIGIN_NAMES)"
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"), domainRoute("a", "1"), domainRoute("b", "1"), domainRoute("c", "1"))
		r := start(t, o, "TENDER_MAX_ORIGIN_NAMES=3", "TENDER_NODE_GROUP_BY=id", operated)
		client := func(id string) *relaytest.Client {
			return r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode(id)})
		}
		one, two := client("one"), client("client")
		one.Subscribe(typeRDS, "a", "b")
		expectNames(t, one.Recv(t.Context()), typeRDS, "a", "b")
		two.Subscribe(typeRDS, "a") // in a group of its own
		expectNames(t, two.Recv(t.Context()), typeRDS, "a")
		wanted := func(want int) {
			t.Helper()
			synctest.Wait()
			if got := metricsOf(t, r)["tender_origin_names default"]; got != float64(want) {
				t.Errorf("%v names are said to be wanted of the origin, want %d", got, want)
			}
		}
		wanted(3)

		refused := client("client")
		refused.Subscribe(typeRDS, "b")
		expectQuiet(t, refused, time.Second)
		poll := restPoller(t, r, false)
		poll.poll("routes", "", "", "b").expectStatus(http.StatusTooManyRequests, tooMany)
		poll.poll("routes", "", "", "a").expectNames("a")
		all := client("client")
		all.Subscribe(typeCDS)
		expectNames(t, all.Recv(t.Context()), typeCDS, "a")
		wanted(3)

		swap := newRequest(v, typeRDS, "", "b")
		if delta, ok := swap.(*discoverypb.DeltaDiscoveryRequest); ok {
			delta.ResourceNamesUnsubscribe = []string{"a"}
		}
		two.Send(swap)
		expectNames(t, two.Recv(t.Context()), typeRDS, "b")
		wanted(3)
		two.Close()
		wanted(2)
		all.Subscribe(typeRDS, "c")
		expectNames(t, all.Recv(t.Context()), typeRDS, "c")
		wanted(3)
		o.Put(domainRoute("a", "2"))
		expectNames(t, one.Recv(t.Context()), typeRDS, "a")
		if n := r.Stats().Refused[guard.LimitOriginNames]; n != 2 {
			t.Errorf("%d refusals are counted, want 2", n)
		}
	})
}

// R130, B.35: a name that means the same to every node is one name of the origin, however many
// groups want it.
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
			t.Errorf("%v names are said to be wanted of the origin, want 1", got)
		}
		c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode("one")})
		c.Subscribe(typeRDS, dir+"b", dir+"c")
		want := []string{dir + "b"}
		if v == relaytest.Delta {
			want = append(want, "-"+dir+"c")
		}
		expectNames(t, c.Recv(t.Context()), typeRDS, want...)
		expectQuiet(t, c, time.Minute)
	})
}
