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

// oneView serves one view to everybody.
type oneView struct{ *cache.View }

func (v oneView) Join(*corepb.Node, downstream.Caller) (downstream.Group, error) {
	return downstream.Group{View: v.View, Key: "all", Leave: func() {}}, nil
}

// orderFloor is a server of a view that the test writes to itself, and whose
// removals are forgotten after 1s, long before the server gives up waiting for a
// client.
type orderFloor struct {
	t  *testing.T
	w  *cache.Writer
	to func() *grpc.ClientConn
}

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
	go func() { ended <- g.Serve(l) }() // awaited below
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

// apply has the origin add clusters, and remove some.
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

// TestB11_StreamBehindTheLogIsEnded: a removal is remembered for a time, not for
// ever. A Delta stream that was not told of one that is forgotten is ended, and
// learns of it when it says what it holds; a SotW stream gets the set.
func TestB11_StreamBehindTheLogIsEnded(t *testing.T) {
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		synctest.Test(t, func(t *testing.T) {
			f := newOrderFloor(t)
			f.apply([]string{"a", "b"})
			c := relaytest.NewClient(t, f.to(), relaytest.ClientOptions{Variant: v})
			c.Subscribe(relaytest.ClusterType)
			c.Ack(c.Recv(t.Context()))
			f.apply([]string{"c"})
			slow := c.Recv(t.Context())
			f.apply(nil, "a")

			members := func() *cache.Set { return &f.w.View().Generation().Type(relaytest.ClusterType).Wildcard }
			f.w.Trim(time.Now())
			if members().Floor() != 0 {
				t.Fatal("a removal that a stream was not told of was forgotten at once")
			}
			time.Sleep(2 * time.Second)
			f.w.Trim(time.Now())
			if members().Floor() == 0 {
				t.Fatal("an old removal was not forgotten")
			}
			c.Ack(slow)
			if v == relaytest.SotW {
				if got := c.Recv(t.Context()).Names(); len(got) != 2 {
					t.Fatalf("set after a forgotten removal: got %q, want b and c", got)
				}
				return
			}
			if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Unavailable {
				t.Fatalf("stream ended with %v, want UNAVAILABLE", err)
			}
			c.Reconnect(f.to())
			c.Ack(c.Recv(t.Context()))
			if !c.State().Has(relaytest.ClusterType, "b", "c") {
				t.Errorf("after coming back the client has %v, want b and c", c.State())
			}
		})
	})
}

// TestB11_TombstonesGo: a removal is forgotten as soon as every wildcard stream was
// told, and one that the next stream cannot know of costs it nothing.
func TestB11_TombstonesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newOrderFloor(t)
		f.apply([]string{"a", "b"})
		c := relaytest.NewClient(t, f.to(), relaytest.ClientOptions{AutoAck: true})
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
			t.Error("a removal that all were told of is still there")
		}
		late := relaytest.NewClient(t, f.to(), relaytest.ClientOptions{AutoAck: true})
		late.Subscribe(relaytest.ClusterType)
		if r := late.Recv(t.Context()); len(r.Names()) != 1 || len(r.Removed) != 0 {
			t.Errorf("a new client got %v, want b alone", r)
		}
		f.apply([]string{"d"})
		c.Recv(t.Context())
	})
}
