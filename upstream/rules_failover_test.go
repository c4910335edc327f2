package upstream_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
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
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// rejecting returns a server option that ends streams with the error that refuse returns for the node ID of the first
// request. errSilent means that the stream stays open without a response, io.EOF that it ends with OK.
func rejecting(refuse func(node string) error) grpc.ServerOption {
	return grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		s := &refusedStream{ServerStream: ss, refuse: refuse}
		switch err := handler(srv, s); {
		case s.err == nil:
			return err
		case errors.Is(s.err, io.EOF):
			return nil
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
				w.session.Sync(ctx, &corepb.Node{Id: name}, pending.New(writer, nil), slog.New(slog.DiscardHandler), upstream.NewControl(false, nil))
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

// endings are the ends of streams that an address may send to all groups.
var endings = []codes.Code{
	codes.OK, codes.Canceled, codes.Unknown, codes.InvalidArgument, codes.DeadlineExceeded, codes.NotFound,
	codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition, codes.Aborted, codes.Internal,
	codes.Unavailable, codes.Unauthenticated,
}

// TestH01_AddressThatEndsAllStreams: the relay fails over from an address that accepts connections and ends all streams
// with any code, such as a load balancer without backends. If one stream received a response, it does not.
func TestH01_AddressThatEndsAllStreams(t *testing.T) {
	for _, code := range endings {
		for _, healthy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/healthy=%v", code, healthy), func(t *testing.T) {
				refuse := func(node string) error {
					if healthy && node == "relay" {
						return nil
					}
					return cmp.Or(status.Error(code, "not here"), io.EOF)
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
}

// TestB40_AddressesOfOneName: an address that ends all streams, also that of the probe, is left after two attempts for
// another address of the same name, then for the next target.
func TestB40_AddressesOfOneName(t *testing.T) {
	for _, code := range endings {
		for _, bad := range []string{"one", "one two", ""} {
			t.Run(fmt.Sprintf("%v/%s", code, bad), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					end := func(address string) relaytest.OriginOptions {
						refuse := func(string) error {
							if !strings.Contains(bad, address) {
								return nil
							}
							return cmp.Or(status.Error(code, "not here"), io.EOF)
						}
						return relaytest.OriginOptions{Memory: true, Address: address, ServerOptions: []grpc.ServerOption{rejecting(refuse)}}
					}
					one, two, next := relaytest.NewOrigin(t, end("one")), relaytest.NewOrigin(t, end("two")), relaytest.NewOrigin(t, end("next"))
					name := t.Name()
					hosts.Set(t, name, "one", "two")
					r := viewSync(t, next, upstream.Config{
						Targets: []string{"dns:///" + name, next.Target()}, DialOptions: relaytest.DialOptions(one, two, next),
					})
					for _, o := range []*relaytest.Origin{one, two, next} {
						o.Apply(func(tx *relaytest.Tx) { putIn(tx, clusters, "a@1") })
					}
					r.watch.SubscribeAll(clusters)
					probed := make(chan error, 1)
					go func() { // ends with the probe
						probed <- r.session.Probe(t.Context(), upstream.Probe{
							Node: &corepb.Node{Id: "probe"}, TypeURL: clusters, Opened: func() {}, Failed: func(error) {},
						})
					}()
					r.membersAfter(20*time.Second, "members", clusters, "a@1")
					check.OK(t, <-probed)
					want := map[string]int64{"one two": 1}[bad]
					check.Equal(t, "failovers", r.session.Stats().Failovers, want)
					left := r.log.count("origin address ends all streams")
					if bad == "" && left > 0 || bad == "one" && left > 1 {
						t.Errorf("%d addresses were left", left)
					}
					checkFailed(t, r.session.Status().Failed, "dns:///"+name, bad, left)
					if n := len(one.State().Streams) + len(two.State().Streams); n > 12 {
						t.Errorf("%d streams to the addresses of the name, want two of each user for each address, and one more", n)
					}
				})
			})
		}
	}
}

// checkFailed checks the failed addresses of a name: the whole target if both addresses are bad, and otherwise the
// address that was left. Each has the error of the last stream.
func checkFailed(t *testing.T, failed []upstream.FailedAddress, target, bad string, left int) {
	t.Helper()
	if len(failed) != min(left, 1) {
		t.Fatalf("%d failed addresses, %d were left: %+v", len(failed), left, failed)
	}
	for _, f := range failed {
		want := map[string]string{"one": "one", "one two": ""}[bad]
		if age := time.Since(f.At); f.Target != target || f.Address != want || age <= 0 || age > 20*time.Second {
			t.Errorf("failed: %+v, want %q of %s", f, want, target)
		}
		if err := f.Err.Error(); !strings.Contains(err, "not here") && !strings.Contains(err, "closed the stream without a response") {
			t.Errorf("failed because of %q, want the error of the stream", err)
		}
	}
}

// TestB40_VirtualAddress: a name with one address may have several servers. If one ends all streams, a new connection
// reaches another. With a healthy group, the connection stays.
func TestB40_VirtualAddress(t *testing.T) {
	for _, healthy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var origin atomic.Pointer[relaytest.Origin]
			refuse := func(node string) error {
				if origin.Load().State().Connections > 2 || healthy && node == "relay" {
					return nil
				}
				return status.Error(codes.Internal, "no database")
			}
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, ServerOptions: []grpc.ServerOption{rejecting(refuse)}})
			origin.Store(o)
			r := viewSync(t, o, upstream.Config{})
			r.put(clusters, "a@1")
			r.watch.SubscribeAll(clusters)
			r.follow(listeners, "l@1")
			view, writer := cache.New(cache.Config{})
			view.Watch().SubscribeAll(clusters)
			ctx, cancel := context.WithCancel(t.Context())
			var other sync.WaitGroup
			other.Go(func() {
				r.session.Sync(ctx, &corepb.Node{Id: "other"}, pending.New(writer, nil), slog.New(slog.DiscardHandler), upstream.NewControl(false, nil))
			})
			r.membersAfter(time.Minute, "members", clusters, "a@1")
			if got, want := o.State().Connections, map[bool]int{true: 1, false: 3}[healthy]; got != want {
				t.Errorf("healthy=%v: %d connections, want %d", healthy, got, want)
			}
			cancel()
			other.Wait()
		})
	}
}

