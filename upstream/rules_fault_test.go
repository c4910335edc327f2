package upstream_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/memnet"
	"github.com/xdstender/tender/upstream"
)

// TestB9_MalformedResponses: the relay sends a NACK for a response that it cannot decode. Without a nonce or a type, it
// closes the stream instead. The cached resources stay, and the next good response is applied.
func TestB9_MalformedResponses(t *testing.T) {
	typed := protowire.AppendString(protowire.AppendTag(nil, 4, protowire.BytesType), clusters)
	nonced := protowire.AppendString(protowire.AppendTag(typed, 5, protowire.BytesType), "x")
	bad := protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), "\xff\xff\xff")
	removed := protowire.AppendString(protowire.AppendTag(nil, 6, protowire.BytesType), "xdstp://a/t/b?c=1&c=2")
	tests := []struct {
		name  string
		bytes []byte
		ends  bool
		nacks int
	}{
		{"not a message", []byte("\xff\xff\xff\xff"), true, 0},
		{"empty", nil, true, 0},
		{"no type", protowire.AppendString(protowire.AppendTag(nil, 5, protowire.BytesType), "x"), true, 0},
		{"bad resource without a nonce", append(typed[:len(typed):len(typed)], bad...), true, 0},
		{"bad resource with a nonce", append(nonced[:len(nonced):len(nonced)], bad...), false, 1},
		{"xdstp name that has no canonical form", append(nonced[:len(nonced):len(nonced)], removed...), false, 1},
		{"good but without a nonce", typed, false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
				r.put(clusters, "a@1")
				r.watch.SubscribeAll(clusters)
				s := r.Accept(t.Context())
				r.pass(confirmed)
				seq, requests := r.view.Generation().Seq, len(s.State().Requests)
				s.SendBytes(tt.bytes)
				r.pass(2 * time.Second)
				st := s.State()
				if st.Ended != tt.ends {
					t.Errorf("stream ended: %v, want %v", st.Ended, tt.ends)
				}
				if n := len(st.Requests) - requests; n != tt.nacks || st.Type(clusters).NACKs != tt.nacks {
					t.Errorf("%d requests, %d of them NACKs, want %d", n, st.Type(clusters).NACKs, tt.nacks)
				}
				if r.view.Generation().Seq != seq {
					t.Errorf("position %d, want %d", r.view.Generation().Seq, seq)
				}
				r.put(clusters, "a@2")
				r.membersAfter(2*time.Second, "members", clusters, "a@2")
			})
		})
	}
}

// TestB34_HalfOpen: keepalive detects an origin that stops without closing the connection. The view stays, and follows
// the origin again once it returns.
func TestB34_HalfOpen(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, "a@1")
		r.Freeze(true)
		r.watch.Subscribe(endpoints, []string{"asked meanwhile"})
		r.pass(10 * time.Minute)
		if r.view.Generation().First().Connected {
			t.Error("still connected after 10 minutes without packets")
		}
		r.expect("members", r.members(clusters), "a@1")
		r.Freeze(false)
		r.put(clusters, "a@2")
		r.membersAfter(time.Minute, "members", clusters, "a@2")
		r.expect("named", r.named(endpoints), "!asked meanwhile")
	})
}

// connSeen are plaintext credentials that record the dialed connections.
type connSeen struct {
	credentials.TransportCredentials
	dialed chan net.Conn
}

// Clone implements credentials.TransportCredentials.
func (c connSeen) Clone() credentials.TransportCredentials { return c }

// ClientHandshake implements credentials.TransportCredentials.
func (c connSeen) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c.dialed <- conn
	return c.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

// TestB34_TCPKeepalive: TCP keepalive starts after 10s of silence, with three probes at 5s intervals. A connection with
// unacknowledged data is closed after 20s.
func TestB34_TCPKeepalive(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	seen := connSeen{insecure.NewCredentials(), make(chan net.Conn, 1)}
	r := viewSync(t, o, upstream.Config{DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(seen)}})
	r.session.Connect()
	raw, err := (<-seen.dialed).(syscall.Conn).SyscallConn()
	check.OK(t, err)
	for _, tt := range []struct {
		name                string
		level, option, want int
	}{
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 10},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
		{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 20_000},
	} {
		var got int
		if controlErr := raw.Control(func(fd uintptr) {
			got, err = unix.GetsockoptInt(int(fd), tt.level, tt.option)
		}); controlErr != nil || err != nil || got != tt.want {
			t.Errorf("%s = %d (%v, %v), want %d", tt.name, got, controlErr, err, tt.want)
		}
	}
}

// TestMirrorEnds: Sync returns at once in any state of the origin.
func TestMirrorEnds(t *testing.T) {
	tests := []struct {
		name    string
		trouble func(*rig)
	}{
		{"served", func(*rig) {}},
		{"frozen", func(r *rig) { r.Freeze(true) }},
		{"stopped", func(r *rig) { r.Stop(); r.pass(time.Minute) }},
		{"draining", func(r *rig) { r.GoAway() }},
		{"in the middle of responses", func(r *rig) {
			for i := range 1000 {
				r.put(clusters, fmt.Sprint("a@", i))
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
				r.put(clusters, "a@1")
				r.watch.SubscribeAll(clusters)
				r.pass(time.Second)
				r.watch.Subscribe(clusters, []string{"a"})
				r.pass(time.Second)
				tt.trouble(r)
				since := time.Now()
				r.stop()
				if d := time.Since(since); d > 0 {
					t.Errorf("Sync returned after %v, want at once", d)
				}
				if r.view.Generation().First().Connected {
					t.Error("the view is connected after Sync has returned")
				}
				r.Freeze(false)
			})
		})
	}
}

