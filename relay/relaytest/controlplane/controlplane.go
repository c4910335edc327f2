// Package controlplane has origins that run go-control-plane.
//
// The package is not a stable API: programs that embed Tender use package relay.
package controlplane

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/memnet"
	"github.com/xdstender/tender/relay/relaytest/proxy"
	"github.com/xdstender/tender/relay/relaytest/wait"
)

// Kinds of caches of a Server.
const (
	Linear       = "linear"
	Snapshots    = "snapshot"
	ADSSnapshots = "snapshot, ADS mode"

	// SotW only. ADS mode has no such kind: in SotW, its cache answers only requests that name all resources.
	LinearSotW    = Linear + sotwOnly
	SnapshotsSotW = Snapshots + sotwOnly
	sotwOnly      = ", SotW only"
)

// A Server is an origin that runs go-control-plane's server. Its caches are lost when it stops.
type Server struct {
	tb     wait.TB
	Kind   string
	addr   string
	memory *memnet.Network // nil for sockets

	// Register, if set, adds services to the server after each restart.
	Register func(grpc.ServiceRegistrar)

	// Requests in the order of arrival. A SotW request is stored as a Delta request with their common fields.
	requests  chan *discoverypb.DeltaDiscoveryRequest
	responses atomic.Int64

	// Owned by the test.
	Resources map[string]map[string]proto.Message // by type and name: the resources to serve
	pushed    map[string]map[string]proto.Message // the content of the caches
	pushes    int

	linear   map[string]*cachev3.LinearCache
	snapshot cachev3.SnapshotCache
	server   *grpc.Server
	cancel   context.CancelFunc
	served   chan error
}

// servedTypes are the types that it serves, in the order of updates.
var servedTypes = []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, relaytest.RouteType}

// New starts a control plane that serves msgs, until the test ends.
func New(tb wait.TB, kind string, memory *memnet.Network, msgs ...proto.Message) *Server {
	tb.Helper()
	o := &Server{
		tb: tb, Kind: kind, memory: memory,
		requests:  make(chan *discoverypb.DeltaDiscoveryRequest, 4096),
		Resources: make(map[string]map[string]proto.Message),
	}
	for _, typeURL := range servedTypes {
		o.Resources[typeURL] = make(map[string]proto.Message)
	}
	if memory == nil {
		o.addr = proxy.FreeAddress(tb)
	}
	o.Edit(msgs, nil)
	o.Restart()
	wait.Cleanup(tb, o.Stop)
	return o
}

// Target returns the gRPC target, which stays the same.
func (o *Server) Target() string {
	if o.memory != nil {
		return "passthrough:///origin"
	}
	return o.addr
}

// Stop stops the control plane and drops its caches.
func (o *Server) Stop() {
	o.tb.Helper()
	if o.server == nil {
		return
	}
	o.cancel()
	o.server.Stop()
	if err := <-o.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		o.tb.Errorf("control plane ended: %v", err)
	}
	o.server = nil
}

// Restart starts a new control plane on the same address, with new caches that contain Resources.
func (o *Server) Restart() {
	o.tb.Helper()
	o.Stop()
	o.pushed = make(map[string]map[string]proto.Message)
	o.linear, o.snapshot = make(map[string]*cachev3.LinearCache), nil
	var caches cachev3.Cache
	if strings.HasPrefix(o.Kind, Linear) {
		mux := &cachev3.MuxCache{
			Classify:      func(r *cachev3.Request) string { return r.GetTypeUrl() },
			ClassifyDelta: func(r *cachev3.DeltaRequest) string { return r.GetTypeUrl() },
			Caches:        make(map[string]cachev3.Cache),
		}
		for _, typeURL := range servedTypes {
			o.linear[typeURL] = cachev3.NewLinearCache(typeURL)
			mux.Caches[typeURL] = o.linear[typeURL]
		}
		caches = mux
	} else {
		o.snapshot = cachev3.NewSnapshotCache(o.Kind == ADSSnapshots, cachev3.IDHash{}, nil)
		caches = o.snapshot
	}
	if len(o.Resources[relaytest.ClusterType]) > 0 {
		o.Push()
	}
	o.serve(caches)
}

// serve starts a server on the address with caches.
func (o *Server) serve(caches cachev3.Cache) {
	o.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	// the shortest TENDER_ORIGIN_KEEPALIVE is 10s
	o.server = grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}))
	record := func(r *discoverypb.DeltaDiscoveryRequest) {
		select {
		case o.requests <- r:
		default: // the buffer is full, so no test reads it
		}
	}
	var server discoverypb.AggregatedDiscoveryServiceServer = serverv3.NewServer(ctx, caches, serverv3.CallbackFuncs{
		StreamDeltaRequestFunc: func(_ int64, r *discoverypb.DeltaDiscoveryRequest) error {
			record(proto.CloneOf(r))
			return nil
		},
		StreamRequestFunc: func(_ int64, r *discoverypb.DiscoveryRequest) error {
			record(&discoverypb.DeltaDiscoveryRequest{
				TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetResponseNonce(), ErrorDetail: r.GetErrorDetail(),
			})
			return nil
		},
		StreamResponseFunc: func(context.Context, int64, *discoverypb.DiscoveryRequest, *discoverypb.DiscoveryResponse) {
			o.responses.Add(1)
		},
		StreamDeltaResponseFunc: func(int64, *discoverypb.DeltaDiscoveryRequest, *discoverypb.DeltaDiscoveryResponse) {
			o.responses.Add(1)
		},
	})
	if strings.HasSuffix(o.Kind, sotwOnly) {
		server = withoutDelta{server}
	}
	discoverypb.RegisterAggregatedDiscoveryServiceServer(o.server, server)
	if o.Register != nil {
		o.Register(o.server)
	}
	var l net.Listener
	if o.memory != nil {
		l = o.memory.Listen()
	} else {
		var err error
		if l, err = proxy.ListenAgain(o.addr); err != nil {
			o.tb.Fatalf("listen: %v", err)
		}
	}
	running, served := o.server, make(chan error, 1)
	o.served = served
	go func() { served <- running.Serve(l) }() // awaited by Stop
}

