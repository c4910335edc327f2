// Package content makes the resources that the benchmarks send. Every process makes
// the same resources from the same description, so processes need not exchange them.
//
// A resource is a valid message of its type, padded to a size, that ends with a
// [Stamp]. The stamp contains the index of the resource, the number of the change and
// its time. A reader finds the stamp at the end without decoding the message.
package content

import (
	"fmt"
	"strconv"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
)

// Type URLs of the resource types that the benchmarks use.
const (
	Cluster  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	Endpoint = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	Listener = "type.googleapis.com/envoy.config.listener.v3.Listener"
	Route    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

// A Kind describes Count resources of one type and one size. Bytes is the length of
// each encoded message, and at least 128.
type Kind struct {
	TypeURL string
	Count   int
	Bytes   int
	Words   bool // filled with words, which compress as well as real resources; otherwise with random letters
}

// prefixes are the prefixes of resource names, by type URL.
var prefixes = map[string]string{Cluster: "cluster-", Endpoint: "endpoints-", Listener: "listener-", Route: "routes-"}

// Name returns the name of resource i of a type. It has 14 bytes or more, since real
// names are long.
func Name(typeURL string, i int) string {
	return prefixes[typeURL] + fmt.Sprintf("%08d", i)
}

// Index returns the index in a name that [Name] made. Errors: name is of another form.
func Index(typeURL, name string) (int, error) {
	n := len(prefixes[typeURL])
	if len(name) <= n || name[:n] != prefixes[typeURL] {
		return 0, fmt.Errorf("resource name %q: want %s and a number", name, prefixes[typeURL])
	}
	i, err := strconv.Atoi(name[n:])
	if err != nil {
		return 0, fmt.Errorf("resource name %q: %w", name, err)
	}
	return i, nil
}

// Version returns the version of a resource. It has 16 hexadecimal digits, like the
// hashes that control planes use.
func Version(s Stamp) string {
	return fmt.Sprintf("%08x%08x", s.Index*2654435761%(1<<32), s.Change)
}

// Message returns the resource that a stamp describes.
func (k Kind) Message(s Stamp) proto.Message {
	name := Name(k.TypeURL, s.Index)
	filler := k.Bytes - StampBytes
	for {
		m := message(k.TypeURL, name, k.fill(filler, s))
		size := proto.Size(m)
		if size <= k.Bytes || filler <= 0 {
			return m
		}
		filler -= size - k.Bytes
	}
}

// Encode returns the bytes of [Kind.Message].
func (k Kind) Encode(s Stamp) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(k.Message(s))
	if err != nil {
		panic(fmt.Sprintf("encode %s: %v", k.TypeURL, err)) // cannot happen: all fields are ASCII
	}
	return b
}

// message returns a message whose last string holds the filler and the stamp.
func message(typeURL, name, last string) proto.Message {
	switch typeURL {
	case Cluster:
		return &clusterpb.Cluster{Name: name, AltStatName: last}
	case Endpoint:
		endpoint := &endpointpb.LbEndpoint{HostIdentifier: &endpointpb.LbEndpoint_Endpoint{Endpoint: &endpointpb.Endpoint{Hostname: last}}}
		return &endpointpb.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints:   []*endpointpb.LocalityLbEndpoints{{LbEndpoints: []*endpointpb.LbEndpoint{endpoint}}},
		}
	case Listener:
		return &listenerpb.Listener{Name: name, StatPrefix: last}
	case Route:
		return &routepb.RouteConfiguration{Name: name, VirtualHosts: []*routepb.VirtualHost{{Name: "all", Domains: []string{last}}}}
	default:
		panic("no resources of type " + typeURL)
	}
}

// words fill resources of a kind with Words.
var words = []string{
	"outbound|80||", "outbound|443||", ".svc.cluster.local", "reviews", "ratings", "envoy.transport_sockets.tls", "SAN_URI",
	"spiffe://cluster.local/ns/", "/sa/default", "istio-peer-exchange", "10.4.", ":8080", "eu-west-1a", "connect_timeout",
}

// fill returns n pseudo-random bytes, which compress badly unless they are words, followed by the stamp.
func (k Kind) fill(n int, s Stamp) string {
	b := make([]byte, max(n, 0), max(n, 0)+StampBytes)
	x := uint32(s.Index)*2654435761 + uint32(s.Change) + 1
	for i := 0; i < len(b); {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		if k.Words {
			i += copy(b[i:], words[x%uint32(len(words))])
			continue
		}
		b[i] = 'a' + byte(x%26)
		i++
	}
	return string(s.Append(b))
}
