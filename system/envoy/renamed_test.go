package envoy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A renaming is an Envoy that serves requests while a resource is renamed that its successor excludes.
type renaming struct {
	*setup
	address  string // of the listener
	old, new *envoytest.Backend
	up, down *proxy.Proxy // in front of the control plane and of the server; equal in a direct run
	relays   []*replica   // the one that Envoys use is the last; empty in a direct run
	snapshot string       // directory of the relays
	envoy    *envoytest.Envoy
	load     *envoytest.Load
}

// A renamed is what is renamed: the resources before and after, and which are removed.
type renamed struct {
	name          string
	before, after func(f *renaming) []proto.Message
	typeURL       string
	removed       []string
	seamless      bool // an Envoy that is sent both in one response has one of them at each moment
}

// cluster returns a cluster of a backend.
func cluster(of *envoytest.Backend) []proto.Message {
	return []proto.Message{relaytest.Cluster(of.Name), relaytest.Endpoints(of.Name, of.Addr)}
}

// serving returns a cluster of a backend and routes to it.
func serving(of *envoytest.Backend, name string) []proto.Message {
	return append(cluster(of), relaytest.Route(name, []string{"*"}, of.Name))
}

// renames are the kinds of renamed resources.
var renames = []renamed{
	{
		name: "the only listener",
		before: func(f *renaming) []proto.Message {
			return append(serving(f.old, "old"), relaytest.ListenerAt("old", "old", f.address))
		},
		after: func(f *renaming) []proto.Message {
			return append(serving(f.new, "new"), relaytest.ListenerAt("new", "new", f.address))
		},
		typeURL: relaytest.ListenerType, removed: []string{"old"},
	},
	{
		name: "one of six listeners",
		before: func(f *renaming) []proto.Message {
			msgs := append(serving(f.old, "old"), relaytest.ListenerAt("old", "old", f.address))
			for i := range 5 {
				msgs = append(msgs, relaytest.Listener(fmt.Sprint("other-", i), "old"))
			}
			return msgs
		},
		after: func(f *renaming) []proto.Message {
			return append(serving(f.new, "new"), relaytest.ListenerAt("new", "new", f.address))
		},
		typeURL: relaytest.ListenerType, removed: []string{"old"},
	},
	{
		name: "three listeners become one",
		before: func(f *renaming) []proto.Message {
			msgs := append(serving(f.old, "old"), relaytest.ListenerAt("old", "old", f.address))
			for _, ip := range []string{"127.0.0.2", "127.0.0.3"} {
				l := relaytest.ListenerAt("old", "old", ip+":"+f.port())
				l.Name = "at-" + ip
				msgs = append(msgs, l)
			}
			return msgs
		},
		after: func(f *renaming) []proto.Message {
			return append(serving(f.new, "new"), relaytest.ListenerAt("new", "new", f.address, "127.0.0.2:"+f.port(), "127.0.0.3:"+f.port()))
		},
		typeURL: relaytest.ListenerType, removed: []string{"old", "at-127.0.0.2", "at-127.0.0.3"},
	},
	{
		name: "a scope",
		before: func(f *renaming) []proto.Message {
			spare := f.scope("new", "of no request") // so that Envoy has the routes
			spare.Name = "spare"
			return append(append(serving(f.old, "old"), serving(f.new, "new")...), f.scoped(), f.scope("old", f.address), spare)
		},
		after:   func(f *renaming) []proto.Message { return []proto.Message{f.scope("new", f.address)} },
		typeURL: relaytest.ScopedRouteType, removed: []string{"old"},
	},
	{
		name: "a virtual host",
		before: func(f *renaming) []proto.Message {
			hosts := &routepb.RouteConfiguration{Name: "hosts", Vhds: &routepb.Vhds{ConfigSource: byDelta()}}
			l := relaytest.ListenerAt("hosts", "hosts", f.address)
			return append(append(cluster(f.old), cluster(f.new)...), l, hosts, host("old", f.old.Name))
		},
		after:   func(f *renaming) []proto.Message { return []proto.Message{host("new", f.new.Name)} },
		typeURL: relaytest.VirtualHostType, removed: []string{"hosts/old"}, seamless: true,
	},
}

