package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// rejecting returns a server option that ends streams with the error that refuse returns for the node ID of the first
// request. errSilent means that the stream stays open without a response.
func rejecting(refuse func(node string) error) grpc.ServerOption {
	return grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		s := &refusedStream{ServerStream: ss, refuse: refuse}
		if err := handler(srv, s); s.err == nil {
			return err
		}
		return s.err
	})
}

// errSilent is a result of the function for rejecting.
var errSilent = status.Error(codes.Unknown, "silent")

// A refusedStream is a stream whose RecvMsg fails if refuse returns an error for its node.
type refusedStream struct {
	grpc.ServerStream
	refuse func(string) error
	err    error
}

// RecvMsg implements grpc.ServerStream.
func (s *refusedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if req, ok := m.(*discoverypb.DeltaDiscoveryRequest); ok && req.GetNode() != nil {
		if s.err = s.refuse(req.GetNode().GetId()); errors.Is(s.err, errSilent) {
			<-s.Context().Done()
		}
		return s.err
	}
	return nil
}

// multiTenant is an origin with two addresses, of which the first rejects streams, and several views of one session.
type multiTenant struct {
	*rig // the view of the healthy tenant
	two  *relaytest.Origin
}

// inTenants runs a test with the view of a healthy tenant, whose node ID is "relay", and a view for each other node ID.
func inTenants(t *testing.T, refuse func(node string) error, others []string, test func(t *testing.T, w *multiTenant)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		one := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: "one", ServerOptions: []grpc.ServerOption{rejecting(refuse)}})
		w := &multiTenant{two: relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: "two"})}
		w.rig = viewSync(t, one, upstream.Config{Targets: []string{one.Target(), w.two.Target()}, DialOptions: relaytest.DialOptions(one, w.two)})
		w.put(clusters, numbered(10)...)
		w.watch.SubscribeAll(clusters)
		ctx, cancel := context.WithCancel(t.Context())
		var mirrors sync.WaitGroup
		for _, name := range others {
			view, writer := cache.New(cache.Config{})
			view.Watch().SubscribeAll(clusters)
			mirrors.Go(func() {
				w.session.Sync(ctx, &corepb.Node{Id: name}, writer, slog.New(slog.DiscardHandler), upstream.NewControl(false, nil))
			})
		}
		test(t, w)
		cancel()
		mirrors.Wait()
	})
}

// TestH01_OneGroupDoesNotFailOverOthers: failed streams of one group cause no failover, and the other groups are served
// without interruption.
func TestH01_OneGroupDoesNotFailOverOthers(t *testing.T) {
	for _, code := range []codes.Code{codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.NotFound, codes.Unavailable, codes.Internal, codes.OK, codes.Unknown} {
		t.Run(code.String(), func(t *testing.T) {
			refusals := new(atomic.Int64)
			refuse := func(node string) error {
				if node != "denied" {
					return nil
				}
				refusals.Add(1)
				switch code {
				case codes.OK:
					return status.FromContextError(context.Canceled).Err()
				case codes.Unknown:
					return errSilent
				}
				return status.Error(code, "not you")
			}
			inTenants(t, refuse, []string{"denied"}, func(t *testing.T, w *multiTenant) {
				w.pass(confirmed)
				streams := w.streams()
				w.pass(longAfter)
				if s := w.session.Stats(); s.Failovers != 0 || len(w.two.State().Streams) != 0 {
					t.Errorf("%d failovers and %d streams to the second address, want none", s.Failovers, len(w.two.State().Streams))
				}
				w.wantClusters("long after", 10)
				if !w.view.Generation().First().Connected {
					t.Error("the healthy group is not connected")
				}
				// The healthy group keeps its stream. The streams of the other group back off to 30s.
				if n := int64(w.streams()-streams) - refusals.Load(); n > 1 || code != codes.Unknown && refusals.Load() < 50 || refusals.Load() > 30*60/20 {
					t.Errorf("%d refused streams and %d others, want one refused every 24 to 36 s and no others", refusals.Load(), n)
				}
			})
		})
	}
}

// TestH01_RejectionsDoNotFailOver: rejections of all groups cause no failover.
func TestH01_RejectionsDoNotFailOver(t *testing.T) {
	refuse := func(string) error { return status.Error(codes.PermissionDenied, "no") }
	inTenants(t, refuse, []string{"another"}, func(t *testing.T, w *multiTenant) {
		w.pass(longAfter)
		check.Equal(t, "failovers", w.session.Stats().Failovers, 0)
	})
}

// TestH01_LoadBalancerWithoutBackends: the address accepts connections, and all of its streams end with UNAVAILABLE, so
// the relay fails over. If one stream received a response, it does not.
func TestH01_LoadBalancerWithoutBackends(t *testing.T) {
	for _, healthy := range []bool{false, true} {
		t.Run(fmt.Sprintf("healthy=%v", healthy), func(t *testing.T) {
			refuse := func(node string) error {
				if healthy && node == "relay" {
					return nil
				}
				return status.Error(codes.Unavailable, "no healthy upstream")
			}
			inTenants(t, refuse, []string{"b", "c"}, func(t *testing.T, w *multiTenant) {
				w.pass(time.Minute)
				if n := w.session.Stats().Failovers; n != map[bool]int64{false: 1, true: 0}[healthy] {
					t.Errorf("%d failovers, want one only without a healthy group", n)
				}
				if got, want := len(w.two.State().Open()), map[bool]int{false: 3, true: 0}[healthy]; got != want {
					t.Errorf("%d streams to the second address, want %d", got, want)
				}
			})
		})
	}
}

// TestH01_RestartDoesNotFailOver: one failed attempt may be a restart of the control plane, and causes no failover. Two
// failed attempts cause one.
func TestH01_RestartDoesNotFailOver(t *testing.T) {
	inTenants(t, func(string) error { return nil }, []string{"b", "c", "d"}, func(t *testing.T, w *multiTenant) {
		w.pass(confirmed)
		for range 20 {
			w.Restart()
			w.pass(10 * time.Second)
		}
		check.Equal(t, "failovers after restarts", w.session.Stats().Failovers, 0)
		w.Stop()
		w.pass(time.Minute)
		if n := w.session.Stats().Failovers; n != 1 || len(w.two.State().Open()) != 4 {
			t.Errorf("%d failovers, %d streams to the second address; want 1 and 4", n, len(w.two.State().Open()))
		}
	})
}
