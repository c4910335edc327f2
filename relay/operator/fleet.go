// Package operator lists the clients of a relay, its resources, the clients of a resource, and the history of
// resources. The admin API and CSDS use it.
//
// The package is not a stable API: programs that embed Tender use package relay.
package operator

import (
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/history"
)

// A Fleet has the clients of a server and the views of their node groups. It implements admin.Fleet.
type Fleet struct {
	NodeID  string // of the relay
	Server  *downstream.Server
	Views   func() []View    // in the order of their keys, shared views last
	Origins []string         // names of the origins
	Journal *history.Journal // nil if TENDER_HISTORY is off

	// Route returns the index of the origin that serves a name, or a wildcard if name is empty.
	Route func(typeURL, name string) int
}

// A View is the view of a node group, or a view that node groups share.
type View struct {
	Key     string // key of the node group
	View    *cache.View
	Streams int                // number of client streams
	Counts  *downstream.Counts // nil if Shared
	Node    *corepb.Node       // Node that the relay sends to the origins; nil if Shared
	Shared  bool
	Origin  int // index of the origin of a shared view
}
