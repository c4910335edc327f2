package faults_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// metric returns the sum of all series of a metric.
func (r met) metric(name string) (sum float64) {
	r.tb.Helper()
	for line := range strings.Lines(string(r.page("/metrics"))) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if family, _, _ := strings.Cut(series, "{"); family != name {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			r.tb.Fatalf("%s: %v", line, err)
		}
		sum += v
	}
	return sum
}

// TestB12_C24_MoreChangesThanLinksCanTake: there are far more changes than the links of some clients can carry. These
// clients receive the newest version whenever their link has capacity, and the relay buffers no others. Other clients
// receive each change at once.
func TestB12_C24_MoreChangesThanLinksCanTake(t *testing.T) {
	t.Parallel()
	const (
		size    = 32 << 10
		changes = 1000
		rate    = 2 * size // bytes per second of each slow connection
		most    = 16 << 20 // allowed growth of the heap; all versions together have 31 MiB
	)
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	newest := putBlob(origin, size, 0)
	r := serve(t, "TENDER_ORIGIN="+origin.Addr(), "TENDER_ACK_WAIT=1m")
	link := proxy.New(t, r.addr)
	link.Set(proxy.Link{Down: proxy.Way{Rate: rate}})
	var slow []*relaytest.Client
	for _, v := range variants {
		c := relaytest.NewClient(t, connect(t, link.Addr()), relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode("slow " + v.String())})
		c.Subscribe(blobType)
		c.WaitState(t.Context(), newest)
		slow = append(slow, c)
	}
	fast := relaytest.NewLightClient(t, r.conn(), relaytest.LightOptions{Node: relaytest.EnvoyNode("fast")})
	fast.Subscribe(blobType)
	fast.WaitState(t.Context(), newest)

	heap, began := r.metric("go_memstats_next_gc_bytes"), time.Now()
	for i := range changes {
		newest = putBlob(origin, size, i+1)
		fast.WaitState(t.Context(), newest)
	}
	var told int
	for _, c := range slow {
		told += len(c.Responses())
	}
	took := time.Since(began)
	for _, c := range slow {
		c.WaitState(t.Context(), newest)
	}
	for _, c := range slow {
		told -= len(c.Responses())
	}
	if after := -told; after > 2*len(slow) {
		t.Errorf("%d responses after the last change, want at most one in transit and the newest for each of %d clients", after, len(slow))
	}
	for _, c := range slow {
		// The capacity of the link in that time, and a margin for responses before and after it.
		if n, could := len(c.Responses()), int(took.Seconds()*rate/size)+4; n > could {
			t.Errorf("%v received %d responses in %v, want at most %d", c, n, took, could)
		}
	}
	if n := r.metric("tender_client_changes_coalesced_total"); n < changes/2 {
		t.Errorf("%v changes are counted as coalesced, want most of %d", n, changes)
	}
	if grown := r.metric("go_memstats_next_gc_bytes") - heap; grown > most {
		t.Errorf("the heap grew by %.0f bytes, want at most %d", grown, most)
	}
}

