package envoy_test

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
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// An outage is an Envoy that serves requests while its management server or the control plane fails.
type outage struct {
	*setup
	next   *envoytest.Backend // endpoint after change
	up     *proxy.Proxy       // in front of the control plane
	down   *proxy.Proxy       // in front of the relay; equal to up in a direct run
	envoy  *envoytest.Envoy
	load   *envoytest.Load
	before int64 // result of modified at the start
}

// newOutage starts the servers, an Envoy and a load. edit changes the bootstrap and may be nil.
func newOutage(t *testing.T, c client, o *outcome, opts relay.Options, edit func(*bootstrappb.Bootstrap)) *outage {
	t.Helper()
	s := &setup{outcome: o, client: c, origin: envoytest.NewControlPlane(t)}
	s.origin.Put(web("one", envoytest.NewBackend(t, "one"))...)
	f := &outage{setup: s, next: envoytest.NewBackend(t, "two"), up: proxy.New(t, s.origin.Addr)}
	if f.down = f.up; !o.direct {
		s.relay = envoytest.NewRelayWith(t, opts, f.up.Addr())
		f.down = proxy.New(t, s.relay.Addr)
	}
	s.server = f.down.Addr()
	of := c.options(s.server, "edge-1")
	of.Edit = edit
	f.envoy = envoytest.Start(t, of)
	f.load = envoytest.StartLoad(t, f.envoy.Listener("web"), interval)
	f.load.Continue(10)
	f.before = modified(f.envoy)
	return f
}

// hole makes a link hold back all data without closing the connections.
func hole(link *proxy.Proxy) {
	way := proxy.Way{Hold: true}
	link.Set(proxy.Link{Up: way, Down: way})
}

// change replaces the endpoints at the control plane.
func (f *outage) change() { f.origin.Put(relaytest.Endpoints("one", f.next.Addr)) }

// recovers waits until the Envoy uses the endpoints of change, and checks that no request failed and nothing was
// rejected.
func (f *outage) recovers() {
	f.t.Helper()
	f.answers(f.load, f.next)
	f.unmodified(f.before, f.envoy)
	f.judge(f.envoy, f.load.Stop())
}

// TestEnvoy_OriginGone: while the control plane is down or slow, no request fails, and an Envoy that starts gets the
// whole configuration. When the control plane returns with the same content, the Envoy modifies nothing. The next
// change arrives. (B.8)
func TestEnvoy_OriginGone(t *testing.T) {
	compared(t, ads, func(t *testing.T, c client, o *outcome) {
		f := newOutage(t, c, o, relay.Options{}, nil)
		want := f.envoy.Config()
		serves := func(id string) {
			t.Helper()
			newcomer := f.setup.envoy(t, id)
			f.await(newcomer, "configuration of "+id, func() error { return newcomer.Differs(want) })
			newcomer.Kill()
		}
		f.up.Set(proxy.Link{Down: proxy.Way{Hold: true}})
		serves("started-while-slow")
		f.up.Set(proxy.Link{})

		f.origin.Stop()
		serves("started-while-gone")
		f.load.Continue(50)
		f.origin.Restart()
		f.change()
		f.recovers()
	})
}

// pinging makes an Envoy ping its server every second, with a timeout of two seconds. The bootstraps in deploy/envoy
// have 30 s and 5 s.
func pinging(b *bootstrappb.Bootstrap) {
	const key = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	for _, c := range b.GetStaticResources().GetClusters() {
		of := new(httppb.HttpProtocolOptions)
		if err := c.GetTypedExtensionProtocolOptions()[key].UnmarshalTo(of); err != nil {
			panic("read a bootstrap: " + err.Error())
		}
		of.GetExplicitHttpConfig().GetHttp2ProtocolOptions().ConnectionKeepalive = &corepb.KeepaliveSettings{
			Interval: durationpb.New(time.Second), Timeout: durationpb.New(2 * time.Second),
		}
		c.TypedExtensionProtocolOptions[key] = relaytest.Pack(of)
	}
}

// pings makes a relay ping its clients as often as pinging does for an Envoy.
var pings = relay.Options{PingAfter: time.Second, PingTimeout: 2 * time.Second}

// awaitNoStreams waits until the relay has no streams. In a direct run it returns at once, because go-control-plane
// does not ping its clients.
func (f *outage) awaitNoStreams() {
	f.t.Helper()
	if f.relay == nil {
		return
	}
	f.envoy.Await("end of its streams at the relay", func() error {
		if n := f.relay.Streams(); n > 0 {
			return fmt.Errorf("the relay has %d streams, want 0", n)
		}
		return nil
	})
}

// TestEnvoy_HalfOpen: the connection between an Envoy and the relay loses all data without being closed. Both detect
// it by pings. The Envoy keeps serving requests, reconnects, and receives the change made meanwhile. (B.34)
func TestEnvoy_HalfOpen(t *testing.T) {
	compared(t, ads, func(t *testing.T, c client, o *outcome) {
		f := newOutage(t, c, o, pings, pinging)
		hole(f.down)
		f.change()
		f.envoy.Await("loss of the connection", func() error {
			if f.envoy.Stats(envoytest.Judged)["control_plane.connected_state"] > 0 {
				return errors.New("the Envoy is still connected")
			}
			return nil
		})
		f.awaitNoStreams()
		f.down.Set(proxy.Link{})
		f.recovers()
	})
}

// TestEnvoy_Stopped: an Envoy is stopped by SIGSTOP. The relay detects it by pings and closes its streams. Once the
// Envoy continues, it reconnects, serves requests, and receives the change made meanwhile. (B.34)
func TestEnvoy_Stopped(t *testing.T) {
	compared(t, ads, func(t *testing.T, c client, o *outcome) {
		f := newOutage(t, c, o, pings, pinging)
		address := f.envoy.Listener("web")
		f.requests(f.load.Stop())

		f.envoy.Signal(syscall.SIGSTOP)
		t.Cleanup(func() { f.envoy.Signal(syscall.SIGCONT) }) // the next cleanup kills the Envoy
		f.awaitNoStreams()
		f.change()
		f.envoy.Signal(syscall.SIGCONT)
		f.load = envoytest.StartLoad(t, address, interval)
		f.recovers()
		if f.relay != nil && bytes.Contains([]byte(f.relay.Log()), []byte("level=ERROR")) {
			t.Error("the relay logged an error")
		}
	})
}

// TestEnvoy_OriginStuck: the connection between the relay and the control plane loses all data without being closed.
// The relay detects it by pings (TENDER_ORIGIN_KEEPALIVE, here at its minimum) and reconnects, and its Envoy receives
// the change made meanwhile. The direct run would be the same as that of TestEnvoy_HalfOpen. (B.34)
func TestEnvoy_OriginStuck(t *testing.T) {
	matrix(t, []variant{delta}, func(t *testing.T, c client) {
		// The default timeout is 20 s.
		often := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second})
		f := newOutage(t, c, &outcome{t: t}, relay.Options{DialOptions: []grpc.DialOption{often}}, nil)
		hole(f.up)
		f.change()
		f.envoy.Await("loss of the origin", func() error {
			if page := f.relay.Get("/api/v1/status"); !bytes.Contains(page, []byte(`"connected": false`)) && !bytes.Contains(page, []byte(`"connected":false`)) {
				return errors.New("the relay is still connected to its origin")
			}
			return nil
		})
		f.up.Set(proxy.Link{})
		f.recovers()
	})
}
