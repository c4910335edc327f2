package conformance_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	xdscorepb "github.com/cncf/xds/go/xds/core/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// The relay does not validate resources: one that violates PGV rules reaches the client, and the relay ACKs it.
func TestR003_PayloadsAreNotValidated(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		bad := &clusterpb.Cluster{Name: "bad", ConnectTimeout: durationpb.New(-time.Second)}
		if bad.Validate() == nil {
			t.Fatal("the cluster is valid, so the test has no effect")
		}
		o.Put(bad)
		o.Set(typeCDS, "invalid bytes", &anypb.Any{TypeUrl: typeCDS, Value: []byte{0xff, 0xff}}, "1")
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeCDS, "*")
		var got [][]byte // the client cannot decode a name
		for _, res := range c.Recv(t.Context()).Resources {
			got = append(got, res.Body.GetValue())
		}
		valid, err := proto.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(got, bytes.Compare)
		if want := [][]byte{valid, {0xff, 0xff}}; !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("got % x, want % x", got, want)
		}
		o.WaitFor(t.Context(), "the ACK", func(s *relaytest.OriginState) bool { return s.Type(typeCDS).ACKs == 1 })
		if n := o.State().Type(typeCDS).NACKs; n != 0 {
			t.Errorf("the relay sent %d NACKs", n)
		}
	})
}

// Resources reach every client with the origin's bytes, including unknown fields and unusual encodings.
func TestR004_PayloadsKeepTheirBytes(t *testing.T) {
	t.Parallel()
	odd := protowire.AppendTag(nil, 4242, protowire.BytesType)
	odd = protowire.AppendString(odd, "unknown, and before the name")
	odd = protowire.AppendTag(odd, 1, protowire.BytesType)
	odd = protowire.AppendString(odd, "odd")
	odd = append(odd, 0x20, 0x81, 0x80, 0x00) // field 4, a varint with redundant bytes
	want := &anypb.Any{TypeUrl: typeCDS, Value: odd}
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Set(typeCDS, "odd", want, "1")
		r := start(t, o)
		for _, names := range [][]string{{"*"}, {"odd"}} {
			for how, opts := range map[string]relaytest.ClientOptions{
				"aggregated": {},
				"alone":      {TypeURL: typeCDS},
				"wrapped":    {Node: relaytest.GRPCNode("g")}, // has the wrapper feature
			} {
				opts.Variant = v
				c := r.Client(opts)
				c.Subscribe(typeCDS, names...)
				got := c.Recv(t.Context()).Resources[0].Body
				if !slices.Equal(got.GetValue(), odd) {
					t.Errorf("%s, subscribed to %v: got % x, want % x", how, names, got.GetValue(), odd)
				}
			}
		}
	})
}

// The origin has one connection for any number of clients and node groups.
func TestR014_OneConnectionToTheOrigin(t *testing.T) {
	t.Parallel()
	const connections, streams, groups = 5, 16, 8
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_NODE_GROUP_BY=cluster")
		var clients []*relaytest.LightClient
		for range connections {
			conn := r.Conn()
			for i := range streams {
				node := relaytest.EnvoyNode("n")
				node.Cluster = fmt.Sprint("group", i%groups)
				c := relaytest.NewLightClient(t, conn,
					relaytest.LightOptions{Variant: relaytest.Variant(i / groups % 2), Node: node})
				c.Subscribe(typeCDS, "*")
				clients = append(clients, c)
			}
		}
		for _, c := range clients {
			c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeCDS, "a") })
		}
		s := o.State()
		if s.Connections != 1 || len(s.Streams) != groups {
			t.Errorf("the origin has %d connections and %d streams, want 1 and %d", s.Connections, len(s.Streams), groups)
		}
	})
}

// A client may repeat its Node in every request, as Envoy does. It is not assigned to a group or answered again.
func TestR017_ARepeatedNodeChangesNothing(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:1"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v, NodeAlways: true})
		c.Subscribe(typeCDS, "*")
		recvAndAck(t, c, typeCDS, "a")
		c.Subscribe(typeEDS, "a")
		recvAndAck(t, c, typeEDS, "a")
		expectQuiet(t, c, time.Minute)
		for i := range 5 {
			o.Put(relaytest.Endpoints("a", fmt.Sprint("127.0.0.1:", i+2)))
			recvAndAck(t, c, typeEDS, "a")
		}
		if n := len(o.State().Streams); n != 1 {
			t.Errorf("the origin had %d streams, want 1", n)
		}
	})
}