// TestB35_MoreDemandThanALimitAllows: a client exceeds each limit of the relay. The relay counts it, and ends the
// stream with an error that names the limit. For limits of names, it refuses only the names. Other clients are
// still served.
func TestB35_MoreDemandThanALimitAllows(t *testing.T) {
	t.Parallel()
	const globs = "xdstp:///envoy.config.route.v3.RouteConfiguration/"
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	newest := putBlob(origin, 64, 0)
	r := serve(t, "TENDER_ORIGIN="+origin.Addr(), "GOMEMLIMIT=8MiB", "TENDER_NODE_GROUP_BY=id",
		"TENDER_MAX_STREAMS=3", "TENDER_MAX_NAMES=3", "TENDER_MAX_REQUEST_BYTES=8KiB", "TENDER_MAX_GROUPS=2", "TENDER_MAX_ORIGIN_NAMES=2")
	r.AwaitLine(0, "memory use is close to GOMEMLIMIT")
	var stay []*relaytest.Client
	for _, v := range variants {
		c := r.client(v, fmt.Sprint(v))
		c.Subscribe(blobType)
		c.WaitState(t.Context(), newest)
		stay = append(stay, c)
	}
	subscribe := func(typeURL string, names ...string) func(*relaytest.Client) {
		return func(c *relaytest.Client) { c.Subscribe(typeURL, names...) }
	}
	for i, tt := range []struct {
		limit string
		node  string
		code  codes.Code
		ask   func(*relaytest.Client)
	}{
		{"TENDER_MAX_NAMES", "delta", codes.OK, subscribe(relaytest.RouteType, "a", "b", globs+"a/*", globs+"b/*")},
		{"name_bytes", "delta", codes.InvalidArgument, subscribe(relaytest.RouteType, strings.Repeat("n", 4097))},
		{"TENDER_MAX_REQUEST_BYTES", "delta", codes.ResourceExhausted, subscribe(relaytest.RouteType, strings.Repeat("n", 8<<10))},
		{"TENDER_MAX_GROUPS", "another", codes.ResourceExhausted, subscribe(relaytest.ClusterType)},
		{"TENDER_MAX_ORIGIN_NAMES", "delta", codes.OK, subscribe(relaytest.RouteType, "a", "b", "c")},
		{"TENDER_MAX_STREAMS", "delta", codes.ResourceExhausted, func(*relaytest.Client) {}},
	} {
		if tt.limit == "TENDER_MAX_STREAMS" {
			last := r.client(relaytest.SotW, "sotw")
			last.Subscribe(blobType)
			last.WaitState(t.Context(), newest)
			stay = append(stay, last)
		}
		c := r.client(relaytest.Delta, tt.node)
		tt.ask(c)
		if tt.code == codes.OK { // only the names are refused, and the stream stays open
			c.Subscribe(blobType)
			c.WaitState(t.Context(), newest)
			r.counts(fmt.Sprintf(`tender_client_refusals_total\{limit="%s"\} 1`, tt.limit))
			c.Close()
			r.awaits("the end of the stream, whose globs count for the group", func([]byte) bool { return int(r.metric("tender_client_streams")) == len(stay) })
			continue
		}
		err := c.WaitEnd(t.Context())
		if got := status.Convert(err); got.Code() != tt.code || tt.limit != "TENDER_MAX_REQUEST_BYTES" && !strings.HasSuffix(got.Message(), "("+tt.limit+")") {
			t.Errorf("%s: the stream ended with %v, want %v and the limit", tt.limit, err, tt.code)
		}
		r.counts(fmt.Sprintf(`tender_client_refusals_total\{limit="%s"\} 1`, tt.limit))
		newest = putBlob(origin, 64, i+1)
		for _, c := range stay {
			c.WaitState(t.Context(), newest)
			if c.Ended() {
				t.Errorf("%s: the stream of %v ended", tt.limit, c)
			}
		}
	}
	if full := r.metric("tender_memory_utilization"); full < 0.8 {
		t.Errorf("tender_memory_utilization is %v, want more than 0.8", full)
	}
}

// TestB35_NamesBeyondTheRateAreSeen: a client that invents more names than the rate allows is in the log, in the status and in
// the metric of the alert TenderLimitReached. Another client is served.
func TestB35_NamesBeyondTheRateAreSeen(t *testing.T) {
	t.Parallel()
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	origin.Put(relaytest.Cluster("a"))
	r := serve(t, "TENDER_ORIGIN="+origin.Addr())
	inventor := r.client(relaytest.Delta, "inventor")
	for i := range 3 { // the first may take the burst, and the second may exceed the budget
		names := make([]string, 20_000)
		for k := range names {
			names[k] = fmt.Sprintf("none-%d-%d", i, k)
		}
		inventor.Subscribe(relaytest.RouteType, names...)
	}
	line := r.AwaitLine(0, "client rate-limited")
	for _, want := range []string{"name_rate", "too many names in a short time", "127.0.0.1"} {
		if !strings.Contains(line, want) {
			t.Errorf("the log has %s, want %s", line, want)
		}
	}
	r.joins(t, "another", "a")
	r.counts(`tender_client_refusals_total\{limit="name_rate"\} 1`)
	var status admin.Status
	check.OK(t, json.Unmarshal(r.page("/api/v1/status"), &status))
	if got := fmt.Sprint(status.Refusals); !strings.Contains(got, "name_rate") {
		t.Errorf("the status has the refusals %s, want name_rate", got)
	}
}
