// Package operator lists the clients of a relay, its resources and the clients that have them, and the history of
// resources, for the admin API and by gRPC (CSDS).
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
	Server  *downstream.Server
	Views   func() []View                  // in the order of their keys, shared ones last
	Origins []string                       // names
	Route   func(typeURL, name string) int // the number of the origin that answers for a name, or for a wildcard if it is empty
	Journal *history.Journal               // nil if none is kept
}

// A View is the view of a node group, or one that groups share.
type View struct {
	Key     string // of the group
	View    *cache.View
	Streams int
	Counts  *downstream.Counts // nil if shared
	Node    *corepb.Node       // that the relay presents to the origins; nil if shared
	Shared  bool
	Origin  int // of a shared view
}
