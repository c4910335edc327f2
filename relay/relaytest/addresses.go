package relaytest

import (
	"fmt"
	"strconv"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
)

// An AddressPair is the addresses of two listeners, in the notation of ListenerAt, and whether an Envoy that has the first one
// rejects the second.
type AddressPair struct {
	A, B    []string
	Exclude bool
}

// AddressPairs are listeners that may exclude one another.
var AddressPairs = []AddressPair{
	{[]string{"127.0.0.1:80"}, []string{"127.0.0.1:80"}, true},
	{[]string{"127.0.0.1:80"}, []string{"127.0.0.1:81"}, false},
	{[]string{"127.0.0.1:80"}, []string{"127.0.0.2:80"}, false},
	{[]string{"127.0.0.1:80"}, []string{"udp 127.0.0.1:80"}, false},
	{[]string{"udp 127.0.0.1:80"}, []string{"udp 127.0.0.1:80"}, true},
	{[]string{"0.0.0.0:80"}, []string{"127.0.0.1:80"}, false},
	{[]string{"0.0.0.0:80"}, []string{"[::]:80"}, false},
	{[]string{"[::1]:80"}, []string{"[0:0:0:0:0:0:0:1]:80"}, true},
	{[]string{"127.0.0.1:0"}, []string{"127.0.0.1:0"}, false},
	{[]string{"unix DIR/a"}, []string{"unix DIR/a"}, true},
	{[]string{"unix DIR/a"}, []string{"unix DIR/b"}, false},
	{[]string{"in /proc/self/ns/net 127.0.0.1:80"}, []string{"127.0.0.1:80"}, false},
	{[]string{"in /proc/self/ns/net 127.0.0.1:80"}, []string{"in /proc/self/ns/net 127.0.0.1:80"}, true},
	{[]string{"127.0.0.1:80", "127.0.0.1:81"}, []string{"127.0.0.1:81"}, true},
	{[]string{"127.0.0.1:80", "127.0.0.1:81"}, []string{"127.0.0.1:82", "127.0.0.1:81"}, true},
	{[]string{"127.0.0.1:80", "127.0.0.1:0"}, []string{"127.0.0.1:81", "127.0.0.1:0"}, false},
}

// ListenerAt is Listener with the given addresses: "127.0.0.1:80", "[::1]:80", "udp 127.0.0.1:80", "in /ns 127.0.0.1:80" (a network
// namespace), "named 127.0.0.1:http" (a named port), "unix /path" or "internal name". It panics if an
// address is written in another way.
func ListenerAt(name, routes string, addresses ...string) *listenerpb.Listener {
	l := Listener(name, routes)
	for i, text := range addresses {
		if a := readAddress(text); i == 0 {
			l.Address = a
		} else {
			l.AdditionalAddresses = append(l.AdditionalAddresses, &listenerpb.AdditionalAddress{Address: a})
		}
	}
	return l
}

func readAddress(text string) *corepb.Address {
	kind, rest, ok := strings.Cut(text, " ")
	if !ok {
		kind, rest = "tcp", text
	}
	s := &corepb.SocketAddress{}
	switch kind {
	case "unix":
		return &corepb.Address{Address: &corepb.Address_Pipe{Pipe: &corepb.Pipe{Path: rest}}}
	case "internal":
		return &corepb.Address{Address: &corepb.Address_EnvoyInternalAddress{EnvoyInternalAddress: &corepb.EnvoyInternalAddress{
			AddressNameSpecifier: &corepb.EnvoyInternalAddress_ServerListenerName{ServerListenerName: rest},
		}}}
	case "udp":
		s.Protocol = corepb.SocketAddress_UDP
	case "in":
		s.NetworkNamespaceFilepath, rest, _ = strings.Cut(rest, " ")
	}
	colon := strings.LastIndex(rest, ":")
	if colon < 0 {
		panic(fmt.Sprintf("address %q has no port", text))
	}
	s.Address = strings.Trim(rest[:colon], "[]")
	port, err := strconv.ParseUint(rest[colon+1:], 10, 16)
	switch {
	case kind == "named":
		s.PortSpecifier = &corepb.SocketAddress_NamedPort{NamedPort: rest[colon+1:]}
	case err != nil:
		panic(fmt.Sprintf("address %q: %v", text, err))
	default:
		s.PortSpecifier = &corepb.SocketAddress_PortValue{PortValue: uint32(port)}
	}
	return &corepb.Address{Address: &corepb.Address_SocketAddress{SocketAddress: s}}
}
