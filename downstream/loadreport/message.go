package loadreport

import (
	"math"

	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// Limits of a report. Each cluster, locality, endpoint, metric and so on is a message.
const (
	maxMessages  = 100_000
	messageBytes = 256 // maximum size of a decoded message in memory, without strings
	maxNesting   = 100
)

// A message is an encoded request of a client, and its charge.
type message struct {
	bytes []byte
	guard.Charge
}

// decode decodes a report and charges for it. It returns the Node encoded, since a Node has separate limits. Errors are
// gRPC statuses.
func decode(m *message) (r *lrspb.LoadStatsRequest, node guard.RawNode, err error) {
	const nodeField = 1
	var rest []byte
	var found wire.Elements
	r = new(lrspb.LoadStatsRequest)
	if node.Encoded, node.Size, rest, err = wire.TakeNode(m.bytes, nodeField); err == nil {
		most := wire.Elements{Messages: maxMessages, Values: math.MaxInt}
		found, err = wire.CountElements(r.ProtoReflect().Descriptor(), rest, maxNesting, most)
	}
	switch {
	case err != nil:
		return nil, node, invalid(err)
	case found.Messages > maxMessages:
		return nil, node, guard.Exceeds(guard.LimitRequest,
			"load report of more than %d clusters, localities, endpoints and metrics: no more are allowed", maxMessages)
	}
	if err := m.Hold(len(rest) + found.Messages*messageBytes); err != nil {
		return nil, node, err
	}
	if err := proto.Unmarshal(rest, r); err != nil {
		return nil, node, invalid(err)
	}
	return r, node, nil
}

// invalid returns an error with the status INVALID_ARGUMENT.
func invalid(err error) error { return guard.Refuses(guard.InvalidReport, "load report: %v", err) }
