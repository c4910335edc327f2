package relay_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// How a controlPlane keeps its resources.
const (
	linearCaches = "linear"
	snapshots    = "snapshot"
	adsSnapshots = "snapshot, ADS mode"

	// Without Delta. There is none for ADS mode: in SotW that answers no request that
	// does not name every resource there is.
	linearSotW    = linearCaches + sotwOnly
	snapshotsSotW = snapshots + sotwOnly
	sotwOnly      = ", SotW only"
)

// A controlPlane is go-control-plane's own server as an origin. It starts with
// nothing but a world to put on; its caches die with it.
type controlPlane struct {
	t      testing.TB
	kind   string
	addr   string
	memory *relaytest.Memory // nil: sockets

	// register adds services when it restarts, if set.
	register func(grpc.ServiceRegistrar)

	// Requests as they arrive; of SotW what they have in common with those of Delta.
	requests chan *discoverypb.DeltaDiscoveryRequest

	// Owned by the test.
	world  map[string]map[string]proto.Message // by type and name: what it should serve
	told   map[string]map[string]proto.Message // what the caches were given
	pushes int

	linear   map[string]*cachev3.LinearCache
	snapshot cachev3.SnapshotCache
	server   *grpc.Server
	cancel   context.CancelFunc
	served   chan error
}

// controlPlaneTypes are the types that it serves, in the order of telling.
var controlPlaneTypes = []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, relaytest.RouteType}

// newControlPlane starts a control plane that serves msgs, until the test ends.
func newControlPlane(t testing.TB, kind string, memory *relaytest.Memory, msgs ...proto.Message) *controlPlane {
	t.Helper()
	o := &controlPlane{
		t: t, kind: kind, memory: memory,
		requests: make(chan *discoverypb.DeltaDiscoveryRequest, 4096),
		world:    make(map[string]map[string]proto.Message),
	}
	for _, typeURL := range controlPlaneTypes {
		o.world[typeURL] = make(map[string]proto.Message)
	}
	if memory == nil {
		o.addr = relaytest.FreeAddress(t)
	}
	o.edit(msgs, nil)
	o.Restart()
	t.Cleanup(o.Stop)
	return o
}

// Target returns the gRPC target, which stays the same.
func (o *controlPlane) Target() string {
	if o.memory != nil {
		return "passthrough:///origin"
	}
	return o.addr
}

// Stop kills the control plane with all that its caches held.
func (o *controlPlane) Stop() {
	o.t.Helper()
	if o.server == nil {
		return
	}
	o.cancel()
	o.server.Stop()
	if err := <-o.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		o.t.Errorf("control plane ended: %v", err)
	}
	o.server = nil
}

// Restart starts a new control plane on the address of the old one, with new
// caches that hold the world.
func (o *controlPlane) Restart() {
	o.t.Helper()
	o.Stop()
	o.told = make(map[string]map[string]proto.Message)
	o.linear, o.snapshot = make(map[string]*cachev3.LinearCache), nil
	var caches cachev3.Cache
	if strings.HasPrefix(o.kind, linearCaches) {
		mux := &cachev3.MuxCache{
			Classify:      func(r *cachev3.Request) string { return r.GetTypeUrl() },
			ClassifyDelta: func(r *cachev3.DeltaRequest) string { return r.GetTypeUrl() },
			Caches:        make(map[string]cachev3.Cache),
		}
		for _, typeURL := range controlPlaneTypes {
			o.linear[typeURL] = cachev3.NewLinearCache(typeURL)
			mux.Caches[typeURL] = o.linear[typeURL]
		}
		caches = mux
	} else {
		o.snapshot = cachev3.NewSnapshotCache(o.kind == adsSnapshots, cachev3.IDHash{}, nil)
		caches = o.snapshot
	}
	if len(o.world[relaytest.ClusterType]) > 0 {
		o.push()
	}
	o.serve(caches)
}

