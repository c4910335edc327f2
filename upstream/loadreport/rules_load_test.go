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
	streams atomic.Int64 // in all
	open    atomic.Int64
}

func (l *lrsOrigin) StreamLoadStats(rpc lrspb.LoadReportingService_StreamLoadStatsServer) error {
	l.streams.Add(1)
	l.open.Add(1)
	defer l.open.Add(-1)
	if err := rpc.Send(&lrspb.LoadStatsResponse{LoadReportingInterval: durationpb.New(10 * time.Second)}); err != nil {
		return err
	}
	for {
		if _, err := rpc.Recv(); err != nil {
			return nil // the client has left
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

// TestB40_LoadReportsFailOver: load reports fail over to the next address by themselves. Clients may report load and
// subscribe to nothing, so that there is no other stream.
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
		expect("at first", 1, 0)
		one.Stop()
		pass(10 * time.Second)
		expect("without the first", 1, 1)
		one.Restart()
		two.Stop()
		pass(10 * time.Second)
		expect("without the second", 2, 1)
		stop()
		<-ended
		if err := session.Close(); err != nil {
			t.Error(err)
		}

		// A stream for each client, which is the client's to open again.
		one.Stop()
		two.Restart()
		session = open()
		if _, err := loadreport.Open(t.Context(), session); status.Code(err) != codes.Unavailable {
			t.Errorf("a client's stream to an address that is down: %v, want UNAVAILABLE", err)
		}
		pass(time.Second)
		if _, err := loadreport.Open(t.Context(), session); status.Code(err) != codes.Unavailable {
			t.Errorf("the second stream to an address that is down: %v, want UNAVAILABLE", err)
		}
		again, leave := context.WithCancel(t.Context())
		if _, err := loadreport.Open(again, session); err != nil {
			t.Errorf("the next one: %v, want a stream", err)
		}
		pass(time.Second)
		expect("passed through", 2, 2)
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
		expect("without the first", 0, 2)
		one.Restart()
		time.Sleep(9 * time.Minute)
		expect("the first is back for nine minutes", 0, 2)
		time.Sleep(2 * time.Minute)
		expect("for eleven", 1, 0)
		for err == nil {
			err = client.RecvMsg(new(lrspb.LoadStatsResponse))
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("the client's stream ended with %v, want UNAVAILABLE", err)
		}
		if _, err = loadreport.Open(ctx, session); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		expect("the client has come again", 2, 0)
		stop()
		<-ended
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	})
}
