package conformance_test

import (
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

// oneView serves one view to all clients.
type oneView struct{ *cache.View }

func (v oneView) Join(*corepb.Node, downstream.Caller) (downstream.Group, error) {
	return downstream.Group{View: v.View, Key: "all", Leave: func() {}}, nil
}

// An orderFloor is a server whose view the test writes. It drops tombstones after 1s, long before the ACK timeout.
type orderFloor struct {
	t *testing.T
	w *cache.Writer
	// Connects to the server.
	dial func() *grpc.ClientConn
}

// newOrderFloor starts a server.
func newOrderFloor(t *testing.T) *orderFloor {
	view, w := cache.New(cache.Config{TombstoneAge: time.Second})
	server, err := downstream.New(downstream.Config{Views: oneView{view}, AckWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	g := relay.NewGRPCServer(1<<20, 100)
	server.Register(g)
	l := memnet.Listen(1 << 20)
	ended := make(chan error)
	go func() { ended <- g.Serve(l) }() // the cleanup waits for it
	t.Cleanup(func() {
		g.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	w.SetConnected(true)
	dial := func() *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///view", grpc.WithTransportCredentials(insecure.NewCredentials()),
			l.DialOption())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	return &orderFloor{t, w, dial}
}

// apply writes a response of the origin with added and removed clusters to the view.
func (f *orderFloor) apply(add []string, remove ...string) {
	f.t.Helper()
	resp := &discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.ClusterType, Nonce: "n", RemovedResources: remove}
	for _, name := range add {
		body, err := proto.Marshal(relaytest.Cluster(name))
		if err != nil {
			f.t.Fatal(err)
		}
		resp.Resources = append(resp.Resources, &discoverypb.Resource{
			Name: name, Version: "1", Resource: &anypb.Any{TypeUrl: relaytest.ClusterType, Value: body},
		})
	}
	raw, err := proto.Marshal(resp)
	if err != nil {
		f.t.Fatal(err)
	}
	u, err := wire.Decoder{}.Decode(raw)
	if err != nil {
		f.t.Fatal(err)
	}
	f.w.Apply(cache.Wildcard, u)
	f.w.SetPhase(relaytest.ClusterType, cache.Confirmed)
	synctest.Wait()
}

// The tombstone of a removal expires. A Delta stream that has not sent the removal by then ends, and the client
// learns of it when it reconnects with its versions. A SotW stream sends the complete set.
func TestB11_StreamBehindTombstonesEnds(t *testing.T) {
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		synctest.Test(t, func(t *testing.T) {
			f := newOrderFloor(t)
			f.apply([]string{"a", "b"})
			c := relaytest.NewClient(t, f.dial(), relaytest.ClientOptions{Variant: v})
			c.Subscribe(relaytest.ClusterType)
			c.Ack(c.Recv(t.Context()))
			f.apply([]string{"c"})
			slow := c.Recv(t.Context())
			f.apply(nil, "a")

			members := func() *cache.Set { return &f.w.View().Generation().Type(relaytest.ClusterType).Wildcard }
			f.w.Trim(time.Now())
			if members().Floor() != 0 {
				t.Fatal("a tombstone that a stream still needs was dropped")
			}
			time.Sleep(2 * time.Second)
			f.w.Trim(time.Now())
			if members().Floor() == 0 {
				t.Fatal("an expired tombstone was not dropped")
			}
			c.Ack(slow)
			if v == relaytest.SotW {
				if got := c.Recv(t.Context()).Names(); len(got) != 2 {
					t.Fatalf("after a dropped tombstone: got the set %q, want b and c", got)
				}
				return
			}
			if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Unavailable {
				t.Fatalf("stream ended with %v, want UNAVAILABLE", err)
			}
			c.Reconnect(f.dial())
			c.Ack(c.Recv(t.Context()))
			if !c.State().Has(relaytest.ClusterType, "b", "c") {
				t.Errorf("after reconnecting the client has %v, want b and c", c.State())
			}
		})
	})
}

// A tombstone is dropped once every wildcard stream has sent the removal. New streams are not affected.
func TestB11_TombstonesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newOrderFloor(t)
		f.apply([]string{"a", "b"})
		c := relaytest.NewClient(t, f.dial(), relaytest.ClientOptions{AutoAck: true})
		c.Subscribe(relaytest.ClusterType)
		c.Recv(t.Context())
		f.apply(nil, "a")
		if got := c.Recv(t.Context()).Removed; len(got) != 1 {
			t.Fatalf("removed %q, want a", got)
		}
		synctest.Wait()
		f.w.Trim(time.Now())
		floor := f.w.View().Generation().Type(relaytest.ClusterType).Wildcard.Floor()
		if floor == 0 || f.w.View().Find(relaytest.ClusterType, []string{"a"})[0] != nil {
			t.Error("a tombstone that all streams have sent was not dropped")
		}
		late := relaytest.NewClient(t, f.dial(), relaytest.ClientOptions{AutoAck: true})
		late.Subscribe(relaytest.ClusterType)
		if r := late.Recv(t.Context()); len(r.Names()) != 1 || len(r.Removed) != 0 {
			t.Errorf("a new client got %v, want only b", r)
		}
		f.apply([]string{"d"})
		c.Recv(t.Context())
	})
}
