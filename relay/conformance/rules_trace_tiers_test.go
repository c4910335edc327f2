package conformance_test

import (
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// below runs a relay below another one, with recorded spans.
func (r *tracedRelay) below(env ...string) *tracedRelay {
	r.t.Helper()
	lower := &tracedRelay{spans: tracetest.NewInMemoryExporter()}
	lower.running = startRelay(r.t, instance.Options{Above: r.Relay, Options: relay.Options{Spans: lower.spans}}, env...)
	return lower
}

// B.43: a change is one trace through three tiers. The receipt at a relay is a child of the fan-out of the relay above, whose
// delivery to it has a span, too. The delivery to a proxy at the bottom is in the trace of the top.
func TestB43_TraceThroughTiers(t *testing.T) {
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		t.Run(v.String(), func(t *testing.T) {
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
			o.Put(relaytest.Cluster("a"))
			protocol := "TENDER_ORIGIN_PROTOCOL=" + v.String()
			top := startTraced(t, o, "TENDER_TRACE_DELIVERIES=0", "TENDER_TRACE_SLOW=off")
			middle := top.below("TENDER_NODE_ID=middle", "TENDER_TRACE_DELIVERIES=0", "TENDER_TRACE_SLOW=off", protocol)
			zone := middle.below("TENDER_NODE_ID=zone", "TENDER_TRACE_DELIVERIES=1", "TENDER_TRACE_SLOW=off", protocol)
			tiers := []*tracedRelay{top, middle, zone}
			proxy := zone.subscribed("proxy", false)
			for _, r := range tiers {
				r.forgetFirst("fanout", "origin.receive")
			}
			proxy.Ack(putAndRecv(t, o, proxy, "one"))
			above := top.await("fanout", 1)[0]
			for _, r := range tiers[1:] {
				receive := r.await("origin.receive", 1)[0]
				if receive.SpanContext.TraceID() != above.SpanContext.TraceID() || receive.Parent.SpanID() != above.SpanContext.SpanID() {
					t.Errorf("the receipt has the parent %v, want the fan-out above %v", receive.Parent, above.SpanContext)
				}
				if got := valueOf(receive, "network.peer.address"); got != "127.0.0.1" || valueOf(receive, "server.port") == "" {
					t.Errorf("the receipt has the attributes %v, want the address of the relay above", receive.Attributes)
				}
				above = r.await("fanout", 1)[0]
			}
			for i, client := range []string{"middle", "zone", "proxy"} {
				deliver := tiers[i].await("deliver", 1)[0]
				if got := attributes(deliver, "node", "outcome"); got != "node="+client+" outcome=accepted" {
					t.Errorf("tier %d has the delivery %q, want that to %s", i, got, client)
				}
				if got := valueOf(deliver, "network.peer.address"); got != "127.0.0.1" {
					t.Errorf("tier %d delivered to the address %q, want 127.0.0.1", i, got)
				}
			}
			last, first := zone.await("deliver", 1)[0], top.await("origin.receive", 1)[0]
			if last.SpanContext.TraceID() != first.SpanContext.TraceID() {
				t.Error("the delivery to the proxy is in another trace than the receipt at the top")
			}
			for _, r := range tiers {
				r.wantNoEmptyAttributes()
			}
		})
	}
}

// valueOf returns an attribute of a span as text; empty if it has none of that name.
func valueOf(s tracetest.SpanStub, name string) string {
	for _, kv := range s.Attributes {
		if string(kv.Key) == name {
			return kv.Value.String()
		}
	}
	return ""
}

// B.43: only a relay is told the trace of a change. The responses to other clients have no unknown field.
func TestB43_OnlyRelaysGetTheTrace(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	r := startTraced(t, o)
	for client, want := range map[string]bool{"envoy": false, "relay": true} {
		node, ctx := relaytest.EnvoyNode(client), t.Context()
		if want {
			ctx = metadata.AppendToOutgoingContext(ctx, wire.RelayHeader, "token")
		}
		stream, err := discoverypb.NewAggregatedDiscoveryServiceClient(r.Conn()).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoverypb.DeltaDiscoveryRequest{Node: node, TypeUrl: relaytest.ClusterType}); err != nil {
			t.Fatal(err)
		}
		var unknown protoreflect.RawFields
		for i := range 2 { // the first response is of no change
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			unknown = resp.ProtoReflect().GetUnknown()
			ack := &discoverypb.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()}
			if err := stream.Send(ack); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				o.Put(relaytest.Cluster("a", client))
			}
		}
		if got := len(unknown) > 0; got != want {
			t.Errorf("a client that is %s got unknown fields %x, want any: %t", client, unknown, want)
		}
	}
}