// TestB33_GoAway: when a server drains, the relay moves to its successor once the server ends the stream, not before.
func TestB33_GoAway(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1")
		r.watch.SubscribeAll(clusters)
		old := r.Accept(t.Context())
		r.pass(confirmed)
		r.GoAway()
		r.put(clusters, "a@2")
		r.membersAfter(time.Minute, "members while draining", clusters, "a@2")
		old.Close(nil)
		r.pass(time.Second)
		r.put(clusters, "a@3")
		r.membersAfter(time.Second, "members", clusters, "a@3")
		if s := r.State(); len(s.Streams) != 2 || s.OpenConnections != 1 {
			t.Errorf("%d streams, %d connections open, want 2 and 1", len(s.Streams), s.OpenConnections)
		}
	})
}

// TestB4_TooFewStreams: an origin that allows too few concurrent streams is logged after 5s. The open streams continue.
func TestB4_TooFewStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, ServerOptions: []grpc.ServerOption{grpc.MaxConcurrentStreams(1)}})
		r := viewSync(t, o, upstream.Config{Linger: time.Second})
		r.follow(clusters, "a@1")
		n := r.watch.Subscribe(clusters, []string{"a"})
		r.pass(4 * time.Second)
		check.Equal(t, "log lines after 4s", r.log.count("no stream within 5s"), 0)
		r.pass(2 * time.Second)
		check.Equal(t, "log lines after 6s", r.log.count("no stream within 5s"), 1)
		r.pass(longAfter)
		r.put(clusters, "a@2")
		r.membersAfter(soon, "members", clusters, "a@2")
		if !n[0].Asked().IsZero() {
			t.Error("a name counts as requested although no stream carries it")
		}
		check.Equal(t, "streams", r.streams(), 1)
	})
}

// A service implements the Delta ADS of an origin with a function.
type service struct {
	discoverypb.UnimplementedAggregatedDiscoveryServiceServer
	serve func(discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error
}

// DeltaAggregatedResources implements discoverypb.AggregatedDiscoveryServiceServer.
func (s service) DeltaAggregatedResources(rpc discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.serve(rpc)
}

// serveRaw runs a gRPC server in memory until the test ends, with a service if it is not nil, and returns dial options.
func serveRaw(t *testing.T, s *service) []grpc.DialOption {
	l := memnet.Listen(1 << 20)
	server := grpc.NewServer()
	if s != nil {
		discoverypb.RegisterAggregatedDiscoveryServiceServer(server, *s)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }() // awaited by the clean-up
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		l.DialOption(),
	}
}

// TestR135_Unimplemented: the relay retries a server that does not implement ADS with the same backoff as an
// unreachable one.
func TestR135_Unimplemented(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := viewSync(t, idleOrigin(t), upstream.Config{Targets: []string{"passthrough:///bare"}, DialOptions: serveRaw(t, nil)})
		r.watch.SubscribeAll(clusters)
		r.pass(5 * time.Minute)
		before := r.log.count("Unimplemented")
		r.pass(longAfter)
		if n := r.log.count("Unimplemented") - before; n < 48 || n > 76 {
			t.Errorf("%d attempts in half an hour, want 60 ±25%%", n)
		}
		if r.view.Generation().First().Connected {
			t.Error("connected to a server that does not implement ADS")
		}
	})
}

// idleOrigin returns an origin without connections.
func idleOrigin(t *testing.T) *relaytest.Origin {
	return relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
}

// TestB9_FloodWithoutReading: an origin that floods the relay and does not read ACKs fills a bounded queue. The relay
// closes the stream, and the next one works.
func TestB9_FloodWithoutReading(t *testing.T) {
	const responses = 4500 // the queue has room for 4096 ACKs, and the flow control of gRPC for about 130
	nonce := strings.Repeat("x", 1000)
	synctest.Test(t, func(t *testing.T) {
		var streams int // only one stream is open at a time
		s := &service{serve: func(rpc discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
			streams++
			if streams > 1 {
				resp := response(clusters, "a@again")
				resp.Nonce = "n"
				if err := rpc.Send(resp); err != nil {
					return err
				}
				for {
					if _, err := rpc.Recv(); err != nil {
						return err
					}
				}
			}
			for i := range responses {
				resp := response(clusters, fmt.Sprint("a@", i))
				resp.Nonce = nonce
				if err := rpc.Send(resp); err != nil {
					return err
				}
			}
			<-rpc.Context().Done()
			return rpc.Context().Err()
		}}
		r := viewSync(t, idleOrigin(t), upstream.Config{Targets: []string{"passthrough:///bare"}, DialOptions: serveRaw(t, s)})
		r.watch.SubscribeAll(clusters)
		r.pass(10 * time.Second)
		check.Equal(t, "log lines about an origin that does not read", r.log.count("the origin does not read"), 1)
		r.expect("members", r.members(clusters), "a@again")
	})
}