// TestB40_LeftAddressReturns: an address that was left is used again when the others of its name are unreachable.
func TestB40_LeftAddressReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Pointer[string]
		origin := func(address string) *relaytest.Origin {
			refuse := func(string) error {
				if is := broken.Load(); is != nil && *is == address {
					return status.Error(codes.Internal, "no database")
				}
				return nil
			}
			return relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: address, ServerOptions: []grpc.ServerOption{rejecting(refuse)}})
		}
		one, two := origin("one"), origin("two")
		hosts.Set(t, "pair", "one", "two")
		r := viewSync(t, one, upstream.Config{Targets: []string{"dns:///pair"}, DialOptions: relaytest.DialOptions(one, two)})
		r.watch.SubscribeAll(clusters)
		for i := range 6 {
			served, other, is := one, two, "one"
			if i%2 == 1 {
				served, other, is = two, one, "two"
			}
			broken.Store(&is)
			served.Stop() // its streams end, and new ones are refused
			served.Restart()
			r.pass(2 * time.Minute)
			if len(other.State().Open()) != 1 || len(served.State().Open()) != 0 {
				t.Fatalf("round %d: no stream to the address that serves, which the relay had left before", i)
			}
			broken.Store(nil)
			other.Stop()
			r.pass(2 * time.Minute)
			if len(served.State().Open()) != 1 || len(r.session.Status().Failed) > 0 {
				t.Fatalf("round %d: no stream to the address that was left, although the other is unreachable", i)
			}
			other.Restart()
		}
	})
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
