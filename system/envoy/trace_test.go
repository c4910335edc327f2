package envoy_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// A collector receives spans by OTLP over HTTP.
type collector struct {
	t   *testing.T
	url string

	mu    sync.Mutex
	spans []span // guarded by mu
}

// A span is a received span, with the service.instance.id of the relay that exported it.
type span struct {
	*tracepb.Span
	relay string
}

// newCollector starts a collector that is stopped when t ends.
func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{t: t}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := new(collectorpb.ExportTraceServiceRequest)
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, request) != nil {
			t.Errorf("%s: %v, %d bytes", r.URL, err, len(body))
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, from := range request.GetResourceSpans() {
			relay := textOf(from.GetResource().GetAttributes(), "service.instance.id")
			for _, scope := range from.GetScopeSpans() {
				for _, s := range scope.GetSpans() {
					c.spans = append(c.spans, span{s, relay})
				}
			}
		}
	}))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

// textOf returns the text of an attribute; empty if there is none.
func textOf(attributes []*commonpb.KeyValue, key string) string {
	for _, kv := range attributes {
		if kv.GetKey() == key {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}

// env returns the variables of a relay that exports its spans to the collector soon.
func (c *collector) env(relay string) []string {
	return []string{
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + c.url + "/v1/traces", "OTEL_BSP_SCHEDULE_DELAY=50",
		"OTEL_RESOURCE_ATTRIBUTES=service.instance.id=" + relay,
		"TENDER_NODE_ID=" + relay, "TENDER_TRACE_DELIVERIES=1", "TENDER_TRACE_SLOW=off",
	}
}

// in returns the received spans of a trace, by relay, name and, for deliveries, node.
func (c *collector) in(trace []byte) map[string]span {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := make(map[string]span)
	for _, s := range c.spans {
		if !bytes.Equal(s.GetTraceId(), trace) {
			continue
		}
		name := strings.TrimSpace(s.relay + " " + s.GetName() + " " + textOf(s.GetAttributes(), "tender.node"))
		if _, twice := found[name]; twice {
			c.t.Errorf("the trace %x has two spans %s", trace, name)
		}
		found[name] = s
	}
	return found
}

// delivery returns the span of a relay's delivery of endpoints to a node, of a change that was made at a time or later. It
// is an error if there is none.
func (c *collector) delivery(relay, node string, made time.Time) (*tracepb.Span, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		of := s.GetAttributes()
		if s.relay == relay && s.GetName() == "deliver" && textOf(of, "tender.node") == node &&
			textOf(of, "tender.type_url") == relaytest.EndpointType && int64(s.GetStartTimeUnixNano()) >= made.UnixNano() {
			return s.Span, nil
		}
	}
	return nil, fmt.Errorf("the collector has no span of a delivery by %s to %s", relay, node)
}

// parents has the parent of each span in the trace of a change at region-a, as collector.in names them.
var parents = map[string]string{
	"region-a origin.receive": "",
	"region-a cache.apply":    "region-a origin.receive",
	"region-a fanout":         "region-a cache.apply",
	"region-a deliver zone":   "region-a fanout",
	"zone origin.receive":     "region-a fanout",
	"zone cache.apply":        "zone origin.receive",
	"zone fanout":             "zone cache.apply",
	"zone deliver edge-0":     "zone fanout",
	"zone deliver edge-1":     "zone fanout",
	"zone deliver slow":       "zone fanout",
}

// TestEnvoy_TraceThroughTiers: relays of two regions, a zone relay below one of them, and Envoys. Each change is one
// trace with the spans of all tiers, in order, and the other region has a trace of its own. A proxy that is slow to send
// its ACK is visible in the trace that begins at the top: its delivery and the fan-out of the zone relay end last (B.43).
// So it is among the clients of the relay at the top, by name, until it has sent its ACK (B.49).
func TestEnvoy_TraceThroughTiers(t *testing.T) {
	matrix(t, ads, func(t *testing.T, c client) {
		spans, plane := newCollector(t), envoytest.NewControlPlane(t)
		backends := []*envoytest.Backend{envoytest.NewBackend(t, "backend-0"), envoytest.NewBackend(t, "backend-1")}
		plane.Put(web("one", backends[0])...)
		regionA := envoytest.StartRelay(t, plane.Addr, spans.env("region-a")...)
		regionB := envoytest.StartRelay(t, plane.Addr, spans.env("region-b")...)
		zone := envoytest.StartRelay(t, regionA.Addr, spans.env("zone")...)
		var loads []*envoytest.Load
		var envoys []*envoytest.Envoy
		for id, server := range map[string]string{"edge-0": zone.Addr, "edge-1": zone.Addr, "edge-2": regionB.Addr} {
			e := envoytest.Start(t, c.options(server, id))
			envoys = append(envoys, e)
			loads = append(loads, envoytest.StartLoad(t, e.Listener("web"), interval))
		}
		slow := newSlow(t, zone.Addr)
		o := &outcome{t: t}
		for change := 1; change <= 3; change++ {
			next, made := backends[change%2], time.Now()
			plane.Put(relaytest.Endpoints("one", next.Addr))
			resp := slow.Recv(t.Context())
			for _, l := range loads {
				o.answers(l, next)
			}
			await := func(of *envoytest.RelayProcess, relay, node string) (trace []byte) {
				of.Await("span of a delivery", func() error {
					s, err := spans.delivery(relay, node, made)
					trace = s.GetTraceId()
					return err
				})
				return trace
			}
			// The deliveries to the Envoys have ended before the slow proxy answers.
			trace, other := await(zone, "zone", "edge-0"), await(regionB, "region-b", "edge-2")
			await(zone, "zone", "edge-1")
			regionA.Await("slow proxy among the clients below", func() error { return below(regionA, 2, "slow") })
			slow.Ack(resp)
			regionA.Await("all clients below in sync", func() error { return below(regionA, 3) })
			zone.Await("complete trace", func() error { return incompleteTrace(spans.in(trace)) })
			checkTrace(t, spans.in(trace))
			if bytes.Equal(trace, other) {
				t.Errorf("change %d: region-a and region-b have the same trace %x, want two", change, trace)
			}
		}
		for i, l := range loads {
			o.judge(envoys[i], l.Stop())
		}
	})
}

// below returns an error unless a relay knows of a number of clients of the zone relay that are in sync, and of those that
// are behind, by name.
func below(of *envoytest.RelayProcess, inSync int, behind ...string) error {
	var got admin.Clients
	if err := json.Unmarshal(of.Get("/api/v1/clients"), &got); err != nil {
		return err
	}
	var names []string
	for _, c := range got.Clients { // the streams of the zone relay
		if c.Below != nil {
			for _, worst := range c.Below.Worst {
				names = append(names, worst.NodeID)
			}
		}
	}
	counts := got.Totals.Below
	if counts == nil || counts.InSync != inSync || counts.Clients != inSync+len(behind) || !slices.Equal(names, behind) {
		return fmt.Errorf("the relay counts %+v and names %q, want %d clients in sync and %q behind", counts, names, inSync, behind)
	}
	return nil
}

// newSlow returns a client of a relay that subscribes to the assignment "one" and sends ACKs when the test does.
func newSlow(t *testing.T, relay string) *relaytest.Client {
	t.Helper()
	conn, err := grpc.NewClient(relay, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test has ended
	slow := relaytest.NewClient(t, conn, relaytest.ClientOptions{Node: relaytest.EnvoyNode("slow")})
	slow.Subscribe(relaytest.ClusterType)
	slow.Ack(slow.Recv(t.Context()))
	slow.Subscribe(relaytest.EndpointType, "one")
	slow.Ack(slow.Recv(t.Context()))
	return slow
}

// incompleteTrace returns an error unless a trace has all spans of a change.
func incompleteTrace(trace map[string]span) error {
	if len(trace) < len(parents) {
		return fmt.Errorf("the trace has the spans %q", slices.Sorted(maps.Keys(trace)))
	}
	return nil
}

// checkTrace checks the parents and the order of the spans of a change, and that the slow proxy is visible.
func checkTrace(t *testing.T, trace map[string]span) {
	t.Helper()
	ids := map[string]string{"": ""} // name by span ID
	for name, s := range trace {
		ids[hex.EncodeToString(s.GetSpanId())] = name
	}
	got := make(map[string]string)
	for name, s := range trace {
		parent := ids[hex.EncodeToString(s.GetParentSpanId())]
		got[name] = parent
		if above, ok := trace[parent]; ok && s.GetStartTimeUnixNano() < above.GetStartTimeUnixNano() {
			t.Errorf("%s begins before its parent %s", name, parent)
		}
	}
	if diff := cmp.Diff(parents, got); diff != "" {
		t.Errorf("parents of the spans (-want +got):\n%s", diff)
	}
	last := trace["zone deliver slow"].GetEndTimeUnixNano()
	for name, s := range trace {
		if end := s.GetEndTimeUnixNano(); name != "zone fanout" && name != "zone deliver slow" && end >= last {
			t.Errorf("%s ends %d ns after the delivery to the slow proxy, want before", name, end-last)
		}
	}
	if trace["zone fanout"].GetEndTimeUnixNano() < last {
		t.Error("the fan-out of the zone relay ends before the delivery to the slow proxy")
	}
}
