package wire

import (
	"net/netip"
	"strconv"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xdstender/tender/cache/wire/schema"
)

// HasKeys reports whether resources of a type can exclude one another, see [Resource.Keys].
func HasKeys(typeURL string) bool {
	t, _ := schema.TypeOf(typeURL)
	return t.Keyed
}

// Keys returns what a client can give to only one resource of a set: of two resources with a common key, an Envoy rejects the
// second (B.11). The keys of a listener are its addresses, that of a scope is its list of fragments, and those of a virtual host
// are its domains within the route configuration. A resource of another type has none, and neither has one whose keys cannot be
// read, such as a listener on a named port.
//
// Addresses are compared as Envoy does (source/common/listener_manager/listener_impl.cc): by protocol, parsed IP address, port and
// network namespace. It does not matter whether the listener binds to its port or shares it. Only listeners that bind to port 0 get
// ports of their own.
func (r *Resource) Keys() []string {
	find := keys[r.TypeURL]
	if find == nil || !r.HasBody() || r.contentDropped {
		return nil
	}
	return find(r.Value(), r.Name)
}

// keys finds the keys of the types whose resources exclude one another.
var keys = map[string]func(value []byte, name string) []string{
	ListenerType:    listenerKeys,
	ScopedRouteType: scopeKeys,
	VirtualHostType: virtualHostKeys,
}

// A socketReader collects the fields of an encoded Listener that decide about its addresses.
type socketReader struct {
	first      []byte   // all occurrences of a message are merged
	others     [][]byte // additional addresses
	unbound    bool
	socketless bool // an API listener, or an internal one, whose address is its name
}

// read reads a Listener: address=2, api_listener=19, bind_to_port=26, internal_listener=27, additional_addresses=33 {address=1}.
// It reports false if the message is malformed.
func (s *socketReader) read(listener []byte) bool {
	f := fieldReader{msg: listener}
	for f.next() {
		switch {
		case f.isBytes(2):
			s.first = append(s.first, f.value...)
		case f.isBytes(19), f.isBytes(27):
			s.socketless = true
		case f.isBytes(26):
			var bind wrapperspb.BoolValue
			s.unbound = proto.Unmarshal(f.value, &bind) == nil && !bind.GetValue()
		case f.isBytes(33):
			var address []byte
			for a := (fieldReader{msg: f.value}); a.next(); {
				if a.isBytes(1) {
					address = append(address, a.value...)
				}
			}
			s.others = append(s.others, address)
		}
	}
	return !f.malformed
}

// listenerKeys returns the keys of an encoded Listener.
func listenerKeys(listener []byte, _ string) (keys []string) {
	var s socketReader
	if !s.read(listener) || s.socketless || len(s.first) == 0 {
		return nil
	}
	for _, encoded := range append([][]byte{s.first}, s.others...) {
		var address corepb.Address
		if proto.Unmarshal(encoded, &address) != nil {
			return nil
		}
		key, readable := addressKey(&address, s.unbound)
		if !readable {
			return nil
		}
		if key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// addressKey returns the key of an address. It is empty if any number of listeners can have the address.
func addressKey(a *corepb.Address, unbound bool) (key string, readable bool) {
	switch {
	case a.GetPipe() != nil:
		return "unix " + a.GetPipe().GetPath(), true
	case a.GetEnvoyInternalAddress() != nil:
		return "internal " + a.GetEnvoyInternalAddress().GetServerListenerName(), true
	}
	s := a.GetSocketAddress()
	ip, err := netip.ParseAddr(s.GetAddress())
	_, numbered := s.GetPortSpecifier().(*corepb.SocketAddress_PortValue)
	switch {
	case err != nil || !numbered || s.GetResolverName() != "":
		return "", false
	case s.GetPortValue() == 0 && !unbound:
		return "", true
	}
	port := strconv.Itoa(int(s.GetPortValue()))
	return strings.Join([]string{s.GetProtocol().String(), ip.String(), port, s.GetNetworkNamespaceFilepath()}, " "), true
}

// scopeKeys returns the key of an encoded ScopedRouteConfiguration: key=3 {fragments=1 {string_key=1}}.
func scopeKeys(scope []byte, _ string) []string {
	var key strings.Builder
	f := fieldReader{msg: scope}
	for f.next() {
		if !f.isBytes(3) {
			continue
		}
		for k := (fieldReader{msg: f.value}); k.next(); {
			if !k.isBytes(1) {
				continue
			}
			var text []byte
			for fragment := (fieldReader{msg: k.value}); fragment.next(); {
				if fragment.isBytes(1) {
					text = fragment.value
				}
			}
			key.Write(protowire.AppendBytes(nil, text)) // with its length, so that "a", "b" is not "ab"
		}
	}
	if f.malformed || key.Len() == 0 {
		return nil
	}
	return []string{key.String()}
}

// virtualHostKeys returns the keys of an encoded VirtualHost: domains=2. The name of the resource is that of its route
// configuration, and the rest behind the last slash. Envoy compares domains without their case.
func virtualHostKeys(host []byte, name string) (keys []string) {
	slash := strings.LastIndexByte(name, '/')
	routes := name[:max(slash, 0)]
	f := fieldReader{msg: host}
	for f.next() {
		if f.isBytes(2) {
			keys = append(keys, routes+" "+strings.ToLower(string(f.value)))
		}
	}
	if f.malformed || slash < 0 {
		return nil
	}
	return keys
}
