package conformance_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/codec"
)

// R139: load reporting is off by default. Clients get UNIMPLEMENTED, and the relay opens no stream of load reports
// to the origin.
func TestR139_LoadReportingIsOffByDefault(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{nil, {"TENDER_LRS=off"}} {
		loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
			r := start(t, o, env...)
			p := r.reports(loadNode("a"))
			p.expectEnd(codes.Unimplemented)
			if n := loads.streamCount(); n != 0 {
				t.Errorf("the origin had %d streams of load reports", n)
			}
		})
	}
}

// R139: the relay accepts load reports on the address of ADS, and sends them to the origin on the connection of
// ADS.
func TestR139_LoadReportsShareAddressAndConnection(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"passthrough", "aggregate"} {
		loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
			o.Put(relaytest.Cluster("a"))
			r := start(t, o, "TENDER_LRS="+mode)
			c := r.Client(relaytest.ClientOptions{Node: loadNode("a")})
			c.Subscribe(typeCDS)
			recvAndAck(t, c, typeCDS, "a")
			p := r.reports(loadNode("a"))
			loads.stream(t, 0).requestReports(t, 10*time.Second)
			expectEqual(t, mode+": requested", p.requestedReports(), "10s all")
			if n := o.State().Connections; n != 1 {
				t.Errorf("%s: %d connections to the origin, want 1", mode, n)
			}
		})
	}
}

// loadRaw opens a stream of load reports on which messages are bytes.
func loadRaw(t *testing.T, r *running) grpc.ClientStream {
	t.Helper()
	rpc, err := r.Conn().NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		lrspb.LoadReportingService_StreamLoadStats_FullMethodName, grpc.ForceCodecV2(codec.Bytes{}),
		grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return rpc
}

// mustMarshal encodes m with an unknown field appended.
func mustMarshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return protowire.AppendBytes(protowire.AppendTag(b, 7777, protowire.BytesType), []byte("unknown"))
}

// B.29, B.41: in passthrough mode each client has its own stream to the origin, and all messages are passed on
// unchanged. The relay only adds headers that name the relays on the way.
func TestB29_PassthroughIsUnchanged(t *testing.T) {
	t.Parallel()
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		r := start(t, o, "TENDER_LRS=passthrough")
		for i := range 3 {
			rpc := loadRaw(t, r)
			sent := [][]byte{
				mustMarshal(t, &lrspb.LoadStatsRequest{Node: relaytest.GRPCNode(fmt.Sprint("client", i))}),
				mustMarshal(t, &lrspb.LoadStatsRequest{ClusterStats: []*endpointpb.ClusterStats{load("a", "z", 1, 2)}}),
			}
			for _, m := range sent {
				if err := rpc.SendMsg(m); err != nil {
					t.Fatal(err)
				}
			}
			st := loads.stream(t, i)
			request := &lrspb.LoadStatsResponse{Clusters: []string{"a", "b"},
				LoadReportingInterval: durationpb.New(time.Millisecond)}
			request.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 7777, protowire.BytesType),
				[]byte("unknown")))
			st.send(t, request)
			var got []byte
			if err := rpc.RecvMsg(&got); err != nil {
				t.Fatal(err)
			}
			if want, _ := proto.Marshal(request); !bytes.Equal(got, want) {
				t.Errorf("client %d was sent %x, want %x", i, got, want)
			}
			for n, m := range st.requests() {
				if encoded, err := proto.Marshal(m); err != nil || !bytes.Equal(encoded, sent[n]) {
					t.Errorf("client %d, message %d: the origin got %x (%v), want %x", i, n, encoded, err, sent[n])
				}
			}
			if n := len(st.requests()); n != 2 {
				t.Errorf("client %d: the origin got %d messages, want 2", i, n)
			}
		}
	})
}

// B.29: in passthrough mode the end of either stream ends both. The client gets the origin's status, and the
// origin sees the client's end.
func TestB29_PassthroughEnds(t *testing.T) {
	t.Parallel()
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		r := start(t, o, "TENDER_LRS=passthrough")
		a, b, c, d := r.reports(loadNode("a")), r.reports(loadNode("b")), r.reports(loadNode("c")), r.reports(loadNode("d"))
		a.disconnect()
		if !loads.stream(t, 0).ended() || loads.stream(t, 1).ended() {
			t.Error("client a disconnected: want exactly its stream to the origin ended")
		}
		if err := b.rpc.CloseSend(); err != nil {
			t.Fatal(err)
		}
		b.expectEnd(codes.OK) // the origin ended it when the client had closed its side
		loads.stream(t, 2).end <- status.Error(codes.ResourceExhausted, "too many")
		c.expectEnd(codes.ResourceExhausted)
		d.expectEnd()
		o.Stop()
		d.expectEnd(codes.Unavailable)
		sleep(time.Second)
		r.reports(loadNode("e")).expectEnd(codes.Unavailable)
		o.Restart()
		sleep(10 * time.Second)
		e := r.reports(loadNode("e"))
		loads.stream(t, 4).requestReports(t, time.Second)
		expectEqual(t, "requested after the origin's restart", e.requestedReports(), "1s all")
	})
}

