package conformance_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// otherClient connects another client to conn. The returned function checks that it is still served.
func otherClient(t *testing.T, o *relaytest.Origin, conn *grpc.ClientConn) func() {
	t.Helper()
	o.Put(domainRoute("other", "0"))
	c := relaytest.NewClient(t, conn, relaytest.ClientOptions{})
	c.Subscribe(typeRDS, "other")
	recvAndAck(t, c, typeRDS, "other")
	n := 0
	return func() {
		t.Helper()
		n++
		o.Put(domainRoute("other", fmt.Sprint(n)))
		recvAndAck(t, c, typeRDS, "other")
	}
}

// Names and type URLs that are too long end the stream and do not reach the origin. The longest valid ones are
// served.
func TestInput_NamesAreBounded(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		r := start(t, o)
		check := otherClient(t, o, r.Conn())
		longest, tooLong := strings.Repeat("n", 4096), strings.Repeat("n", 4097)
		o.Put(domainRoute(longest, "x"))
		for _, tc := range []struct {
			typeURL, name string
			code          codes.Code
		}{
			{typeRDS, longest, codes.OK},
			{typeRDS, tooLong, codes.InvalidArgument},
			{"type.googleapis.com/" + tooLong, "a", codes.InvalidArgument},
		} {
			c := r.Client(relaytest.ClientOptions{Variant: v})
			c.Subscribe(tc.typeURL, tc.name)
			if tc.code == codes.OK {
				recvAndAck(t, c, tc.typeURL, tc.name)
			} else {
				expectStatus(t, c, tc.code)
			}
		}
		sleep(time.Minute)
		if s := o.State(); !s.Subscribed(typeRDS, longest, "other") || len(s.Names(typeCDS)) > 0 {
			t.Errorf("the origin got subscriptions to %.200q", s.Names(typeRDS))
		}
		check()
	})
}

// The number of types of a view is limited. A request for another type ends the stream. Existing types and those
// of the specification are always served, so that one client cannot block others.
func TestInput_TooManyTypes(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		r := start(t, o)
		check := otherClient(t, o, r.Conn()) // uses the first type
		typeURL := func(i int) string { return fmt.Sprint("type.googleapis.com/acme.T", i) }
		c := r.Client(relaytest.ClientOptions{Variant: v})
		for i := range 64 {
			o.Set(typeURL(i), "a", relaytest.Opaque(typeURL(i), "a", nil), "1")
			c.Subscribe(typeURL(i), "a")
			if i < 63 {
				recvAndAck(t, c, typeURL(i), "a")
			}
		}
		expectStatus(t, c, codes.ResourceExhausted)
		c = r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeURL(1), "a")
		recvAndAck(t, c, typeURL(1), "a")
		o.Put(relaytest.Cluster("a"))
		c.Subscribe(typeCDS, "*")
		recvAndAck(t, c, typeCDS, "a")
		check()
	})
}

// Unknown fields in a request are ignored.
func TestInput_UnknownFieldsAreNoError(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(domainRoute("a", "x"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		unknown := protowire.AppendVarint(protowire.AppendTag(encodeField(4242, "later"), 4243, protowire.VarintType), 1)
		req := newRequest(v, typeRDS, "", "a")
		req.ProtoReflect().SetUnknown(unknown)
		node := proto.CloneOf(relaytest.EnvoyNode("n"))
		node.ProtoReflect().SetUnknown(unknown)
		switch req := req.(type) {
		case *discoverypb.DiscoveryRequest:
			req.Node = node
		case *discoverypb.DeltaDiscoveryRequest:
			req.Node = node
		}
		c.Send(req)
		recvAndAck(t, c, typeRDS, "a")
	})
}

// The client's error message of a NACK is truncated in the log.
func TestInput_LongNACKsAreTruncated(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(domainRoute("a", "x"))
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeRDS, "a")
		resp := c.Recv(t.Context())
		before := len(r.Log.String())
		c.Send(newAnswer(v, &relaytest.Response{TypeURL: typeRDS, Nonce: strings.Repeat("7", 1<<20)}, "",
			strings.Repeat("word", 1<<20), "a"))
		c.Send(newAnswer(v, resp, "", strings.Repeat("word", 1<<20), "a"))
		synctest.Wait()
		if r.Log.Count("client rejected a response") != 2 || r.Log.Count(strings.Repeat("word", 100)) < 2 {
			t.Error("the log does not contain both NACKs")
		}
		if n := len(r.Log.String()) - before; n > 10_000 {
			t.Errorf("two NACKs of 5 MiB made %d bytes of log", n)
		}
	})
}
