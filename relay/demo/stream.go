package demo

import (
	"context"
	"errors"
	"io"
	"slices"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// A stream is one ADS stream of either variant. Its methods must be called from one goroutine.
type stream interface {
	// subscribe replaces the names that are subscribed to, was, by names. Both are sorted. No names in the first
	// subscription of a type mean wildcard.
	subscribe(typeURL string, names, was []string) error
	// receive returns the next response. It returns an error when the stream has ended.
	receive() (update, error)
	// acknowledge sends an ACK.
	acknowledge(update) error
	// reject sends a NACK with an error detail.
	reject(u update, detail string) error
}

// An update is a response of either variant.
type update struct {
	typeURL, version, nonce string            // version is empty for Delta
	resources               map[string][]byte // serialized resources by name
	removed                 []string
	complete                bool // resources that are not in the response are removed
}

// A deltaStream is a stream of incremental xDS.
type deltaStream struct {
	rpc  discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node *corepb.Node // nil after the first request, which carries it
}

// openDelta opens a Delta stream. It ends with ctx.
func openDelta(ctx context.Context, conn *grpc.ClientConn, node *corepb.Node) (stream, error) {
	rpc, err := discoverypb.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	return &deltaStream{rpc, node}, err
}

// send sends a request, the first one with the node.
func (s *deltaStream) send(r *discoverypb.DeltaDiscoveryRequest) error {
	r.Node, s.node = s.node, nil
	return sent(s.rpc.Send(r))
}

func (s *deltaStream) subscribe(typeURL string, names, was []string) error {
	return s.send(&discoverypb.DeltaDiscoveryRequest{
		TypeUrl:                  typeURL,
		ResourceNamesSubscribe:   without(names, was),
		ResourceNamesUnsubscribe: without(was, names),
	})
}

func (s *deltaStream) receive() (update, error) {
	r, err := s.rpc.Recv()
	if err != nil {
		return update{}, err
	}
	u := update{typeURL: r.GetTypeUrl(), nonce: r.GetNonce(), removed: r.GetRemovedResources(), resources: make(map[string][]byte)}
	for _, res := range r.GetResources() {
		u.resources[res.GetName()] = res.GetResource().GetValue()
	}
	return u, nil
}

func (s *deltaStream) acknowledge(u update) error {
	return s.send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: u.typeURL, ResponseNonce: u.nonce})
}

func (s *deltaStream) reject(u update, detail string) error { return s.answer(u, detail) }

// A sotwStream is a state-of-the-world stream.
type sotwStream struct {
	rpc    discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node   *corepb.Node                             // nil after the first request, which carries it
	newest map[string]*discoverypb.DiscoveryRequest // last request by type URL
}

// openSotW opens a SotW stream. It ends with ctx.
func openSotW(ctx context.Context, conn *grpc.ClientConn, node *corepb.Node) (stream, error) {
	rpc, err := discoverypb.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	return &sotwStream{rpc, node, make(map[string]*discoverypb.DiscoveryRequest)}, err
}

// send applies change to the last request of a type and sends it. SotW requests repeat the fields that do not change.
func (s *sotwStream) send(typeURL string, change func(*discoverypb.DiscoveryRequest)) error {
	r := s.newest[typeURL]
	if r == nil {
		r = &discoverypb.DiscoveryRequest{TypeUrl: typeURL}
		s.newest[typeURL] = r
	}
	change(r)
	r.Node, s.node = s.node, nil
	return sent(s.rpc.Send(r))
}

func (s *sotwStream) subscribe(typeURL string, names, _ []string) error {
	return s.send(typeURL, func(r *discoverypb.DiscoveryRequest) { r.ResourceNames = names })
}

func (s *sotwStream) receive() (update, error) {
	r, err := s.rpc.Recv()
	if err != nil {
		return update{}, err
	}
	u := update{
		typeURL: r.GetTypeUrl(), version: r.GetVersionInfo(), nonce: r.GetNonce(),
		resources: make(map[string][]byte),
		complete:  wire.FullState(r.GetTypeUrl()),
	}
	for _, body := range r.GetResources() {
		if name, ok := schema.ResourceName(body.GetTypeUrl(), body.GetValue()); ok {
			u.resources[name] = body.GetValue()
		}
	}
	return u, nil
}

func (s *sotwStream) acknowledge(u update) error {
	return s.send(u.typeURL, func(r *discoverypb.DiscoveryRequest) { r.VersionInfo, r.ResponseNonce = u.version, u.nonce })
}

func (s *sotwStream) reject(u update, detail string) error {
	defer func() { s.newest[u.typeURL].ErrorDetail = nil }() // the next request must not be a NACK
	return s.send(u.typeURL, func(r *discoverypb.DiscoveryRequest) {
		r.ResponseNonce = u.nonce // VersionInfo stays that of the last accepted response
		r.ErrorDetail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: detail}
	})
}

// without returns the names that are not among others. others must be sorted.
func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, found := slices.BinarySearch(others, name)
		return found
	})
}

// sent drops the io.EOF with which Send reports that the stream has ended. receive returns the actual error.
func sent(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
