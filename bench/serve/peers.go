package serve

import (
	"context"
	"fmt"
	"maps"
	"math"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/relay"
)

// servePeer serves a cache of go-control-plane with the server of go-control-plane.
func servePeer(c cache.Cache, o Options) (string, error) {
	g := grpc.NewServer()
	if o.TenderOptions {
		g = relay.NewGRPCServer(16<<20, math.MaxInt32)
	}
	discoverypb.RegisterAggregatedDiscoveryServiceServer(g, server.NewServer(context.Background(), c, nil))
	return serveGRPC(g)
}

// linear is go-control-plane's server with its LinearCache, which holds one type.
type linear struct {
	options Options
	cache   *cache.LinearCache
}

// newLinear returns a server with the resources of set. Errors: the options have several kinds of resources.
func newLinear(o Options, set *content.Set) (*linear, error) {
	if len(o.Kinds) != 1 {
		return nil, fmt.Errorf("LinearCache of %d types: it has one", len(o.Kinds))
	}
	k := o.Kinds[0]
	resources := map[string]types.Resource{}
	for _, s := range set.Latest(k.TypeURL) {
		resources[content.Name(k.TypeURL, s.Index)] = k.Message(s)
	}
	return &linear{options: o, cache: cache.NewLinearCache(k.TypeURL, cache.WithInitialResources(resources))}, nil
}

// start implements backend.
func (l *linear) start() (string, error) { return servePeer(l.cache, l.options) }

// publish implements backend. A stream receives a batch in one response.
func (l *linear) publish(k content.Kind, b batch) error {
	changed := map[string]types.Resource{}
	if err := put(changed, k, b); err != nil {
		return err
	}
	if err := l.cache.UpdateResources(changed, nil); err != nil {
		return fmt.Errorf("update the linear cache: %w", err)
	}
	return nil
}

// put stores the changed resources in a map by name.
func put(resources map[string]types.Resource, k content.Kind, b batch) error {
	return b.each(func(s content.Stamp) error {
		resources[content.Name(k.TypeURL, s.Index)] = k.Message(s)
		return nil
	})
}

// snapshot is go-control-plane's server with its SnapshotCache, with the same snapshot
// for all nodes.
type snapshot struct {
	options Options
	cache   cache.SnapshotCache
	kind    content.Kind
	all     map[string]types.Resource
	version int
}

// everyone maps every node to the same snapshot.
type everyone struct{}

// ID implements cache.NodeHash.
func (everyone) ID(*corepb.Node) string { return "everyone" }

// newSnapshot returns a server with the resources of set. Errors: the options have several kinds of resources.
func newSnapshot(o Options, set *content.Set) (*snapshot, error) {
	if len(o.Kinds) != 1 {
		return nil, fmt.Errorf("snapshot of %d types: the benchmarks have one", len(o.Kinds))
	}
	s := &snapshot{
		options: o, kind: o.Kinds[0], all: map[string]types.Resource{},
		cache: cache.NewSnapshotCache(false, everyone{}, nil),
	}
	for _, stamp := range set.Latest(s.kind.TypeURL) {
		s.all[content.Name(s.kind.TypeURL, stamp.Index)] = s.kind.Message(stamp)
	}
	return s, s.set()
}

// start implements backend.
func (s *snapshot) start() (string, error) { return servePeer(s.cache, s.options) }

// publish implements backend. A batch is one snapshot.
func (s *snapshot) publish(k content.Kind, b batch) error {
	if err := put(s.all, k, b); err != nil {
		return err
	}
	return s.set()
}

// set replaces the snapshot with the current resources.
func (s *snapshot) set() error {
	s.version++
	resources := make([]types.Resource, 0, len(s.all))
	for r := range maps.Values(s.all) {
		resources = append(resources, r)
	}
	next, err := cache.NewSnapshot(version(s.version), map[string][]types.Resource{s.kind.TypeURL: resources})
	if err != nil {
		return fmt.Errorf("make a snapshot: %w", err)
	}
	if err := s.cache.SetSnapshot(context.Background(), "everyone", next); err != nil {
		return fmt.Errorf("set the snapshot: %w", err)
	}
	return nil
}