// The first request must have a Node. A stream that sends none in time, a request without Node, or an invalid
// message ends, in both modes.
func TestR139_FirstRequestCarriesNode(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"passthrough", "aggregate"} {
		loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
			r := start(t, o, "TENDER_LRS="+mode, "TENDER_FIRST_REQUEST_TIMEOUT=3s", "TENDER_MAX_STREAMS=1")
			nameless := r.reports(nil)
			nameless.report(load("a", "z", 1, 1))
			nameless.expectEnd(codes.InvalidArgument)
			silent := r.reports(nil)
			sleep(3*time.Second - time.Millisecond)
			silent.expectEnd()
			r.reports(loadNode("one too many")).expectEnd(codes.ResourceExhausted)
			sleep(time.Millisecond)
			silent.expectEnd(codes.DeadlineExceeded)
			rpc := loadRaw(t, r)
			if err := rpc.SendMsg([]byte("\xff")); err != nil {
				t.Fatal(err)
			}
			if err := rpc.RecvMsg(new([]byte)); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: after an invalid message: %v, want InvalidArgument", mode, err)
			}
			if n := loads.streamCount(); n != 0 {
				t.Errorf("%s: the origin had %d streams of load reports", mode, n)
			}
			r.reports(loadNode("good")).expectEnd()
		})
	}
}

// B.29: endpoint loads are passed on once the origin requests them, even between two reports.
func TestB29_EndpointsInReports(t *testing.T) {
	t.Parallel()
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		r := start(t, o, "TENDER_LRS=aggregate")
		a := r.reports(loadNode("a"))
		st := loads.stream(t, 0)
		st.requestReports(t, time.Second)
		a.report(endpointLoad("one"))
		st.send(t, &lrspb.LoadStatsResponse{SendAllClusters: true, ReportEndpointGranularity: true})
		a.report(endpointLoad("two"))
		sleep(time.Second)
		got := st.requests()
		var endpoints []string
		for _, c := range got[len(got)-1].GetClusterStats() {
			for _, e := range c.GetUpstreamLocalityStats()[0].GetUpstreamEndpointStats() {
				endpoints = append(endpoints, c.GetClusterName()+" "+e.GetAddress().GetPipe().GetPath())
			}
		}
		expectEqual(t, "endpoints", fmt.Sprint(endpoints), "[two /run/backend]")
	})
}

// endpointLoad returns the load of a cluster with the load of one endpoint.
func endpointLoad(cluster string) *endpointpb.ClusterStats {
	c := load(cluster, "z", 1, 1)
	c.UpstreamLocalityStats[0].UpstreamEndpointStats = []*endpointpb.UpstreamEndpointStats{{
		Address:             &corepb.Address{Address: &corepb.Address_Pipe{Pipe: &corepb.Pipe{Path: "/run/backend"}}},
		TotalIssuedRequests: 1,
	}}
	return c
}

// B.29: a send of a report to the origin times out after 5 s. The first report on the next stream contains the
// load of reports that were not sent.
func TestB29_OriginThatDoesNotRead(t *testing.T) {
	t.Parallel()
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		r := start(t, o, "TENDER_LRS=aggregate")
		a := r.reports(loadNode("a"))
		loads.stream(t, 0).end <- nil
		loads.pauseReading(true)
		sleep(2 * time.Second)
		st := loads.stream(t, 1)
		st.requestReports(t, 10*time.Second)
		loads.pauseReading(false)
		var filler []*endpointpb.ClusterStats
		for i := range 40 {
			filler = append(filler, &endpointpb.ClusterStats{ClusterName: fmt.Sprint(i, strings.Repeat("x", 4<<10))})
		}
		// Reports fill the buffers until one blocks, and its stream ends before the next report is due.
		last := 0
		for ; loads.streamCount() == 2; last++ {
			if last == 10 {
				t.Fatalf("sent %d reports to an origin that does not read", last)
			}
			a.report(append(filler, load("one", "z", 1<<last, 0))...)
			sleep(10 * time.Second)
		}
		st = loads.stream(t, 2)
		st.requestReports(t, 10*time.Second)
		sleep(10 * time.Second)
		got, _ := st.last()
		if want := fmt.Sprintf(", one z:%d+0 -2 in 30s", 3<<last>>2); !strings.HasSuffix(got, want) {
			t.Errorf("first report on the next stream: got …%s, want …%s, the load of the last two",
				got[max(0, len(got)-100):],
				want)
		}
	})
}

