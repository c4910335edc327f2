package conformance_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/relaytest"
)

// C23: when many clients connect at once, each gets a first response, none is refused, and a client that was
// connected before gets changes meanwhile.
func TestC23_AHerdIsServed(t *testing.T) {
	t.Parallel()
	const connections, each, clusters = 20, 10, 50
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		for i := range clusters {
			o.Put(relaytest.Cluster(fmt.Sprint("c", i), strings.Repeat("x", 1000)))
		}
		r := startMuted(t, o)
		before := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
		before.Subscribe(typeEDS, "e")
		o.Put(relaytest.Endpoints("e"))
		before.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeEDS, "e") })
		var conns []*grpc.ClientConn
		for range connections {
			conn := r.Conn()
			conn.Connect()
			conns = append(conns, conn)
		}
		var herd errgroup.Group
		for i := range connections * each {
			herd.Go(func() error {
				v := relaytest.Variant(i % 2)
				rpc, err := conns[i%connections].NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
					v.Method(""), grpc.WaitForReady(true))
				if err != nil {
					return err
				}
				s := manyStream{rpc, v}
				if err := s.SendMsg(manyFirst(v)); err != nil {
					return err
				}
				_, n, err := s.receive()
				if err == nil && n != clusters {
					err = fmt.Errorf("got %d clusters, want %d", n, clusters)
				}
				return err
			})
		}
		o.Put(relaytest.Endpoints("e", "127.0.0.1:1"))
		want := relaytest.DigestOf(relaytest.Endpoints("e", "127.0.0.1:1"))
		before.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(typeEDS, "e") == want })
		if err := herd.Wait(); err != nil {
			t.Error(err)
		}
		s := r.Stats()
		for limit, n := range s.Refused {
			if n > 0 {
				t.Errorf("%d streams were refused for %v", n, limit)
			}
		}
		if s.Streams != connections*each+1 || s.Waiting != 0 {
			t.Errorf("got %d open and %d waiting streams, want %d and none", s.Streams, s.Waiting, connections*each+1)
		}
	})
}
