package conformance_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// A tracedRelay is a relay whose spans and log are recorded.
type tracedRelay struct {
	*running
	spans *tracetest.InMemoryExporter
}

// startTraced runs a relay with recorded spans.
func startTraced(t testing.TB, o *relaytest.Origin, env ...string) *tracedRelay {
	t.Helper()
	r := &tracedRelay{spans: tracetest.NewInMemoryExporter()}
	r.running = startRelay(t,
		instance.Options{Origins: []*relaytest.Origin{o}, Options: relay.Options{Spans: r.spans}}, env...)
	return r
}

// await waits for n spans of a name, and returns all of them.
func (r *tracedRelay) await(name string, n int) tracetest.SpanStubs {
	r.t.Helper()
	for deadline := time.Now().Add(relaytest.Patience); ; time.Sleep(time.Millisecond) { // polls
		all := slices.DeleteFunc(r.spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name != name })
		if len(all) == n {
			return all
		}
		if len(all) > n || time.Now().After(deadline) {
			r.t.Fatalf("%d spans %s, want %d", len(all), name, n)
		}
	}
}

// forgetFirst drops the spans of the first response, once one with each name has ended.
func (r *tracedRelay) forgetFirst(names ...string) {
	r.t.Helper()
	for _, name := range names {
		r.await(name, 1)
	}
	r.spans.Reset()
}

// wantNoEmptyAttributes fails the test if a span has an attribute without a value.
func (r *tracedRelay) wantNoEmptyAttributes() {
	r.t.Helper()
	for _, s := range r.spans.GetSpans() {
		for _, kv := range s.Attributes {
			if kv.Value.String() == "" {
				r.t.Errorf("span %s has an empty attribute %s", s.Name, kv.Key)
			}
		}
	}
}

// awaitDelivery waits for the span of the delivery with a nonce.
func (r *tracedRelay) awaitDelivery(nonce string) tracetest.SpanStub {
	r.t.Helper()
	// polls
	for deadline := time.Now().Add(relaytest.Patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, s := range r.spans.GetSpans() {
			if s.Name == "deliver" && attributes(s, "nonce") == "nonce="+nonce {
				return s
			}
		}
	}
	r.t.Fatalf("no span for the delivery %s", nonce)
	return tracetest.SpanStub{}
}

// attributes formats a span's attributes of these names.
func attributes(s tracetest.SpanStub, names ...string) string {
	var out []string
	for _, name := range names {
		for _, kv := range s.Attributes {
			if string(kv.Key) == "tender."+name {
				out = append(out, name+"="+kv.Value.String())
			}
		}
	}
	return strings.Join(out, " ")
}

// subscribed returns a client that has received and ACKed the clusters.
func (r *tracedRelay) subscribed(id string, auto bool) *relaytest.Client {
	r.t.Helper()
	c := r.Client(relaytest.ClientOptions{Node: relaytest.EnvoyNode(id), AutoAck: auto})
	c.Subscribe(relaytest.ClusterType)
	if auto {
		c.WaitState(r.t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "a") })
	} else {
		c.Ack(c.Recv(r.t.Context()))
	}
	return c
}