// R135: after a stream of load reports that the origin ended without a response, the next one is opened after 1,
// 1.6, 2.56 … s (±20 %), else within half a second. If the origin does not implement the service, the relay
// retries every few minutes and logs it once.
func TestR135_LoadReportsBackOff(t *testing.T) {
	t.Parallel()
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		r := start(t, o, "TENDER_LRS=aggregate")
		a := r.reports(loadNode("a"))
		ends := func(want time.Duration) {
			t.Helper()
			n := loads.streamCount()
			st := loads.stream(t, n-1)
			st.end <- status.Error(codes.Unavailable, "go away")
			sleep(want * 8 / 10)
			if got := loads.streamCount(); got != n {
				t.Errorf("reopened within %v", want*8/10)
			}
			sleep(want*4/10 + time.Millisecond)
			if got := loads.streamCount(); got != n+1 {
				t.Errorf("not reopened within %v", want*12/10)
			}
		}
		wait := time.Second
		for range 5 {
			ends(wait)
			wait = wait * 16 / 10
		}
		st := loads.stream(t, 5)
		st.requestReports(t, 10*time.Second)
		st.end <- nil
		sleep(500 * time.Millisecond)
		if n := loads.streamCount(); n != 7 {
			t.Fatalf("%d streams half a second after one with a response, want 7", n)
		}
		ends(time.Second)

		loads.refusestreams(status.Error(codes.Unimplemented, "no load reports here"))
		loads.stream(t, 7).end <- status.Error(codes.Unimplemented, "no more")
		sleep(59 * time.Minute)
		if n := loads.streamCount() - 8; n < 59/6 || n > 59/4+1 {
			t.Errorf("opened %d streams in an hour, want about 12", n)
		}
		if n := r.Log.Count("origin does not accept load reports"); n != 1 {
			t.Errorf("logged %d times that the origin does not accept load reports, want once", n)
		}
		loads.refusestreams(nil)
		sleep(6 * time.Minute)
		loads.stream(t, loads.streamCount()-1).requestReports(t, 20*time.Second)
		expectEqual(t, "requested once the origin accepts reports", a.requestedReports(), "10s all, 20s all")
		if n := r.Log.Count("origin accepts load reports again"); n != 2 {
			t.Errorf("logged %d times that the origin accepts load reports again, want twice", n)
		}
		a.expectEnd()
	})
}

// R134: when the relay drains, streams of load reports end like other streams: with OK for clients that got a
// response. Reported load is passed on before.
func TestR134_LoadReportsDrain(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"passthrough", "aggregate"} {
		loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
			r := start(t, o, "TENDER_LRS="+mode, "TENDER_NODE_GROUP_BY=id")
			a, b := r.reports(loadNode("a")), r.reports(loadNode("b"))
			st := loads.stream(t, 0)
			st.requestReports(t, 10*time.Second)
			a.report(load("one", "z", 1, 0))
			sleep(2 * time.Second)
			if mode == "aggregate" { // the last report is delayed
				o.Freeze(true)
				time.AfterFunc(500*time.Millisecond, func() { o.Freeze(false) })
			}
			began := time.Now()
			r.Stop()
			got := st.requests() // when the relay has stopped
			want := map[string]string{"passthrough": "one z:1+0 -1 in 1h0m0s", "aggregate": "one z:1+0 -1 in 2s"}[mode]
			expectEqual(t, mode+": last report", showLoad(got[len(got)-1]), want)
			a.expectEnd(codes.OK)
			b.expectEnd(codes.Unavailable)
			if d := time.Since(began); d > time.Second {
				t.Errorf("%s: draining took %v, want at most 1s", mode, d)
			}
		})
	}
}

// A stream whose client does not read the origin's requests ends. Other clients are not affected.
func TestB12_StalledLoadReportClient(t *testing.T) {
	t.Parallel()
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		r := start(t, o, "TENDER_LRS=aggregate", "TENDER_SEND_TIMEOUT=30s")
		stalled := loadRaw(t, r)
		if err := stalled.SendMsg(mustMarshal(t, &lrspb.LoadStatsRequest{Node: loadNode("deaf")})); err != nil {
			t.Fatal(err)
		}
		a := r.reports(loadNode("a"))
		st := loads.stream(t, 0)
		for i := range 10 {
			st.requestReports(t, time.Hour, fmt.Sprint(i, strings.Repeat("x", 20<<10)))
		}
		sleep(30 * time.Second)
		if n := strings.Count(a.requestedReports(), "1h0m0s"); n != 10 {
			t.Errorf("the other client got %d requests, want 10", n)
		}
		if n := r.Streams(); n != 1 {
			t.Errorf("%d streams are open, want that of the other client", n)
		}
		n, err := 0, error(nil)
		for ; err == nil; n++ {
			err = stalled.RecvMsg(new([]byte))
		}
		if status.Code(err) != codes.Unavailable || n > 9 {
			t.Errorf("the client that did not read got %d messages and %v, want fewer than 10 and Unavailable", n, err)
		}
		synctest.Wait()
	})
}