func (f *renaming) port() string { return f.address[strings.LastIndex(f.address, ":")+1:] }

// host returns a virtual host for all domains that routes to a cluster.
func host(name, cluster string) proto.Message {
	h := relaytest.Route("", []string{"*"}, cluster).GetVirtualHosts()[0]
	h.Name = "hosts/" + name
	return h
}

// scope returns a scope for requests of an authority, with the routes of the same name.
func (f *renaming) scope(name, authority string) *routepb.ScopedRouteConfiguration {
	return &routepb.ScopedRouteConfiguration{
		Name: name, RouteConfigurationName: name,
		Key: &routepb.ScopedRouteConfiguration_Key{Fragments: []*routepb.ScopedRouteConfiguration_Key_Fragment{{
			Type: &routepb.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: authority},
		}}},
	}
}

// scoped returns a listener that selects a scope by the authority of requests.
func (f *renaming) scoped() proto.Message {
	l, w := relaytest.ListenerAt("scoped", "scoped", f.address), &richWorld{sources: []source{byADS}}
	m := &hcmpb.HttpConnectionManager{}
	if err := l.FilterChains[0].Filters[0].GetTypedConfig().UnmarshalTo(m); err != nil {
		panic(err)
	}
	scopes := w.scopes()
	scopes.ScopedRoutes.ScopeKeyBuilder.Fragments[0].GetHeaderValueExtractor().Name = ":authority"
	m.RouteSpecifier = scopes
	l.FilterChains[0].Filters[0].ConfigType = &listenerpb.Filter_TypedConfig{TypedConfig: relaytest.Pack(m)}
	return l
}

// newRenaming starts the servers, a relay with an environment, an Envoy, and a load on the old resource.
func newRenaming(t *testing.T, c client, o *outcome, of *renamed, env ...string) *renaming {
	t.Helper()
	f := &renaming{
		setup: &setup{outcome: o, client: c, origin: envoytest.NewControlPlane(t)}, address: proxy.FreeAddress(t), snapshot: t.TempDir(),
		old: envoytest.NewBackend(t, "old"), new: envoytest.NewBackend(t, "new"),
	}
	f.origin.Put(of.before(f)...)
	f.up = proxy.New(t, f.origin.Addr)
	if f.down = f.up; !o.direct {
		f.down = proxy.New(t, f.origin.Addr)
		f.startRelay(env...)
	}
	f.server = f.down.Addr()
	f.envoy = f.setup.envoy(t, "edge-1")
	f.envoy.Await("its listener", func() error {
		if len(f.envoy.Config().Names("dynamic_listeners")) == 0 {
			return fmt.Errorf("no listener")
		}
		return nil
	})
	if !o.direct { // what the origin states before that is no change of a known set (B.7)
		f.relays[0].relay.AwaitLine(0, of.typeURL+`","name":"*","phase":"confirmed"`)
	}
	f.load = envoytest.StartLoad(t, f.address, interval)
	f.load.Await("answers of the old backend", func(r envoytest.Report) bool { return r.Answers["old"] > 10 })
	return f
}

// startRelay starts a relay, to which the Envoy connects from now on. Relays share a snapshot unless their environment says otherwise.
func (f *renaming) startRelay(env ...string) *replica {
	f.t.Helper()
	r := &replica{t: f.t, plane: f.origin, binary: envoytest.Command(f.t), addr: proxy.FreeAddress(f.t)}
	r.env = append([]string{"TENDER_ORIGIN=" + f.up.Addr(), "TENDER_SNAPSHOT_DIR=" + f.snapshot, "TENDER_LOG_LEVEL=debug"}, env...)
	r.start()
	f.relays = append(f.relays, r)
	f.down.Forward(r.addr)
	return r
}

