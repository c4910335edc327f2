package get

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/cmd/tender/cli"
)

// receive opens an ADS stream with the subscription of o, acknowledges each response, and sends it to answers. The
// first answer reports that the stream is open. receive returns when ctx ends, or after an answer with an error.
func receive(ctx context.Context, conn *grpc.ClientConn, o options, answers chan<- answer) {
	open := openDelta
	if o.sotw {
		open = openSotW
	}
	pass := func(a answer) bool {
		select {
		case answers <- a:
			return a.err == nil
		case <-ctx.Done():
			return false
		}
	}
	next, err := open(ctx, discoverypb.NewAggregatedDiscoveryServiceClient(conn), o)
	if !pass(answer{opened: true, err: explainStream(err, o)}) {
		return
	}
	for {
		a, err := next()
		a.err = explainStream(err, o)
		if !pass(a) {
			return
		}
	}
}

// openDelta opens a Delta stream. next blocks until the next response of the type, and acknowledges it.
func openDelta(ctx context.Context, client discoverypb.AggregatedDiscoveryServiceClient, o options) (next func() (answer, error), err error) {
	stream, err := client.DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	if err := sent(stream.Send(&discoverypb.DeltaDiscoveryRequest{
		Node:                   o.sentNode(),
		TypeUrl:                o.typeURL,
		ResourceNamesSubscribe: o.subscribed(),
	})); err != nil {
		return nil, err
	}
	return func() (answer, error) {
		for {
			response, err := stream.Recv()
			if err != nil {
				return answer{}, err
			}
			if response.GetTypeUrl() != o.typeURL {
				continue // a type without a subscription
			}
			err = sent(stream.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: o.typeURL, ResponseNonce: response.GetNonce()}))
			return deltaAnswer(response), err
		}
	}, nil
}

// deltaAnswer returns the content of a response. Names without a resource are absent.
func deltaAnswer(response *discoverypb.DeltaDiscoveryResponse) answer {
	a := answer{absent: response.GetRemovedResources(), refused: refusals(response.GetResourceErrors())}
	for _, name := range response.GetRemovedResourceNames() {
		a.absent = append(a.absent, name.GetName())
	}
	for _, r := range response.GetResources() {
		it := unwrapped(r)
		switch {
		case r.GetResource() != nil:
			a.items = append(a.items, it)
		case r.GetTtl() == nil: // with a TTL and no content, it is a heartbeat
			a.absent = append(a.absent, it.name)
		}
	}
	return a
}

// A sotwStream is a state-of-the-world stream with one subscription.
type sotwStream struct {
	rpc     discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	typeURL string

	// mu guards the fields below, and serializes Send, which is not safe for concurrent use.
	mu       sync.Mutex
	names    []string // in each request; none is the legacy wildcard
	answered bool     // the server has sent a response of the type
}

// openSotW opens a state-of-the-world stream. next blocks until the next response of the type, and acknowledges it.
func openSotW(ctx context.Context, client discoverypb.AggregatedDiscoveryServiceClient, o options) (next func() (answer, error), err error) {
	rpc, err := client.StreamAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	s := &sotwStream{rpc: rpc, typeURL: o.typeURL, names: o.names}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.send(&discoverypb.DiscoveryRequest{Node: o.sentNode()}); err != nil {
		return nil, err
	}
	if len(o.names) == 0 && len(o.subscribed()) > 0 {
		again := time.AfterFunc(quiet, s.star)
		context.AfterFunc(ctx, func() { again.Stop() })
	}
	return s.next, nil
}

// star subscribes to "*" after the server has ignored the legacy wildcard, an empty list. For types such as EDS, some
// servers support only one of the two.
func (s *sotwStream) star() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answered {
		return
	}
	s.names = []string{"*"}
	_ = s.send(new(discoverypb.DiscoveryRequest)) // next returns the error of the stream
}

// send sends a request for the names. The caller holds mu.
func (s *sotwStream) send(req *discoverypb.DiscoveryRequest) error {
	req.TypeUrl, req.ResourceNames = s.typeURL, s.names
	return sent(s.rpc.Send(req))
}

// next blocks until the next response of the type, and acknowledges it.
func (s *sotwStream) next() (answer, error) {
	for {
		response, err := s.rpc.Recv()
		if err != nil {
			return answer{}, err
		}
		if response.GetTypeUrl() != s.typeURL {
			continue // a type without a subscription
		}
		s.mu.Lock()
		s.answered = true
		err = s.send(&discoverypb.DiscoveryRequest{VersionInfo: response.GetVersionInfo(), ResponseNonce: response.GetNonce()})
		s.mu.Unlock()
		return sotwAnswer(response), err
	}
}

