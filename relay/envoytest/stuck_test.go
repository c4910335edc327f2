package envoytest_test

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httppb "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// pinging has an Envoy ping the relay every second and wait two seconds for the answer: 30 s and 5 s in the bootstraps
// that are shipped.
func pinging(t *testing.T) func(*bootstrappb.Bootstrap) {
	const key = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	return func(b *bootstrappb.Bootstrap) {
		for _, c := range b.GetStaticResources().GetClusters() {
			of := new(httppb.HttpProtocolOptions)
			if err := c.GetTypedExtensionProtocolOptions()[key].UnmarshalTo(of); err != nil {
				t.Fatal(err)
			}
			of.GetExplicitHttpConfig().GetHttp2ProtocolOptions().ConnectionKeepalive = &corepb.KeepaliveSettings{
				Interval: durationpb.New(time.Second), Timeout: durationpb.New(2 * time.Second),
			}
			packed, err := anypb.New(of)
			if err != nil {
				t.Fatal(err)
			}
			c.TypedExtensionProtocolOptions[key] = packed
		}
	}
}

// awaitNoStreams waits until the relay serves no stream.
func awaitNoStreams(e *envoytest.Envoy, r *envoytest.Relay) {
	e.Await("end of its streams at the relay", func() error {
		if n := r.Streams(); n > 0 {
			return fmt.Errorf("the relay has %d streams", n)
		}
		return nil
	})
}

// TestEnvoy_HalfOpen: nothing passes between an Envoy and the relay any more, and neither is told. Both notice by
// their pings. The Envoy goes on serving, reconnects, and has what changed meanwhile. (B.34)
func TestEnvoy_HalfOpen(t *testing.T) {
	for _, v := range ads {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			origin := envoytest.NewControlPlane(t)
			one, two := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two")
			origin.Put(web("one", one)...)
			r := envoytest.NewRelayWith(t, relay.Options{PingAfter: time.Second, PingTimeout: 2 * time.Second}, origin.Addr)
			link := relaytest.NewProxy(t, r.Addr)
			e := envoytest.Start(t, envoytest.Options{Bootstrap: v.bootstrap, Server: link.Addr(), Node: relaytest.EnvoyNode("edge-1"), Edit: pinging(t)})
			load := envoytest.StartLoad(t, e.Listener("web"), interval)
			load.Continue(10)
			before := modified(e)

			hole := relaytest.Way{Hold: true}
			link.Set(relaytest.Link{Up: hole, Down: hole})
			origin.Put(relaytest.Endpoints("one", two.Addr))
			e.Await("loss of the connection", func() error {
				if e.Stats(envoytest.Judged)["control_plane.connected_state"] > 0 {
					return errors.New("it is connected")
				}
				return nil
			})
			awaitNoStreams(e, r)
			link.Set(relaytest.Link{})
			load.Await("an answer of the new endpoint", func(r envoytest.Report) bool { return r.Answers["two"] > 0 })
			if now := modified(e); now != before {
				t.Errorf("clusters and listeners were modified %d times, though they are the same", now-before)
			}
			noFault(t, e, load.Stop())
		})
	}
}

// TestEnvoy_Stopped: an Envoy stops without a word (SIGSTOP). The relay notices by its pings and frees what it held.
// Once the Envoy goes on, it reconnects, serves, and has what changed meanwhile. (B.34)
func TestEnvoy_Stopped(t *testing.T) {
	for _, v := range ads {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			origin := envoytest.NewControlPlane(t)
			one, two := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two")
			origin.Put(web("one", one)...)
			r := envoytest.NewRelayWith(t, relay.Options{PingAfter: time.Second, PingTimeout: 2 * time.Second}, origin.Addr)
			e := envoytest.Start(t, envoytest.Options{Bootstrap: v.bootstrap, Server: r.Addr, Node: relaytest.EnvoyNode("edge-1"), Edit: pinging(t)})
			address := e.Listener("web")
			before := modified(e)

			e.Signal(syscall.SIGSTOP)
			t.Cleanup(func() { e.Signal(syscall.SIGCONT) }) // it is killed next
			awaitNoStreams(e, r)
			origin.Put(relaytest.Endpoints("one", two.Addr))
			e.Signal(syscall.SIGCONT)
			load := envoytest.StartLoad(t, address, interval)
			load.Await("an answer of the new endpoint", func(r envoytest.Report) bool { return r.Answers["two"] > 0 })
			if now := modified(e); now != before {
				t.Errorf("clusters and listeners were modified %d times, though they are the same", now-before)
			}
			noFault(t, e, load.Stop())
			if log := []byte(r.Log()); bytes.Contains(log, []byte("level=ERROR")) {
				t.Error("the relay logged an error")
			}
		})
	}
}

// TestEnvoy_OriginStuck: nothing passes between the relay and the control plane any more, and neither is told. The
// relay notices by its pings (TENDER_ORIGIN_KEEPALIVE, here the shortest), reconnects, and its Envoy has what changed meanwhile. (B.34)
func TestEnvoy_OriginStuck(t *testing.T) {
	t.Parallel()
	origin := envoytest.NewControlPlane(t)
	one, two := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two")
	origin.Put(web("one", one)...)
	link := relaytest.NewProxy(t, origin.Addr)
	pings := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}) // 20 s to answer otherwise
	r := envoytest.NewRelayWith(t, relay.Options{DialOptions: []grpc.DialOption{pings}}, link.Addr())
	e := envoytest.Start(t, envoytest.Options{Server: r.Addr, Node: relaytest.EnvoyNode("edge-1")})
	load := envoytest.StartLoad(t, e.Listener("web"), 5*interval)
	load.Continue(10)
	before := modified(e)
	hole := relaytest.Way{Hold: true}
	link.Set(relaytest.Link{Up: hole, Down: hole})
	origin.Put(relaytest.Endpoints("one", two.Addr))
	e.Await("loss of the origin", func() error {
		if page := r.Get("/api/v1/status"); !bytes.Contains(page, []byte(`"connected": false`)) && !bytes.Contains(page, []byte(`"connected":false`)) {
			return errors.New("the relay is connected to its origin")
		}
		return nil
	})
	link.Set(relaytest.Link{})
	load.Await("an answer of the new endpoint", func(r envoytest.Report) bool { return r.Answers["two"] > 0 })
	if now := modified(e); now != before {
		t.Errorf("clusters and listeners were modified %d times, though they are the same", now-before)
	}
	noFault(t, e, load.Stop())
}