// replacedAtOnce fails the test unless the Envoy has removed listeners and added the new one in one update after a mark: it does both
// in one turn of its loop, and the fault was ten seconds between them.
func (f *renaming) replacedAtOnce(mark int, removed []string) {
	f.t.Helper()
	at := func(text string) time.Time {
		line := f.envoy.AwaitLine(mark, text)
		t, err := time.Parse("[2006-01-02 15:04:05.000]", line[:min(len(line), 25)])
		if err != nil {
			f.t.Fatal(err)
		}
		return t
	}
	added := at("lds: add/update listener 'new'")
	for _, name := range removed {
		if between := added.Sub(at("lds: remove listener '" + name + "'")); between.Abs() > time.Second {
			f.t.Errorf("%v between the removal of %s and the addition of new", between, name)
		}
	}
}

// TestB15_EnvoysKeepServingThroughRenames: what excludes its successor is renamed while a connection is lost or a server restarts.
// Nothing is rejected, the new resource serves, and no request fails but for those that an Envoy fails while it replaces a listener
// or a scope. (B.11, B.15)
func TestB15_EnvoysKeepServingThroughRenames(t *testing.T) {
	for _, tt := range []struct {
		when    string
		of      []renamed
		relayed bool // there is no direct run
		happens func(f *renaming, rename func())
	}{
		{when: "the origin restarts", of: renames, happens: func(f *renaming, rename func()) {
			f.origin.Stop()
			rename()
			f.origin.Restart()
		}},
		{when: "after a reconnect to the origin", of: renames[:2], happens: func(f *renaming, rename func()) {
			f.up.Cut()
			f.load.Continue(200)
			rename()
		}},
		{when: "the relay restarts", of: renames[:2], relayed: true, happens: func(f *renaming, rename func()) {
			r := f.relays[0]
			r.drain()
			rename()
			r.start()
		}},
		{when: "after the relay has restarted", of: renames[:2], relayed: true, happens: func(f *renaming, rename func()) {
			r := f.relays[0]
			r.drain()
			r.start()
			f.load.Continue(200)
			rename()
		}},
		{when: "the Envoy is away", of: renames[:2], happens: func(f *renaming, rename func()) {
			f.down.Set(proxy.Link{Refuse: true})
			f.down.Cut()
			rename()
			f.load.Continue(200)
			f.down.Set(proxy.Link{})
		}},
		{when: "the Envoy moves to a new relay", of: renames[:2], relayed: true, happens: func(f *renaming, rename func()) {
			f.down.Set(proxy.Link{Refuse: true})
			f.down.Cut()
			rename()
			f.startRelay("TENDER_SNAPSHOT_DIR=" + f.t.TempDir())
			f.down.Set(proxy.Link{})
		}},
	} {
		for _, of := range tt.of {
			t.Run(tt.when+", "+of.name, func(t *testing.T) {
				run := func(t *testing.T, c client, o *outcome) {
					f := newRenaming(t, c, o, &of)
					mark, began := f.envoy.Mark(), time.Now()
					tt.happens(f, func() {
						f.origin.Apply("", func(w *envoytest.World) {
							w.Put(of.after(f)...)
							w.Remove(of.typeURL, of.removed...)
						})
					})
					f.answers(f.load, f.new)
					t.Logf("served after %v", time.Since(began).Round(time.Millisecond))
					before := len(f.load.Report().Failures)
					f.load.Continue(200)
					r := f.load.Stop()
					if !of.seamless {
						r.Failures = r.Failures[before:]
					}
					if of.typeURL == relaytest.ListenerType && !o.direct {
						f.replacedAtOnce(mark, of.removed)
					}
					f.judge(f.envoy, r)
				}
				if tt.relayed {
					matrix(t, ads, func(t *testing.T, c client) { run(t, c, &outcome{t: t}) })
				} else {
					compared(t, ads, run)
				}
			})
		}
	}
}
