package hostile_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// mebibyte is 1 MiB in bytes.
const mebibyte = 1 << 20

// peak returns the maximum growth of the live heap during act, in bytes, as of collections that take a part of the time.
func peak(act func()) int64 {
	before := heap()
	over, peaks := make(chan struct{}), make(chan int64)
	go func() { // awaited below
		again := time.NewTicker(20 * time.Millisecond)
		defer again.Stop()
		var most int64
		for {
			most = max(most, heap())
			select {
			case <-over:
				peaks <- most
				return
			case <-again.C:
			}
		}
	}()
	act()
	close(over)
	return max(<-peaks, before) - before
}

// TestB35_BodiesThatAreNeverWhole: incomplete bodies of polls count against the buffer limit of their client address,
// and the relay allocates no memory beyond the limit. (B.35)
func TestB35_BodiesThatAreNeverWhole(t *testing.T) {
	const limit, polls = 16 * mebibyte, 100
	undo := limitBuffers(limit)
	v := serve(t, "TENDER_MAX_REQUEST_BYTES=4MiB", "TENDER_FIRST_REQUEST_TIMEOUT=1m")
	undo()
	part := []byte(`{"node":{"id":"` + strings.Repeat("x", mebibyte))
	v.during(func() {
		grown := peak(func() {
			answers := make(chan string, polls)
			for range polls {
				conn, err := net.Dial("tcp", v.RESTAddrs()[0].String())
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = conn.Close() }()
				_, err = fmt.Fprintf(conn, "POST /v3/discovery:clusters HTTP/1.1\r\nHost: relay\r\nContent-Length: %d\r\n\r\n", 4*mebibyte)
				if err != nil {
					t.Error(err)
					return
				}
				go func() { _, _ = conn.Write(part) }() // ends with the connection
				go func() {                             // ends with the connection
					line, _ := bufio.NewReader(conn).ReadString('\n')
					answers <- strings.TrimSpace(line)
				}()
			}
			for range polls - limit/guard.UnreadOfPeer/mebibyte { // all polls above the limit of one address
				if got := <-answers; !strings.Contains(got, " 429 ") {
					t.Errorf("a poll above the limit of its address was answered with %q, want 429", got)
				}
			}
		})
		// Of the 100 MiB that are sent, the relay may buffer the share of one address. A hundred connections take
		// memory on both sides. A collection also counts memory as live that is allocated while it runs.
		if most := int64(limit/guard.UnreadOfPeer + 24*mebibyte); grown > most {
			t.Errorf("the heap grew by %d bytes, want at most %d", grown, most)
		}
	})
	if n := v.Stats().Refused[guard.LimitUnread]; n == 0 {
		t.Error("no poll is counted as above the limit")
	}
}

// TestB35_ABodyOfNames: the relay decodes no more values of a JSON body than the limits of names and of the Node
// allow. (B.35)
func TestB35_ABodyOfNames(t *testing.T) {
	v := serve(t)
	body := `{"node":{"id":"n"},"resource_names":[` + strings.Repeat(`"",`, mebibyte) + `""]}`
	v.during(func() {
		grown := peak(func() {
			for range 3 {
				v.poll(strings.NewReader(body), http.StatusRequestEntityTooLarge)
			}
		})
		if most := int64(32 * mebibyte); grown > most {
			t.Errorf("the heap grew by %d bytes, want at most %d", grown, most)
		}
	})
}

// TestB35_ALoadReportOfNothing: the relay refuses a load report with more clusters and localities than the limit.
// (B.35)
func TestB35_ALoadReportOfNothing(t *testing.T) {
	v := serve(t, "TENDER_LRS=aggregate", "TENDER_FIRST_REQUEST_TIMEOUT=10m") // a slow machine takes long to send the report
	report := loadReport(&corepb.Node{Id: "n"}, 200_000)
	v.during(func() {
		ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
		defer cancel()
		rpc, err := lrspb.NewLoadReportingServiceClient(v.Conn()).StreamLoadStats(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		if err := rpc.Send(report); err != nil {
			t.Error(err)
			return
		}
		if _, err := rpc.Recv(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "more than 100000 clusters") {
			t.Errorf("a report of 200,000 localities was answered with %v, want RESOURCE_EXHAUSTED", err)
		}
	})
	if n := v.Stats().Refused[guard.LimitRequest]; n != 1 {
		t.Errorf("%d requests are counted as too large, want 1", n)
	}
}

// loadReport returns a load report with a number of empty localities. They are encoded already, so that the test itself
// does and allocates little.
func loadReport(n *corepb.Node, localities int) *lrspb.LoadStatsRequest {
	stats := &endpointpb.ClusterStats{ClusterName: "a"}
	stats.ProtoReflect().SetUnknown(bytes.Repeat([]byte{2<<3 | byte(protowire.BytesType), 0}, localities)) // upstream_locality_stats
	return &lrspb.LoadStatsRequest{Node: n, ClusterStats: []*endpointpb.ClusterStats{stats}}
}

// compressed returns bytes compressed by gzip.
func compressed(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