func (o *controlPlane) serve(caches cachev3.Cache) {
	o.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	o.server = grpc.NewServer()
	heard := func(r *discoverypb.DeltaDiscoveryRequest) error {
		select {
		case o.requests <- r:
		default: // nobody waits
		}
		return nil
	}
	var server discoverypb.AggregatedDiscoveryServiceServer = serverv3.NewServer(ctx, caches, serverv3.CallbackFuncs{
		StreamDeltaRequestFunc: func(_ int64, r *discoverypb.DeltaDiscoveryRequest) error { return heard(proto.CloneOf(r)) },
		StreamRequestFunc: func(_ int64, r *discoverypb.DiscoveryRequest) error {
			return heard(&discoverypb.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetResponseNonce()})
		},
	})
	if strings.HasSuffix(o.kind, sotwOnly) {
		server = withoutDelta{server}
	}
	discoverypb.RegisterAggregatedDiscoveryServiceServer(o.server, server)
	if o.register != nil {
		o.register(o.server)
	}
	var l net.Listener
	if o.memory != nil {
		l = o.memory.Listen()
	} else {
		var err error
		if l, err = net.Listen("tcp", o.addr); err != nil {
			o.t.Fatalf("listen: %v", err)
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

func (withoutDelta) DeltaAggregatedResources(discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return status.Error(codes.Unimplemented, "not implemented")
}

// Put sets resources and tells them.
func (o *controlPlane) Put(msgs ...proto.Message) {
	o.t.Helper()
	o.edit(msgs, nil)
	o.push()
}

// Remove removes resources of a type and tells it.
func (o *controlPlane) Remove(typeURL string, names ...string) {
	o.t.Helper()
	o.edit(nil, map[string][]string{typeURL: names})
	o.push()
}

// edit changes the world without telling.
func (o *controlPlane) edit(put []proto.Message, remove map[string][]string) {
	for _, msg := range put {
		typeURL := "type.googleapis.com/" + string(msg.ProtoReflect().Descriptor().FullName())
		o.world[typeURL][cachev3.GetResourceName(msg)] = msg
	}
	for typeURL, names := range remove {
		for _, name := range names {
			delete(o.world[typeURL], name)
		}
	}
}

// push gives the world to the caches.
func (o *controlPlane) push() {
	o.t.Helper()
	if o.snapshot != nil {
		o.pushSnapshot()
		return
	}
	for _, typeURL := range controlPlaneTypes {
		put := make(map[string]types.Resource)
		for name, msg := range o.world[typeURL] {
			if o.told[typeURL][name] != msg {
				put[name] = msg
			}
		}
		var gone []string
		for name := range o.told[typeURL] {
			if _, still := o.world[typeURL][name]; !still {
				gone = append(gone, name)
			}
		}
		if len(put)+len(gone) > 0 {
			if err := o.linear[typeURL].UpdateResources(put, gone); err != nil {
				o.t.Fatal(err)
			}
		}
		o.told[typeURL] = maps.Clone(o.world[typeURL])
	}
}

func (o *controlPlane) pushSnapshot() {
	o.t.Helper()
	o.pushes++
	all := make(map[string][]types.Resource)
	for typeURL, byName := range o.world {
		for _, msg := range byName {
			all[typeURL] = append(all[typeURL], msg)
		}
	}
	snapshot, err := cachev3.NewSnapshot(strconv.Itoa(o.pushes), all)
	if err != nil {
		o.t.Fatal(err)
	}
	if err := o.snapshot.SetSnapshot(context.Background(), interopNode, snapshot); err != nil {
		o.t.Fatal(err)
	}
}

// state returns what a client should have of a type: of these names, or of all.
func (o *controlPlane) state(typeURL string, names ...string) relaytest.State {
	out := make(map[string]relaytest.Entry)
	for name, msg := range o.world[typeURL] {
		if len(names) == 0 || slices.Contains(names, name) {
			out[name] = relaytest.Entry{Digest: relaytest.DigestOf(msg)}
		}
	}
	return relaytest.State{typeURL: out}
}

// awaitRequest waits for a request that meets cond and arrived after those that
// earlier calls saw.
func (o *controlPlane) awaitRequest(what string, cond func(*discoverypb.DeltaDiscoveryRequest) bool) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), relaytest.Patience)
	defer cancel()
	for {
		select {
		case r := <-o.requests:
			if cond(r) {
				return
			}
		case <-ctx.Done():
			o.t.Fatalf("the control plane did not see %s", what)
		}
	}
}

// opening reports whether r opens a type on a stream that had none.
func opening(typeURL string) func(*discoverypb.DeltaDiscoveryRequest) bool {
	return func(r *discoverypb.DeltaDiscoveryRequest) bool {
		return r.GetTypeUrl() == typeURL && r.GetResponseNonce() == ""
	}
}

// follow waits until a client has just what the control plane has of a type: of
// these names, or of all.
func follow(c interface {
	WaitState(context.Context, func(relaytest.State) bool)
}, o *controlPlane, typeURL string, names ...string) {
	o.t.Helper()
	want := o.state(typeURL, names...)
	c.WaitState(o.t.Context(), func(s relaytest.State) bool { return s.SameContent(want, typeURL) })
}