// B.43: a change is one trace: receipt of the origin's response, application, fan-out and deliveries. A sample of
// the ACKed deliveries and each NACKed one has a span. The fan-out ends with the last ACK or NACK and has their
// latencies.
func TestB43_TraceOfAChange(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	r := startTraced(t, o, "TENDER_TRACE_DELIVERIES=2", "TENDER_TRACE_SLOW=off", "TENDER_NODE_GROUP_BY=none")
	for i := range 3 {
		r.subscribed(fmt.Sprintf("n%d", i), true)
	}
	rejecting := r.subscribed("rejects", false)
	r.forgetFirst("fanout", "origin.receive")

	o.Put(relaytest.Cluster("a", "other"))
	resp := rejecting.Recv(t.Context())
	r.await("deliver", 2) // the first and the third of three
	rejecting.Nack(resp, "no such thing")
	fan := r.await("fanout", 1)[0]
	receive, apply, deliver := r.await("origin.receive", 1)[0], r.await("cache.apply", 1)[0], r.await("deliver", 3)

	for _, step := range []struct{ child, parent tracetest.SpanStub }{{apply, receive}, {fan, apply}, {deliver[0], fan},
		{deliver[1], fan}, {deliver[2], fan}} {
		c, p := step.child, step.parent
		if c.Parent.SpanID() != p.SpanContext.SpanID() || c.SpanContext.TraceID() != receive.SpanContext.TraceID() ||
			c.StartTime.Before(p.StartTime) {
			t.Errorf("span %s is not a child of %s: %+v, %+v", c.Name, p.Name, c, p)
		}
	}
	for _, tt := range []struct {
		span  tracetest.SpanStub
		want  string
		names []string
	}{
		{receive, "type_url=" + relaytest.ClusterType + " resources=1 removed=0",
			[]string{"type_url", "resources", "removed"}},
		{apply, "changed=1 new=0 followed=true", []string{"changed", "new", "followed"}},
		{fan, "streams=4 accepted=3 rejected=1 unanswered=0 resources=1",
			[]string{"streams", "accepted", "rejected", "unanswered", "resources"}},
		{deliver[2], "node=rejects group=all nonce=" + resp.Nonce + " outcome=rejected",
			[]string{"node", "group", "nonce", "outcome"}},
	} {
		if got := attributes(tt.span, tt.names...); got != tt.want {
			t.Errorf("span %s has the attributes %q, want %q", tt.span.Name, got, tt.want)
		}
	}
	for _, name := range []string{"took.p50", "took.p99", "took.max"} {
		if attributes(fan, name) == "" {
			t.Errorf("the fan-out lacks the attribute %s: %v", name, fan.Attributes)
		}
	}
	if last := deliver[2]; last.Status.Description != "no such thing" || fan.EndTime.Before(last.EndTime) ||
		last.Events[0].Name != "sent" || last.Events[0].Time.After(last.EndTime) {
		t.Errorf("the NACKed delivery is %+v, the fan-out ended %v", last, fan.EndTime)
	}
	for _, want := range []string{"client rejected a response", "trace_id=" + receive.SpanContext.TraceID().String(),
		"span_id=" + deliver[2].SpanContext.SpanID().String()} {
		r.Log.Await(t, 0, want) // it is logged after the spans end
	}
}

