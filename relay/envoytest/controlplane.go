package envoytest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionpb "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimepb "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	secretpb "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A ControlPlane is the server of go-control-plane with its snapshot cache in ADS mode. Each change replaces the
// whole snapshot of a group, and the server sends responses in the order of types. It can be stopped and restarted on
// its address. Its methods must be called from the goroutine of the test, except ID, which the server calls.
type ControlPlane struct {
	// Addr is the address (host:port). Restarts do not change it.
	Addr string

	tb       relaytest.TB
	register []func(grpc.ServiceRegistrar)

	mu     sync.Mutex
	worlds map[string]*World // by group; mu guards the map, and only the test uses the Worlds

	open   subscriptions
	types  bool // each stream carries one type, so the cache is not in ADS mode
	cache  cachev3.SnapshotCache
	xds    serverv3.Server
	server *grpc.Server // nil while stopped
	cancel context.CancelFunc
	served chan error // gets the result of Serve
}

// pingsAfter is the minimum interval between pings that the server accepts. With gRPC's default of 5 minutes, it
// would close the connections of the tests' clients.
const pingsAfter = 500 * time.Millisecond

// A World is the set of resources of a group.
type World struct {
	resources map[string]map[string]proto.Message // by type URL and name
}

// Put adds or replaces resources.
func (w *World) Put(msgs ...proto.Message) {
	for _, msg := range msgs {
		typeURL := "type.googleapis.com/" + string(msg.ProtoReflect().Descriptor().FullName())
		if w.resources[typeURL] == nil {
			w.resources[typeURL] = make(map[string]proto.Message)
		}
		w.resources[typeURL][cachev3.GetResourceName(msg)] = msg
	}
}

// Remove removes resources of a type.
func (w *World) Remove(typeURL string, names ...string) {
	for _, name := range names {
		delete(w.resources[typeURL], name)
	}
}

// NewControlPlane starts a control plane that is stopped when tb ends. Each function of register may register further
// services with its server.
func NewControlPlane(tb relaytest.TB, register ...func(grpc.ServiceRegistrar)) *ControlPlane {
	tb.Helper()
	c := &ControlPlane{Addr: proxy.FreeAddress(tb), tb: tb, register: register, worlds: make(map[string]*World)}
	c.Restart()
	tb.Cleanup(c.Stop)
	return c
}

// Put adds or replaces resources of the empty group and distributes the change. See [ControlPlane.Apply].
func (c *ControlPlane) Put(msgs ...proto.Message) {
	c.tb.Helper()
	c.Apply("", func(w *World) { w.Put(msgs...) })
}

// Remove removes resources of a type from the empty group and distributes the change. See [ControlPlane.Apply].
func (c *ControlPlane) Remove(typeURL string, names ...string) {
	c.tb.Helper()
	c.Apply("", func(w *World) { w.Remove(typeURL, names...) })
}

// SeparateTypes restarts the control plane for streams of one type each, with a cache that is not in ADS mode. In ADS
// mode, the cache answers a SotW request only if it names every resource of its type.
func (c *ControlPlane) SeparateTypes() {
	c.tb.Helper()
	c.types = true
	c.Restart()
}

// Apply changes the World of a group and distributes the result as one change. A group consists of the Nodes with the
// same Node.cluster. The empty group consists of all Nodes whose cluster has no World.
func (c *ControlPlane) Apply(group string, change func(*World)) {
	c.tb.Helper()
	c.mu.Lock()
	w := c.worlds[group]
	if w == nil {
		w = &World{resources: make(map[string]map[string]proto.Message)}
		c.worlds[group] = w
	}
	c.mu.Unlock()
	change(w)
	if c.server != nil {
		c.push(group, w)
	}
}