// sotwAnswer returns the content of a response. A resource without a version has that of the response.
func sotwAnswer(response *discoverypb.DiscoveryResponse) answer {
	a := answer{full: wire.FullState(response.GetTypeUrl()), refused: refusals(response.GetResourceErrors())}
	for i, body := range response.GetResources() {
		wrapper := &discoverypb.Resource{Resource: body}
		if body.MessageIs(wrapper) {
			inner := new(discoverypb.Resource)
			if proto.Unmarshal(body.GetValue(), inner) == nil {
				wrapper = inner
			}
		}
		it := unwrapped(wrapper)
		if it.version == "" {
			it.version = response.GetVersionInfo()
		}
		if it.name == "" {
			it.name = fmt.Sprintf("#%d", i) // unknown type: its name cannot be decoded
		}
		a.items = append(a.items, it)
	}
	return a
}

// unwrapped returns the resource in a wrapper. If the wrapper has no name, the name is decoded from the resource; it is
// empty for an unknown type.
func unwrapped(r *discoverypb.Resource) item {
	it := item{
		typeURL: r.GetResource().GetTypeUrl(),
		name:    r.GetName(),
		version: r.GetVersion(),
		aliases: r.GetAliases(),
		value:   r.GetResource().GetValue(),
	}
	if it.name == "" {
		it.name = r.GetResourceName().GetName()
	}
	if it.name == "" {
		it.name, _ = schema.ResourceName(it.typeURL, it.value)
	}
	return it
}

// refusals returns the errors that a server reports for resources, by name. It returns nil if there are none.
func refusals(errs []*discoverypb.ResourceError) map[string]string {
	if len(errs) == 0 {
		return nil
	}
	refused := make(map[string]string, len(errs))
	for _, e := range errs {
		s := status.FromProto(e.GetErrorDetail())
		refused[e.GetResourceName().GetName()] = fmt.Sprintf("%s: %s", s.Code(), s.Message())
	}
	return refused
}

// soTW is the client feature for which a server sends names and versions of resources in SotW.
const soTW = "xds.config.resource-in-sotw"

// sentNode returns the Node to send.
func (o *options) sentNode() *corepb.Node {
	n := proto.CloneOf(o.node)
	if o.sotw && !slices.Contains(n.GetClientFeatures(), soTW) {
		n.ClientFeatures = append(n.ClientFeatures, soTW)
	}
	return n
}

// subscribed returns the names to subscribe to. For a wildcard subscription it returns none, the legacy wildcard that
// all servers support. For types where no names may mean no resources, it returns "*".
func (o *options) subscribed() []string {
	if len(o.names) > 0 {
		return o.names
	}
	if wire.LegacyWildcard(o.typeURL) {
		return nil
	}
	return []string{wire.Wildcard}
}

// sent replaces io.EOF from Send by nil: the stream has ended, and Recv returns its error.
func sent(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// explainStream converts an error of a stream to one that suggests what to do. It returns nil for nil.
func explainStream(err error, o options) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errors.New("the server ended the stream")
	}
	s := status.Convert(err)
	switch s.Code() {
	case codes.Unimplemented:
		if o.sotw {
			return fmt.Errorf("the server does not serve state-of-the-world ADS; try without --sotw (%s)", s.Message())
		}
		return fmt.Errorf("the server does not serve Delta ADS; try --sotw (%s)", s.Message())
	case codes.Unavailable:
		return errors.New(explainConnection(s.Message(), o))
	default:
		return fmt.Errorf("%s: %s", s.Code(), s.Message())
	}
}

// explainConnection removes prefixes and quotes of gRPC from its error about a failed connection, and suggests TLS if
// the server may require it.
func explainConnection(text string, o options) string {
	if inner, ok := strings.CutPrefix(text, "connection error: desc = "); ok {
		if plain, err := strconv.Unquote(inner); err == nil {
			text = plain
		}
	}
	text = strings.TrimPrefix(text, "transport: ")
	text = strings.TrimPrefix(text, "Error while dialing: ")
	if o.tls == (cli.TLSFlags{}) && strings.Contains(text, "server preface") {
		text += " (does the server want TLS? see --tls-ca)"
	}
	return text
}