// B.43: a delivery of several changes is a child of the oldest change, and has links to the others. A slow
// delivery has a span even if its change was not sampled.
func TestB43_TraceOfMergedChanges(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	r := startTraced(t, o, "TENDER_TRACE_DELIVERIES=1", "TENDER_ACK_WAIT=1m")
	c := r.subscribed("slow", false)
	r.forgetFirst("fanout", "deliver", "origin.receive")
	first := putAndRecv(t, o, c, "one")
	for i := range 2 { // both wait for the ACK
		o.Put(relaytest.Cluster("a", fmt.Sprint("service", i)))
		r.await("origin.receive", 2+i)
	}
	c.Ack(first)
	c.Ack(c.Recv(t.Context()))
	fans, deliver := r.await("fanout", 3), r.await("deliver", 2)
	slices.SortFunc(fans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	merged := deliver[1]
	if merged.Parent.SpanID() != fans[1].SpanContext.SpanID() || len(merged.Links) != 1 ||
		merged.Links[0].SpanContext.SpanID() != fans[2].SpanContext.SpanID() {
		t.Errorf("the delivery of two changes has the parent %v and the links %v, want %v and %v", merged.Parent.SpanID(),
			merged.Links, fans[1].SpanContext.SpanID(), fans[2].SpanContext.SpanID())
	}
}

// B.43: a slow delivery has a span, even if changes are not sampled.
func TestB43_SlowDeliveriesAreAlwaysTraced(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	r := startTraced(t, o, "TENDER_TRACE_DELIVERIES=1", "TENDER_TRACE_SLOW=1ms")
	c := r.subscribed("slow", false)
	resp := putAndRecv(t, o, c, "one")
	time.Sleep(time.Millisecond) // so that the delivery is slow
	c.Ack(resp)
	slow := r.awaitDelivery(resp.Nonce)
	if !slow.Parent.IsValid() || slow.Parent.IsSampled() ||
		attributes(slow, "node", "outcome") != "node=slow outcome=accepted" ||
		slow.EndTime.Sub(slow.StartTime) < time.Millisecond {
		t.Errorf("the slow delivery is %+v", slow)
	}
	for _, s := range r.spans.GetSpans() {
		if s.Name != "deliver" {
			t.Errorf("got the span %s, although changes are not sampled", s.Name)
		}
	}
}

// B.43: the exemplars of the histograms of delays are the newest fan-out and the newest delivery with a span.
func TestB43_ExemplarsOfDelays(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	r := startTraced(t, o, "TENDER_TRACE_DELIVERIES=1", "TENDER_TRACE_SLOW=off", "TENDER_ADMIN_LISTEN=127.0.0.1:0")
	c := r.subscribed("proxy", false)
	r.forgetFirst("fanout", "deliver")
	for n := range 2 {
		c.Ack(putAndRecv(t, o, c, fmt.Sprint("service-", n)))
		for metric, name := range map[string]string{"propagation": "deliver", "fanout": "fanout"} {
			of := r.await(name, 1)[0].SpanContext
			series, want := "tender_client_"+metric+"_seconds_bucket{", of.SpanID().String()
			if got := r.awaitExemplar(series, want); len(got) != 1 || !strings.Contains(got[0], of.TraceID().String()) {
				t.Errorf("after change %d, %s has the exemplars %q, want one of the trace %s", n, series, got, of.TraceID())
			}
		}
		r.spans.Reset()
	}
}

// awaitExemplar waits until a series in OpenMetrics has an exemplar with a text, and returns all exemplars of the series.
func (r *tracedRelay) awaitExemplar(series, text string) (exemplars []string) {
	r.t.Helper()
	// polls
	for deadline := time.Now().Add(relaytest.Patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		_, page := httpGet(r.t, r.DialAdmin, "/metrics", "application/openmetrics-text; version=1.0.0")
		exemplars = nil
		for line := range strings.Lines(page) {
			if _, exemplar, ok := strings.Cut(line, " # "); ok && strings.HasPrefix(line, series) {
				exemplars = append(exemplars, exemplar)
			}
		}
		if strings.Contains(strings.Join(exemplars, ""), text) {
			return exemplars
		}
	}
	r.t.Fatalf("%s has the exemplars %q, want one with %s", series, exemplars, text)
	return nil
}

// putAndRecv changes a cluster, and returns the client's response with it.
func putAndRecv(t *testing.T, o *relaytest.Origin, c *relaytest.Client, service string) *relaytest.Response {
	t.Helper()
	o.Put(relaytest.Cluster("a", service))
	return c.Recv(t.Context())
}

// B.43, B.36: the client's error message for a Secret is in no span and not in the log.
func TestB43_NoDetailOfSecrets(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(&tlspb.Secret{Name: "s"})
	r := startTraced(t, o)
	c := r.Client(relaytest.ClientOptions{})
	c.Subscribe(relaytest.SecretType, "s")
	c.Nack(c.Recv(t.Context()), "private key xyz is bad")
	if nacked := r.await("deliver", 1)[0]; !strings.HasSuffix(nacked.Status.Description, "are not shown") ||
		strings.Contains(fmt.Sprint(nacked), "xyz") {
		t.Errorf("the span of a NACKed Secret is %+v", nacked)
	}
	o.Put(relaytest.Cluster("a"))
	c.Subscribe(relaytest.ClusterType)
	c.Recv(t.Context()) // requests are processed in order
	if log := r.Log.String(); !strings.Contains(log, "client rejected a response") || strings.Contains(log, "xyz") {
		t.Errorf("want the NACK in the log, without its error message:\n%s", log)
	}
}

// B.43: spans are exported as the OTEL_ variables configure it. Without these there are none.
func TestB43_TracesAreExported(t *testing.T) {
	requests := make(chan *collectorpb.ExportTraceServiceRequest, 16)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		m := new(collectorpb.ExportTraceServiceRequest)
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, m) != nil {
			t.Errorf("%s: %v, %d bytes", r.URL, err, len(body))
			return
		}
		requests <- m
	}))
	defer collector.Close()
	endpoint := "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	for _, tt := range []struct {
		exporter, endpoint string
		want               map[string]int
	}{
		{"", collector.URL + "/v1/traces",
			map[string]int{"client.subscribe": 1, "origin.request": 1, "origin.receive": 4, "cache.apply": 4, "fanout": 4,
				"deliver": 4, "failed fanout": 1, "failed deliver": 1}},
		{"none", collector.URL + "/v1/traces", map[string]int{}},
		{"", "", map[string]int{}},
	} {
		t.Setenv("OTEL_TRACES_EXPORTER", tt.exporter)
		t.Setenv(endpoint, tt.endpoint)
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_TRACE_DELIVERIES=1")
		c := r.Client(relaytest.ClientOptions{})
		c.Subscribe(relaytest.ClusterType)
		c.Ack(c.Recv(t.Context()))
		c.Ack(putAndRecv(t, o, c, "one"))
		c.Nack(putAndRecv(t, o, c, "two"), "no")
		putAndRecv(t, o, c, "three") // stays unanswered
		r.Stop()                     // exports the remaining spans
		names := map[string]int{}
		for len(requests) > 0 {
			for _, from := range (<-requests).ResourceSpans {
				for _, scope := range from.ScopeSpans {
					for _, span := range scope.Spans {
						names[span.Name]++
						if span.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR {
							names["failed "+span.Name]++
						}
					}
				}
			}
		}
		if diff := cmp.Diff(tt.want, names); diff != "" {
			t.Errorf("OTEL_TRACES_EXPORTER=%q, %s=%q: exported spans (-want +got):\n%s", tt.exporter, endpoint, tt.endpoint,
				diff)
		}
	}
}