// push writes the World of a group to the cache. The version of each type is a digest of its content. A control plane
// that restarts with the same content therefore uses the same versions.
func (c *ControlPlane) push(group string, w *World) {
	c.tb.Helper()
	snapshot := new(cachev3.Snapshot)
	for typeURL, byName := range w.resources {
		var all []types.Resource
		digests := make([]string, 0, len(byName))
		for name, msg := range byName {
			all = append(all, msg)
			digests = append(digests, fmt.Sprintf("%s %x", name, relaytest.DigestOf(msg)))
		}
		slices.Sort(digests)
		version := sha256.Sum256([]byte(strings.Join(digests, "\n")))
		snapshot.Resources[cachev3.GetResponseType(typeURL)] = cachev3.NewResources(hex.EncodeToString(version[:8]), all)
	}
	if err := c.cache.SetSnapshot(context.Background(), group, snapshot); err != nil {
		c.tb.Fatalf("control plane: %v", err)
	}
}

// Settle waits until all clients have answered the responses of the last changes. The server then has a watch for
// each type of each stream. It returns an error after limit. Streams may open and close meanwhile, such as those of a
// relay's drift audit.
func (c *ControlPlane) Settle(limit time.Duration) error {
	late := time.NewTimer(limit)
	defer late.Stop()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for c.watches() < c.open.count() {
		select {
		case <-again.C:
		case <-late.C:
			return fmt.Errorf("control plane: %d of %d subscriptions have answered after %v", c.watches(), c.open.count(), limit)
		}
	}
	return nil
}

// watches returns the number of open watches, over all types and streams.
func (c *ControlPlane) watches() (n int) {
	for _, group := range c.cache.GetStatusKeys() {
		info := c.cache.GetStatusInfo(group)
		n += info.GetNumWatches() + info.GetNumDeltaWatches()
	}
	return n
}

// ID implements cachev3.NodeHash. It returns the group of a Node.
func (c *ControlPlane) ID(n *corepb.Node) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.worlds[n.GetCluster()]; ok {
		return n.GetCluster()
	}
	return ""
}

// Stop closes the server and all streams. It does nothing if the server is stopped.
func (c *ControlPlane) Stop() {
	c.tb.Helper()
	if c.server == nil {
		return
	}
	c.cancel()
	c.server.Stop()
	if err := <-c.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		c.tb.Errorf("control plane ended: %v", err)
	}
	c.server = nil
}

// Restart starts a new server with a new cache on the same address. The cache contains the Worlds of all groups.
func (c *ControlPlane) Restart() {
	c.tb.Helper()
	c.Stop()
	c.cache = cachev3.NewSnapshotCache(!c.types, c, nil)
	for group, w := range c.worlds {
		c.push(group, w)
	}
	l, err := proxy.ListenAgain(c.Addr)
	if err != nil {
		c.tb.Fatalf("control plane: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.served = cancel, make(chan error, 1)
	c.server = grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAfter}))
	s := serverv3.NewServer(ctx, c.cache, c.open.callbacks(), sotw.WithOrderedADS())
	c.xds = s
	discoverypb.RegisterAggregatedDiscoveryServiceServer(c.server, s)
	clusterpb.RegisterClusterDiscoveryServiceServer(c.server, s)
	endpointpb.RegisterEndpointDiscoveryServiceServer(c.server, s)
	listenerpb.RegisterListenerDiscoveryServiceServer(c.server, s)
	routepb.RegisterRouteDiscoveryServiceServer(c.server, s)
	routepb.RegisterScopedRoutesDiscoveryServiceServer(c.server, s)
	routepb.RegisterVirtualHostDiscoveryServiceServer(c.server, s)
	secretpb.RegisterSecretDiscoveryServiceServer(c.server, s)
	runtimepb.RegisterRuntimeDiscoveryServiceServer(c.server, s)
	extensionpb.RegisterExtensionConfigDiscoveryServiceServer(c.server, s)
	for _, register := range c.register {
		register(c.server)
	}
	server, served := c.server, c.served
	go func() { served <- server.Serve(l) }() // awaited by Stop
}
