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
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// An outage is an Envoy that serves requests while what it gets its configuration from fails.
type outage struct {
	*setup
	next   *envoytest.Backend // of the endpoints after change
	up     *proxy.Proxy       // before the control plane
	down   *proxy.Proxy       // before the Envoy's management server: up, without a relay
	envoy  *envoytest.Envoy
	load   *envoytest.Load
	before int64 // how often the Envoy took clusters and listeners as modified
}

// newOutage starts an Envoy with a load.
func newOutage(t *testing.T, v variant, o *outcome, opts relay.Options, edit func(*bootstrappb.Bootstrap)) *outage {
	t.Helper()
	s := &setup{outcome: o, variant: v, origin: envoytest.NewControlPlane(t)}
	s.origin.Put(web("one", envoytest.NewBackend(t, "one"))...)
	f := &outage{setup: s, next: envoytest.NewBackend(t, "two"), up: proxy.New(t, s.origin.Addr)}
	if f.down = f.up; !o.direct {
		s.relay = envoytest.NewRelayWith(t, opts, f.up.Addr())
		f.down = proxy.New(t, s.relay.Addr)
	}
	s.server = f.down.Addr()
	f.envoy = envoytest.Start(t, envoytest.Options{Bootstrap: v.bootstrap, Server: s.server, Node: relaytest.EnvoyNode("edge-1"), Edit: edit})
	f.load = envoytest.StartLoad(t, f.envoy.Listener("web"), interval)
	f.load.Continue(10)
	f.before = modified(f.envoy)
	return f
}

// hole has a link pass nothing on, and tell nobody.
func hole(link *proxy.Proxy) {
	way := proxy.Way{Hold: true}
	link.Set(proxy.Link{Up: way, Down: way})
}

// change has the control plane send other endpoints.
func (f *outage) change() { f.origin.Put(relaytest.Endpoints("one", f.next.Addr)) }

// recovers waits until the Envoy has the endpoints of change, and judges what happened.
func (f *outage) recovers() {
	f.t.Helper()
	f.answers(f.load, f.next)
	f.unmodified(f.before, f.envoy)
	f.judge(f.envoy, f.load.Stop())
}

// TestEnvoy_OriginGone: while the control plane is gone, or slow, no request fails, and an Envoy that starts gets
// everything. When the control plane returns with the same content, nothing is modified; the next change arrives. (B.8)
func TestEnvoy_OriginGone(t *testing.T) {
	compared(t, ads, func(t *testing.T, v variant, o *outcome) {
		f := newOutage(t, v, o, relay.Options{}, nil)
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

// pinging has an Envoy ping its server every second and wait two seconds for the answer: 30 s and 5 s in the bootstraps
// that are shipped.
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

// pings are those of a relay to its clients, as often.
var pings = relay.Options{PingAfter: time.Second, PingTimeout: 2 * time.Second}

// awaitNoStreams waits until the relay serves no stream. It is not asked of go-control-plane, which does not ping.
func (f *outage) awaitNoStreams() {
	f.t.Helper()
	if f.relay == nil {
		return
	}
	f.envoy.Await("end of its streams at the relay", func() error {
		if n := f.relay.Streams(); n > 0 {
			return fmt.Errorf("the relay has %d streams", n)
		}
		return nil
	})
}

// TestEnvoy_HalfOpen: nothing passes between an Envoy and the relay any more, and neither is told. Both notice by
// their pings. The Envoy goes on serving, reconnects, and has what changed meanwhile. (B.34)
func TestEnvoy_HalfOpen(t *testing.T) {
	compared(t, ads, func(t *testing.T, v variant, o *outcome) {
		f := newOutage(t, v, o, pings, pinging)
		hole(f.down)
		f.change()
		f.envoy.Await("loss of the connection", func() error {
			if f.envoy.Stats(envoytest.Judged)["control_plane.connected_state"] > 0 {
				return errors.New("it is connected")
			}
			return nil
		})
		f.awaitNoStreams()
		f.down.Set(proxy.Link{})
		f.recovers()
	})
}

// TestEnvoy_Stopped: an Envoy stops without a word (SIGSTOP). The relay notices by its pings and frees what it held.
// Once the Envoy goes on, it reconnects, serves, and has what changed meanwhile. (B.34)
func TestEnvoy_Stopped(t *testing.T) {
	compared(t, ads, func(t *testing.T, v variant, o *outcome) {
		f := newOutage(t, v, o, pings, pinging)
		address := f.envoy.Listener("web")
		f.requests(f.load.Stop())

		f.envoy.Signal(syscall.SIGSTOP)
		t.Cleanup(func() { f.envoy.Signal(syscall.SIGCONT) }) // it is killed next
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

// TestEnvoy_OriginStuck: nothing passes between the relay and the control plane any more, and neither is told. The
// relay notices by its pings (TENDER_ORIGIN_KEEPALIVE, here the shortest), reconnects, and its Envoy has what changed
// meanwhile. The run without the relay is that of TestEnvoy_HalfOpen. (B.34)
func TestEnvoy_OriginStuck(t *testing.T) {
	t.Parallel()
	often := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}) // 20 s to answer otherwise
	f := newOutage(t, delta, &outcome{t: t}, relay.Options{DialOptions: []grpc.DialOption{often}}, nil)
	hole(f.up)
	f.change()
	f.envoy.Await("loss of the origin", func() error {
		if page := f.relay.Get("/api/v1/status"); !bytes.Contains(page, []byte(`"connected": false`)) && !bytes.Contains(page, []byte(`"connected":false`)) {
			return errors.New("the relay is connected to its origin")
		}
		return nil
	})
	f.up.Set(proxy.Link{})
	f.recovers()
}
