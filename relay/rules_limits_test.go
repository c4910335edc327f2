package relay_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/relaytest"
)

// B.35: who wants more than a limit allows is told RESOURCE_EXHAUSTED and the name of the
// variable, and counted; streams that there are go on.
func TestB35_WhoWantsMoreThanALimitAllowsIsTold(t *testing.T) {
	for _, tt := range []struct {
		limit downstream.Limit
		value string
		code  codes.Code
		ask   func(c *relaytest.Client)
	}{
		{downstream.LimitStreams, "1", codes.ResourceExhausted, func(*relaytest.Client) {}},
		{downstream.LimitNames, "2", codes.ResourceExhausted, func(c *relaytest.Client) { c.Subscribe(streamRDS, "a", "b", "c") }},
		{downstream.LimitNames, "2", codes.ResourceExhausted, func(c *relaytest.Client) {
			c.Subscribe(streamRDS, "a", "b")
			c.Subscribe(streamEDS, "a")
		}},
		{downstream.LimitNameBytes, "64B", codes.InvalidArgument, func(c *relaytest.Client) { c.Subscribe(streamRDS, strings.Repeat("n", 65)) }},
		{downstream.LimitRequest, "4KiB", codes.ResourceExhausted, func(c *relaytest.Client) { c.Subscribe(streamRDS, strings.Repeat("n", 4<<10)) }},
		{downstream.LimitTypes, "1", codes.ResourceExhausted, func(c *relaytest.Client) { c.Subscribe(streamAcmeType, "a") }},
		{downstream.LimitGlobs, "1", codes.ResourceExhausted, func(c *relaytest.Client) {
			c.Subscribe(streamRDS, "xdstp:///envoy.config.route.v3.RouteConfiguration/a/*", "xdstp:///envoy.config.route.v3.RouteConfiguration/b/*")
		}},
		{downstream.LimitGroupGlobs, "1", codes.ResourceExhausted, func(c *relaytest.Client) {
			c.Subscribe(streamRDS, "xdstp:///envoy.config.route.v3.RouteConfiguration/a/*", "xdstp:///envoy.config.route.v3.RouteConfiguration/b/*")
		}},
		{downstream.LimitGroups, "1", codes.ResourceExhausted, func(c *relaytest.Client) { c.Subscribe(streamCDS) }},
	} {
		t.Run(tt.limit.String(), func(t *testing.T) {
			streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Put(relaytest.Cluster("a"))
				env := []string{tt.limit.String() + "=" + tt.value}
				if tt.limit == downstream.LimitGroups {
					env = append(env, "TENDER_NODE_GROUP_BY=id")
				}
				r := start(t, o, true, env...)
				stays := r.client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
				stays.Subscribe(streamCDS)
				streamHas(t, stays.Recv(t.Context()), streamCDS, "a")
				c := r.client(relaytest.ClientOptions{Variant: relaytest.Delta, Node: relaytest.EnvoyNode("other"), AutoAck: true})
				tt.ask(c)
				err := c.WaitEnd(t.Context())
				named := strings.HasSuffix(status.Convert(err).Message(), "("+tt.limit.String()+")")
				if status.Code(err) != tt.code || !named && tt.limit != downstream.LimitRequest { // of which gRPC tells clients
					t.Errorf("the client was told %v, want %v and the variable", err, tt.code)
				}
				synctest.Wait()
				if s := r.Stats(); s.Refused[tt.limit] != 1 || s.Ended[downstream.EndedRefused] != 1 || s.Streams != 1 {
					t.Errorf("counted: %+v, want 1 refused for the limit, and 1 stream", s)
				}
				o.Put(relaytest.Cluster("a", "changed"))
				streamHas(t, stays.Recv(t.Context()), streamCDS, "a")
			})
		})
	}
}
