package attack

import (
	"fmt"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/bench/content"
)

const (
	// nameStreams is the number of streams on each connection of an attack with names in many requests.
	nameStreams = 20

	// requestNames is the number of names in each of their requests, which is too small for any limit of one request.
	requestNames = 450
)

func inventedName() string { return fmt.Sprint("invented-", numbers.Add(1)) }

func inventedGlob() string {
	return fmt.Sprintf("xdstp://invented/envoy.config.cluster.v3.Cluster/%d/*", numbers.Add(1))
}

// inventions returns requestNames new names.
func inventions(name func() string) []string {
	names := make([]string, requestNames)
	for i := range names {
		names[i] = name()
	}
	return names
}

// furtherNames subscribes to further nonexistent names in each request.
func (a *attacker) furtherNames() error { return a.further(inventedName) }

// furtherGlobs subscribes to further globs in each request.
func (a *attacker) furtherGlobs() error { return a.further(inventedGlob) }

func (a *attacker) further(name func() string) error {
	return a.onStreams(nameStreams, func() nextRequest {
		return func(int) *discoverypb.DeltaDiscoveryRequest {
			return &discoverypb.DeltaDiscoveryRequest{Node: node, TypeUrl: content.Cluster, ResourceNamesSubscribe: inventions(name)}
		}
	})
}

// otherNames subscribes to further nonexistent names in each request, and unsubscribes from those of the previous one.
func (a *attacker) otherNames() error {
	return a.onStreams(nameStreams, func() nextRequest {
		var last []string
		return func(int) *discoverypb.DeltaDiscoveryRequest {
			r := &discoverypb.DeltaDiscoveryRequest{
				Node: node, TypeUrl: content.Cluster, ResourceNamesSubscribe: inventions(inventedName), ResourceNamesUnsubscribe: last,
			}
			last = r.ResourceNamesSubscribe
			return r
		}
	})
}

// sameNames alternately subscribes to nonexistent names and unsubscribes from them.
func (a *attacker) sameNames() error {
	names := inventions(inventedName)
	return a.onStreams(nameStreams, func() nextRequest { return inAndOut(names) })
}