// A later Node that belongs to another group ends the stream; after the reconnect the client receives the new
// group's set. A Node of the same group has no effect.
func TestR018_ALaterNodeOfAnotherGroupEndsTheStream(t *testing.T) {
	t.Parallel()
	const noOver = "envoy.lb.does_not_support_overprovisioning"
	for _, tc := range []struct {
		name   string
		change func(*corepb.Node)
		ends   bool
	}{
		{"extensions", func(n *corepb.Node) { n.Extensions = []*corepb.Extension{{Name: "more"}} }, false},
		{"id", func(n *corepb.Node) { n.Id = "renamed" }, false},
		{"dynamic parameters", func(n *corepb.Node) {
			n.DynamicParameters = map[string]*xdscorepb.ContextParams{typeCDS: {Params: map[string]string{"shard": "1"}}}
		}, false},
		{"a feature", func(n *corepb.Node) { n.ClientFeatures = []string{"a.b"} }, false},
		{"metadata beside the key", func(n *corepb.Node) {
			n.Metadata.Fields["deep"].GetStructValue().Fields["other"] = structpb.NewStringValue("y")
		}, false},
		{"a feature that changes content", func(n *corepb.Node) {
			n.ClientFeatures = []string{noOver}
		}, true},
		{"metadata of the key", func(n *corepb.Node) {
			n.Metadata.Fields["deep"].GetStructValue().Fields["tier"] = structpb.NewNumberValue(2)
		}, true},
		{"metadata taken away", func(n *corepb.Node) { n.Metadata = nil }, true},
		{"cluster", func(n *corepb.Node) { n.Cluster = "b" }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
				before := groupedNode(nil)
				after := groupedNode(tc.change)
				r := start(t, o, "TENDER_NODE_GROUP_BY=cluster,metadata.deep.tier")
				o.For(func(n *corepb.Node) bool {
					deep, _ := metadataOf(n)["deep"].(map[string]any)
					return n.GetCluster() != "edge" || deep["tier"] != 1.0 || slices.Contains(n.GetClientFeatures(), noOver)
				}).Put(relaytest.Cluster("second"))
				o.Put(relaytest.Cluster("first"))
				c := r.Client(relaytest.ClientOptions{Variant: v, Node: before})
				c.Subscribe(typeCDS, "*")
				first := recvAndAck(t, c, typeCDS, "first")

				for range 2 {
					sendNode(c, v, first, after)
				}
				if !tc.ends {
					expectQuiet(t, c, time.Minute)
					o.Put(relaytest.Cluster("first", "changed"))
					recvAndAck(t, c, typeCDS, "first")
					return
				}
				expectStatus(t, c, codes.Unavailable)
				proto.Reset(before)
				proto.Merge(before, after)
				c.Reconnect(r.Conn())
				expectNames(t, c.Recv(t.Context()), typeCDS, "second")
			})
		})
	}
}

// If the group limit is reached, a later Node of a new group ends the stream with the status that a new stream
// would get. A client that is alone in its group frees its slot.
func TestR018_NoRoomForTheGroupOfALaterNode(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"))
		o.For(func(n *corepb.Node) bool { return n.GetCluster() == "three" }).Put(relaytest.Cluster("third"))
		r := start(t, o, "TENDER_NODE_GROUP_BY=cluster", "TENDER_MAX_GROUPS=2")
		node := func(cluster string) *corepb.Node {
			return groupedNode(func(n *corepb.Node) { n.Cluster = cluster })
		}
		connect := func(cluster string) (*relaytest.Client, *corepb.Node) {
			n := node(cluster)
			c := r.Client(relaytest.ClientOptions{Variant: v, Node: n})
			c.Subscribe(typeCDS, "*")
			return c, n
		}
		one, _ := connect("one")
		stable, _ := connect("one")
		alone, of := connect("two")
		first := recvAndAck(t, one, typeCDS, "a")
		recvAndAck(t, stable, typeCDS, "a")
		last := recvAndAck(t, alone, typeCDS, "a")

		refused, _ := connect("three")
		want := status.Convert(refused.WaitEnd(t.Context()))
		sendNode(one, v, first, node("three"))
		got := status.Convert(one.WaitEnd(t.Context()))
		if got.Code() != codes.ResourceExhausted || got.Message() != want.Message() ||
			!strings.Contains(got.Message(), "TENDER_MAX_GROUPS") {
			t.Errorf("the stream ended with %v, want %v as for a new stream", got, want)
		}

		sendNode(alone, v, last, node("three"))
		expectStatus(t, alone, codes.Unavailable)
		proto.Reset(of)
		proto.Merge(of, node("three"))
		alone.Reconnect(r.Conn())
		expectNames(t, alone.Recv(t.Context()), typeCDS, "third")
		for _, line := range []string{"node group limit reached", "node group limit no longer reached"} {
			if n := r.Log.Count(line); n != 1 {
				t.Errorf("logged %d times %q, want once", n, line)
			}
		}
		o.Put(relaytest.Cluster("a", "changed"))
		recvAndAck(t, stable, typeCDS, "a") // its stream was not affected
	})
}

// sendNode sends a request that changes only the Node.
func sendNode(c *relaytest.Client, v relaytest.Variant, last *relaytest.Response, n *corepb.Node) {
	switch req := newRequest(v, typeCDS, last.Nonce, "*").(type) {
	case *discoverypb.DiscoveryRequest:
		req.Node, req.VersionInfo = n, last.Version
		c.Send(req)
	case *discoverypb.DeltaDiscoveryRequest:
		req.Node, req.ResourceNamesSubscribe = n, nil
		c.Send(req)
	}
}