// withoutDelta is a server that does not implement Delta.
type withoutDelta struct {
	discoverypb.AggregatedDiscoveryServiceServer
}

func (withoutDelta) DeltaAggregatedResources(
	discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	return status.Error(codes.Unimplemented, "not implemented")
}

// Put sets resources and sends them.
func (o *Server) Put(msgs ...proto.Message) {
	o.tb.Helper()
	o.Edit(msgs, nil)
	o.Push()
}

// Remove removes resources of a type and sends the removals.
func (o *Server) Remove(typeURL string, names ...string) {
	o.tb.Helper()
	o.Edit(nil, map[string][]string{typeURL: names})
	o.Push()
}

// Edit changes Resources without an update of the caches.
func (o *Server) Edit(put []proto.Message, remove map[string][]string) {
	for _, msg := range put {
		typeURL := "type.googleapis.com/" + string(msg.ProtoReflect().Descriptor().FullName())
		o.Resources[typeURL][cachev3.GetResourceName(msg)] = msg
	}
	for typeURL, names := range remove {
		for _, name := range names {
			delete(o.Resources[typeURL], name)
		}
	}
}

// Push updates the caches to Resources.
func (o *Server) Push() {
	o.tb.Helper()
	if o.snapshot != nil {
		o.pushSnapshot()
		return
	}
	for _, typeURL := range servedTypes {
		put := make(map[string]types.Resource)
		for name, msg := range o.Resources[typeURL] {
			if o.pushed[typeURL][name] != msg {
				put[name] = msg
			}
		}
		var removed []string
		for name := range o.pushed[typeURL] {
			if _, exists := o.Resources[typeURL][name]; !exists {
				removed = append(removed, name)
			}
		}
		if len(put)+len(removed) > 0 {
			if err := o.linear[typeURL].UpdateResources(put, removed); err != nil {
				o.tb.Fatalf("update the control plane: %v", err)
			}
		}
		o.pushed[typeURL] = maps.Clone(o.Resources[typeURL])
	}
}

// pushSnapshot sets a snapshot with Resources and a new version.
func (o *Server) pushSnapshot() {
	o.tb.Helper()
	o.pushes++
	all := make(map[string][]types.Resource)
	for typeURL, byName := range o.Resources {
		for _, msg := range byName {
			all[typeURL] = append(all[typeURL], msg)
		}
	}
	snapshot, err := cachev3.NewSnapshot(strconv.Itoa(o.pushes), all)
	if err != nil {
		o.tb.Fatalf("update the control plane: %v", err)
	}
	if err := o.snapshot.SetSnapshot(context.Background(), "tender/test", snapshot); err != nil {
		o.tb.Fatalf("update the control plane: %v", err)
	}
}

// State returns the state that a client of a type should have, for names or for all resources.
func (o *Server) State(typeURL string, names ...string) relaytest.State {
	out := make(map[string]relaytest.Entry)
	for name, msg := range o.Resources[typeURL] {
		if len(names) == 0 || slices.Contains(names, name) {
			out[name] = relaytest.Entry{Digest: relaytest.DigestOf(msg)}
		}
	}
	return relaytest.State{typeURL: out}
}

// Responses returns the number of responses that it has sent, over all restarts.
func (o *Server) Responses() int64 { return o.responses.Load() }

// Requests returns the requests that have arrived and that neither an earlier call nor AwaitRequest has returned.
func (o *Server) Requests() (all []*discoverypb.DeltaDiscoveryRequest) {
	for {
		select {
		case r := <-o.requests:
			all = append(all, r)
		default:
			return all
		}
	}
}

// AwaitRequest waits for a request that meets cond and that earlier calls have not returned.
func (o *Server) AwaitRequest(what string, cond func(*discoverypb.DeltaDiscoveryRequest) bool) {
	o.tb.Helper()
	ctx, cancel := context.WithTimeout(o.tb.Context(), wait.Patience)
	defer cancel()
	for {
		select {
		case r := <-o.requests:
			if cond(r) {
				return
			}
		case <-ctx.Done():
			o.tb.Fatalf("the control plane did not receive %s", what)
		}
	}
}

// Opening returns a condition for AwaitRequest: the first request of a type on a stream.
func Opening(typeURL string) func(*discoverypb.DeltaDiscoveryRequest) bool {
	return func(r *discoverypb.DeltaDiscoveryRequest) bool {
		return r.GetTypeUrl() == typeURL && r.GetResponseNonce() == ""
	}
}

// Follow waits until a client has the state of the control plane for a type, for names or for all resources.
func (o *Server) Follow(c interface {
	WaitState(context.Context, func(relaytest.State) bool)
}, typeURL string, names ...string) {
	o.tb.Helper()
	want := o.State(typeURL, names...)
	c.WaitState(o.tb.Context(), func(s relaytest.State) bool { return s.SameContent(want, typeURL) })
}

// Memory returns the network of the control plane, or nil for sockets.
func (o *Server) Memory() *memnet.Network { return o.memory }