// B.43: a change of a name that groups share, and that has its own view, is one trace, too.
func TestB43_TraceOfASharedName(t *testing.T) {
	const name = "xdstp://authority/envoy.config.cluster.v3.Cluster/a"
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster(name))
	r := startTraced(t, o)
	c := r.Client(relaytest.ClientOptions{Node: relaytest.EnvoyNode("n")})
	c.Subscribe(relaytest.ClusterType, name)
	c.Ack(c.Recv(t.Context()))
	r.forgetFirst("fanout", "client.subscribe", "origin.receive")
	o.Put(relaytest.Cluster(name, "other"))
	c.Ack(c.Recv(t.Context()))
	fan, applied, receive := r.await("fanout", 1)[0], r.await("cache.apply", 2), r.await("origin.receive", 1)[0]
	if fan.Parent.SpanID() != applied[1].SpanContext.SpanID() ||
		applied[1].Parent.SpanID() != receive.SpanContext.SpanID() ||
		attributes(fan, "streams", "accepted") != "streams=1 accepted=1" {
		t.Errorf("want the fan-out %+v to be a child of %+v, and that one of %+v", fan, applied[1], receive)
	}
}

// B.43: the span of a request to the origin has a link to the client subscription that caused it.
func TestB43_TraceOfASubscription(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	r := startTraced(t, o, "TENDER_NODE_GROUP_BY=none")
	r.subscribed("first", true)
	r.subscribed("second", true) // needs no request to the origin
	c := r.subscribed("third", true)
	c.Subscribe(relaytest.EndpointType, "x", "y")
	requests, subscriptions := r.await("origin.request", 2), r.await("client.subscribe", 3)
	var got []string
	for _, request := range requests {
		for _, l := range request.Links {
			at := slices.IndexFunc(subscriptions,
				func(s tracetest.SpanStub) bool { return s.SpanContext.SpanID() == l.SpanContext.SpanID() })
			if at < 0 || subscriptions[at].Links[0].SpanContext.SpanID() != request.SpanContext.SpanID() {
				t.Errorf("the request %v has a link to %v, of the subscriptions %v", request, l, subscriptions)
				continue
			}
			got = append(got, attributes(request, "names")+" for "+attributes(subscriptions[at], "node"))
		}
	}
	anonymous := r.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("")})
	anonymous.Subscribe(relaytest.EndpointType, "z")
	r.await("client.subscribe", 4)
	r.wantNoEmptyAttributes()
	want := []string{"names=0 for node=first", "names=2 for node=third", "names=2 for node=third"}
	if !slices.Equal(got, want) {
		t.Errorf("got the requests %q, want %q", got, want)
	}
}
