package wire_test

import (
	"slices"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

func keysOf(t *testing.T, name string, m proto.Message) []string {
	t.Helper()
	typeURL := "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
	return check.Must(wire.NewResource(typeURL, name, "1", check.Must(proto.Marshal(m)))).Keys()
}

// excludes reports whether two resources have a common key.
func excludes(a, b []string) bool {
	return slices.ContainsFunc(a, func(key string) bool { return slices.Contains(b, key) })
}

// TestB11_KeysOfListeners compares addresses as Envoy does. system/envoy gives the same pairs to Envoys.
func TestB11_KeysOfListeners(t *testing.T) {
	pairs := append([]relaytest.AddressPair{
		{A: []string{"[::ffff:127.0.0.1]:80"}, B: []string{"127.0.0.1:80"}},
		{A: []string{"internal x"}, B: []string{"internal x"}, Exclude: true},
		{A: []string{"named 127.0.0.1:http"}, B: []string{"named 127.0.0.1:http"}}, // unreadable
		{A: []string{"example.com:80"}, B: []string{"example.com:80"}},             // unreadable
	}, relaytest.AddressPairs...)
	for _, pair := range pairs {
		a, b := keysOf(t, "a", relaytest.ListenerAt("a", "r", pair.A...)), keysOf(t, "b", relaytest.ListenerAt("b", "r", pair.B...))
		if excludes(a, b) != pair.Exclude {
			t.Errorf("%v has keys %q, %v has %q: want that they exclude one another: %v", pair.A, a, pair.B, b, pair.Exclude)
		}
	}
}

// TestB11_ListenersThatShareTheirPort exclude one another, whether they bind to it or not. Unbound listeners on port 0 do too.
func TestB11_ListenersThatShareTheirPort(t *testing.T) {
	bound, unbound, zero := relaytest.ListenerAt("l", "r", "127.0.0.1:80"), relaytest.ListenerAt("l", "r", "127.0.0.1:80"), relaytest.ListenerAt("l", "r", "127.0.0.1:0")
	unbound.BindToPort, zero.BindToPort = wrapperspb.Bool(false), wrapperspb.Bool(false)
	bound.EnableReusePort = wrapperspb.Bool(true)
	if a, b := keysOf(t, "a", bound), keysOf(t, "b", unbound); !excludes(a, b) {
		t.Errorf("a bound listener has keys %q, an unbound one %q: want a common one", a, b)
	}
	if keys := keysOf(t, "a", zero); len(keys) != 1 {
		t.Errorf("an unbound listener on port 0 has keys %q, want one", keys)
	}
}

// TestB11_ListenersWithoutKeys have no socket, or one that cannot be read.
func TestB11_ListenersWithoutKeys(t *testing.T) {
	api := relaytest.ListenerAt("l", "r", "127.0.0.1:80")
	api.ApiListener = &listenerpb.ApiListener{}
	internal := &listenerpb.Listener{Name: "i", ListenerSpecifier: &listenerpb.Listener_InternalListener{
		InternalListener: &listenerpb.Listener_InternalListenerConfig{},
	}}
	resolved := relaytest.ListenerAt("l", "r", "127.0.0.1:80")
	resolved.Address.GetSocketAddress().ResolverName = "custom"
	halfRead := relaytest.ListenerAt("l", "r", "127.0.0.1:80", "named 127.0.0.1:http")
	for _, l := range []*listenerpb.Listener{{Name: "none"}, api, internal, resolved, halfRead} {
		if keys := keysOf(t, l.Name, l); keys != nil {
			t.Errorf("%v has keys %q, want none", l, keys)
		}
	}
}

// TestB11_KeysOfMergedFields: a decoder merges the occurrences of a message.
func TestB11_KeysOfMergedFields(t *testing.T) {
	first := check.Must(proto.Marshal(relaytest.ListenerAt("l", "r", "127.0.0.1:80")))
	port := check.Must(proto.Marshal(&listenerpb.Listener{Address: &corepb.Address{Address: &corepb.Address_SocketAddress{
		SocketAddress: &corepb.SocketAddress{PortSpecifier: &corepb.SocketAddress_PortValue{PortValue: 81}},
	}}}))
	r := check.Must(wire.NewResource(wire.ListenerType, "l", "1", slices.Concat(first, port)))
	if want := keysOf(t, "l", relaytest.ListenerAt("l", "r", "127.0.0.1:81")); !slices.Equal(r.Keys(), want) {
		t.Errorf("got keys %q, want %q", r.Keys(), want)
	}
}

// TestB11_KeysOfScopes compares the list of fragments.
func TestB11_KeysOfScopes(t *testing.T) {
	scope := func(fragments ...string) []string {
		key := &routepb.ScopedRouteConfiguration_Key{}
		for _, text := range fragments {
			key.Fragments = append(key.Fragments, &routepb.ScopedRouteConfiguration_Key_Fragment{
				Type: &routepb.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: text},
			})
		}
		return keysOf(t, "s", &routepb.ScopedRouteConfiguration{Name: "s", RouteConfigurationName: "r", Key: key})
	}
	for _, tt := range []struct {
		a, b     []string
		excludes bool
	}{
		{scope("a", "b"), scope("a", "b"), true},
		{scope("a", "b"), scope("ab"), false},
		{scope("a", "b"), scope("b", "a"), false},
		{scope("A"), scope("a"), false},
		{scope(""), scope(""), true},
		{scope(), scope(), false},
	} {
		if excludes(tt.a, tt.b) != tt.excludes {
			t.Errorf("scopes with keys %q and %q: want that they exclude one another: %v", tt.a, tt.b, tt.excludes)
		}
	}
}

// TestB11_KeysOfVirtualHosts compares domains within one route configuration, without their case.
func TestB11_KeysOfVirtualHosts(t *testing.T) {
	host := func(name string, domains ...string) []string {
		return keysOf(t, name, &routepb.VirtualHost{Name: name, Domains: domains})
	}
	for _, tt := range []struct {
		a, b     []string
		excludes bool
	}{
		{host("r/a", "a.example"), host("r/b", "a.example"), true},
		{host("r/a", "a.example", "b.example"), host("r/b", "c.example", "B.example"), true},
		{host("r/a", "*"), host("r/b", "*"), true},
		{host("r/a", "*"), host("r/b", "a.example"), false},
		{host("r/a", "a.example"), host("s/b", "a.example"), false},
		{host("a", "a.example"), host("b", "a.example"), false}, // not of a route configuration
	} {
		if excludes(tt.a, tt.b) != tt.excludes {
			t.Errorf("virtual hosts with keys %q and %q: want that they exclude one another: %v", tt.a, tt.b, tt.excludes)
		}
	}
}
