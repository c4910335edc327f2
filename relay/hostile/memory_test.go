package hostile_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// mebibyte is one, in bytes.
const mebibyte = 1 << 20

// peak returns by how much the heap in use grows at most while something happens, in bytes.
func peak(act func()) int64 {
	before := heap()
	over, peaks := make(chan struct{}), make(chan int64)
	go func() { // awaited below
		var most int64
		for {
			most = max(most, heap())
			select {
			case <-over:
				peaks <- most
				return
			default:
			}
		}
	}()
	act()
	close(over)
	return max(<-peaks, before) - before
}

// B.35: bodies of polls that are not whole are charged to their peer, over HTTP/1.1 and HTTP/2, and none has memory taken for it that
// the limit does not have.
func TestB35_BodiesThatAreNeverWhole(t *testing.T) {
	const limit, polls = 16 * mebibyte, 100
	v := serve(t, fmt.Sprint("TENDER_MAX_BUFFERED_REQUEST_BYTES=", limit), "TENDER_MAX_REQUEST_BYTES=4MiB", "TENDER_FIRST_REQUEST_TIMEOUT=1m")
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
				go func() {                             // likewise
					line, _ := bufio.NewReader(conn).ReadString('\n')
					answers <- strings.TrimSpace(line)
				}()
			}
			for range polls - limit/guard.UnreadOfPeer/mebibyte { // at most so many may wait
				if got := <-answers; !strings.Contains(got, " 429 ") {
					t.Errorf("a poll that has more than its part was answered %q, want 429", got)
				}
			}
		})
		// Of the 100 MiB that are sent, the part of one peer may be held, and what a hundred connections take on both sides. A
		// collection also counts as live what is allocated while it runs.
		if most := int64(limit/guard.UnreadOfPeer + 24*mebibyte); grown > most {
			t.Errorf("the heap has grown by %d bytes, want at most %d", grown, most)
		}
	})
	if n := v.Stats().Refused[guard.LimitUnread]; n == 0 {
		t.Error("no poll was counted as one too many")
	}
}

// B.35: of a body, as many values are built as names may be asked for, and some more for the Node.
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
			t.Errorf("the heap has grown by %d bytes, want at most %d", grown, most)
		}
	})
}

// B.35: of a load report, no more is built than it may have.
func TestB35_ALoadReportOfNothing(t *testing.T) {
	v := serve(t, "TENDER_LRS=aggregate", "TENDER_FIRST_REQUEST_TIMEOUT=10m") // a slow machine takes long to send the report
	stats := &endpointpb.ClusterStats{ClusterName: "a"}
	for range 200_000 {
		stats.UpstreamLocalityStats = append(stats.UpstreamLocalityStats, nil)
	}
	for i := range stats.UpstreamLocalityStats {
		stats.UpstreamLocalityStats[i] = empty
	}
	report := &lrspb.LoadStatsRequest{Node: &corepb.Node{Id: "n"}, ClusterStats: []*endpointpb.ClusterStats{stats}}
	v.during(func() {
		rpc, err := lrspb.NewLoadReportingServiceClient(v.Conn()).StreamLoadStats(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		if err := rpc.Send(report); err != nil {
			t.Error(err)
			return
		}
		if _, err := rpc.Recv(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "more than 100000 clusters") {
			t.Errorf("a report of 200,000 localities was answered %v, want RESOURCE_EXHAUSTED", err)
		}
	})
	if n := v.Stats().Refused[guard.LimitRequest]; n != 1 {
		t.Errorf("%d requests were counted as too large, want 1", n)
	}
}

var empty = new(endpointpb.UpstreamLocalityStats)

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

// B.32: what compressed requests become is charged to their peer before memory is taken for it.
func TestB32_ManyCompressedBombs(t *testing.T) {
	const limit, streams = 16 * mebibyte, 60
	v := serve(t, fmt.Sprint("TENDER_MAX_BUFFERED_REQUEST_BYTES=", limit), "TENDER_MAX_REQUEST_BYTES=4MiB", "TENDER_REQUEST_COMPRESSION=gzip")
	node := &corepb.Node{Id: "n", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
		"k": structpb.NewStringValue(strings.Repeat("\x00", limit/guard.UnreadOfPeer-1000)), // with what is read ahead, more than the peer's part
	}}}
	message, err := proto.Marshal(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType, Node: node})
	if err != nil {
		t.Fatal(err)
	}
	bomb := compressed(t, message)
	message, node = nil, nil
	conn := v.Conn(grpc.WithCompressor(precompressed(bomb))) //nolint:staticcheck // SA1019: a compressor of this connection alone
	v.during(func() {
		var all sync.WaitGroup
		grown := peak(func() {
			for range streams {
				all.Go(func() { // awaited below
					rpc, err := discoverypb.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
					if err == nil {
						err = rpc.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: "what the compressor replaces"})
					}
					if err == nil {
						_, err = rpc.Recv()
					}
					if err == nil {
						t.Error("a bomb was served")
					}
				})
			}
			all.Wait()
		})
		if most := int64(4 * limit); grown > most { // a quarter of what sixty bombs become; sixty streams, and what is garbage by the time of a look, take their part
			t.Errorf("the heap has grown by %d bytes, want at most %d", grown, most)
		}
	})
	if n := v.Stats().Refused[guard.LimitUnread]; n == 0 {
		t.Error("no request was counted as too large for its peer")
	}
	v.await("nothing is charged any more", func() bool { return v.Stats().Unread == 0 })
}

// precompressed is a compressor that has done its work: whatever is sent is this.
type precompressed []byte

// Do implements grpc.Compressor.
func (p precompressed) Do(w io.Writer, _ []byte) error {
	_, err := w.Write(p)
	return err
}

// Type implements grpc.Compressor.
func (p precompressed) Type() string { return "gzip" }
