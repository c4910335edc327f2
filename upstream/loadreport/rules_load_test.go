package loadreport_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/loadreport"
)

// lrsOrigin is the LRS of an origin that requests a report every 10s.
type lrsOrigin struct {
	lrspb.UnimplementedLoadReportingServiceServer
	streams atomic.Int64 // opened so far
	open    atomic.Int64 // open now
}

// StreamLoadStats implements lrspb.LoadReportingServiceServer. It ignores the reports.
func (l *lrsOrigin) StreamLoadStats(rpc lrspb.LoadReportingService_StreamLoadStatsServer) error {
	l.streams.Add(1)
	l.open.Add(1)
	defer l.open.Add(-1)
	if err := rpc.Send(&lrspb.LoadStatsResponse{LoadReportingInterval: durationpb.New(10 * time.Second)}); err != nil {
		return err
	}
	for {
		if _, err := rpc.Recv(); err != nil {
			return nil // the client has closed the stream
		}
	}
}

// loadOrigin starts an origin with LRS.
func loadOrigin(t *testing.T, address string) (*relaytest.Origin, *lrsOrigin) {
	t.Helper()
	l := new(lrsOrigin)
	return relaytest.NewOrigin(t, relaytest.OriginOptions{
		Address: address, Memory: true,
		Register: func(r grpc.ServiceRegistrar) { lrspb.RegisterLoadReportingServiceServer(r, l) },
	}), l
}

// noLoads is a group without load.
type noLoads struct{}

func (noLoads) Configure(*lrspb.LoadStatsResponse)  {}
func (noLoads) Take() []*endpointpb.ClusterStats    { return nil }
func (noLoads) Return(_ []*endpointpb.ClusterStats) {}

// TestB40_LoadReportsFailOver: load reports fail over to the next address without an ADS stream. There is none if
// clients report load and have no subscriptions.
func TestB40_LoadReportsFailOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, atOne := loadOrigin(t, "one")
		two, atTwo := loadOrigin(t, "two")
		open := func() *upstream.Session {
			session, err := upstream.New(upstream.Config{
				Targets: []string{one.Target(), two.Target()}, DialOptions: relaytest.DialOptions(one, two),
			})
			check.OK(t, err)
			return session
		}
		session := open()
		pass := func(d time.Duration) {
			time.Sleep(d) // virtual
			synctest.Wait()
		}
		expect := func(when string, wantOne, wantTwo int64) {
			t.Helper()
			if gotOne, gotTwo := atOne.streams.Load(), atTwo.streams.Load(); gotOne != wantOne || gotTwo != wantTwo {
				t.Errorf("%s: %d and %d streams, want %d and %d", when, gotOne, gotTwo, wantOne, wantTwo)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // awaited below
			defer close(ended)
			loadreport.Run(ctx, session, &corepb.Node{Id: "relay"}, noLoads{}, slog.New(slog.DiscardHandler))
		}()
		pass(time.Minute)
		expect("initially", 1, 0)
		one.Stop()
		pass(10 * time.Second)
		expect("after the first address has stopped", 1, 1)
		one.Restart()
		two.Stop()
		pass(10 * time.Second)
		expect("after the second address has stopped", 2, 1)
		stop()
		<-ended
		if err := session.Close(); err != nil {
			t.Error(err)
		}

		// The stream of a client fails, and the client must retry.
		one.Stop()
		two.Restart()
		session = open()
		if _, err := loadreport.Open(t.Context(), session); status.Code(err) != codes.Unavailable {
			t.Errorf("first stream of a client to a stopped address: error %v, want UNAVAILABLE", err)
		}
		pass(time.Second)
		if _, err := loadreport.Open(t.Context(), session); status.Code(err) != codes.Unavailable {
			t.Errorf("second stream of a client to a stopped address: error %v, want UNAVAILABLE", err)
		}
		again, leave := context.WithCancel(t.Context())
		if _, err := loadreport.Open(again, session); err != nil {
			t.Errorf("third stream of a client: error %v, want none after the failover", err)
		}
		pass(time.Second)
		expect("after the failover for the client", 2, 2)
		leave()
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestB40_LoadReportsFailBack: load reports fail back to the first address. The reporter of a group sends its remaining
// load there. A client's own stream ends, so that the client reconnects.
func TestB40_LoadReportsFailBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, atOne := loadOrigin(t, "one")
		two, atTwo := loadOrigin(t, "two")
		one.Stop()
		session, err := upstream.New(upstream.Config{
			Targets: []string{one.Target(), two.Target()}, DialOptions: relaytest.DialOptions(one, two),
		})
		check.OK(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // awaited below
			defer close(ended)
			loadreport.Run(ctx, session, &corepb.Node{Id: "relay"}, noLoads{}, slog.New(slog.DiscardHandler))
		}()
		time.Sleep(time.Minute) // virtual
		client, err := loadreport.Open(ctx, session)
		check.OK(t, err)
		expect := func(when string, wantOne, wantTwo int64) {
			t.Helper()
			synctest.Wait()
			if gotOne, gotTwo := atOne.open.Load(), atTwo.open.Load(); gotOne != wantOne || gotTwo != wantTwo {
				t.Errorf("%s: %d and %d streams are open, want %d and %d", when, gotOne, gotTwo, wantOne, wantTwo)
			}
		}
		expect("while the first address is stopped", 0, 2)
		one.Restart()
		time.Sleep(9 * time.Minute)
		expect("9 minutes after the restart of the first address", 0, 2)
		time.Sleep(2 * time.Minute)
		expect("11 minutes after the restart of the first address", 1, 0)
		for err == nil {
			err = client.RecvMsg(new(lrspb.LoadStatsResponse))
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("stream of the client ended with %v, want UNAVAILABLE", err)
		}
		if _, err = loadreport.Open(ctx, session); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		expect("after the client has reconnected", 2, 0)
		stop()
		<-ended
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	})
}
