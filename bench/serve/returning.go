package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/bench/content"
)

// Traffic counts what a server of the kind returning has received and sent since its restart. A server of the kind
// origin counts streams, requests and names only.
type Traffic struct {
	Streams   int
	Requests  int
	Names     int // in requests
	Responses int
	Bytes     int64 // written to connections
	Burst     int64 // most bytes within one second of the clock
	Last      int64 // receipt of the last request, in Unix nanoseconds; 0 for none
}

// GroupName returns the Node cluster of node group i.
func GroupName(i int) string { return fmt.Sprint(groupPrefix, i) }

const groupPrefix = "group-"

// returning is go-control-plane's server with its SnapshotCache, with one snapshot for each node group. It can restart;
// the snapshots stay the same.
type returning struct {
	cache   cache.SnapshotCache
	address string
	server  *grpc.Server
	opaque  bool // sends versions that are not hashes

	mu      sync.Mutex
	traffic Traffic         // guarded by mu
	seconds map[int64]int64 // guarded by mu; bytes, by the second
}

// byCluster maps each node group to its own snapshot, and all other nodes to the snapshot probe. The relay's own Node,
// with which it checks the origin, is such a node.
type byCluster struct{}

const probe = "probe"

// ID implements cache.NodeHash.
func (byCluster) ID(n *corepb.Node) string {
	if strings.HasPrefix(n.GetCluster(), groupPrefix) {
		return n.GetCluster()
	}
	return probe
}

// newReturning returns a server with a snapshot of all resources for each node group.
func newReturning(o Options, set *content.Set) (*returning, error) {
	resources := make(map[string][]types.Resource)
	for _, k := range o.Kinds {
		for _, stamp := range set.Latest(k.TypeURL) {
			resources[k.TypeURL] = append(resources[k.TypeURL], k.Message(stamp))
		}
	}
	all, err := cache.NewSnapshot("1", resources)
	if err != nil {
		return nil, fmt.Errorf("make a snapshot: %w", err)
	}
	r := &returning{opaque: o.Opaque, cache: cache.NewSnapshotCache(false, byCluster{}, nil), address: "127.0.0.1:0", seconds: make(map[int64]int64)}
	groups := []string{probe}
	for i := range o.Groups {
		groups = append(groups, GroupName(i))
	}
	for _, group := range groups {
		if err := r.cache.SetSnapshot(context.Background(), group, all); err != nil {
			return nil, fmt.Errorf("set a snapshot: %w", err)
		}
	}
	return r, nil
}

// start implements backend.
func (r *returning) start() (string, error) {
	l, err := net.Listen("tcp", r.address)
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	var opts []grpc.ServerOption
	if r.opaque {
		opts = append(opts, grpc.StreamInterceptor(func(srv any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return handler(srv, opaqueStream{rpc})
		}))
	}
	r.address, r.server = l.Addr().String(), grpc.NewServer(opts...)
	discoverypb.RegisterAggregatedDiscoveryServiceServer(r.server, server.NewServer(context.Background(), r.cache, server.CallbackFuncs{
		DeltaStreamOpenFunc: func(context.Context, int64, string) error {
			r.count(func(t *Traffic) { t.Streams++ })
			return nil
		},
		StreamDeltaRequestFunc: func(int64, *discoverypb.DeltaDiscoveryRequest) error {
			r.count(func(t *Traffic) { t.Requests, t.Last = t.Requests+1, time.Now().UnixNano() })
			return nil
		},
		StreamDeltaResponseFunc: func(int64, *discoverypb.DeltaDiscoveryRequest, *discoverypb.DeltaDiscoveryResponse) {
			r.count(func(t *Traffic) { t.Responses++ })
		},
	}))
	go func() { _ = r.server.Serve(counting{l, r}) }() // until it restarts, or the process ends
	return r.address, nil
}

// publish implements backend.
func (r *returning) publish(content.Kind, batch) error {
	return errors.New("the server of the kind returning makes no changes")
}

// restart closes all connections, resets the counters, and listens again at the same address.
func (r *returning) restart() error {
	r.server.Stop()
	r.count(func(t *Traffic) { *t = Traffic{}; clear(r.seconds) })
	_, err := r.start()
	return err
}

// count calls f under the mutex, to update the counters.
func (r *returning) count(f func(*Traffic)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.traffic)
}

// An opaqueStream adds a prefix to all versions, so that they are not hashes. go-control-plane itself always uses
// hashes in Delta.
type opaqueStream struct{ grpc.ServerStream }

const opaquePrefix = "v"

// SendMsg implements grpc.ServerStream.
func (s opaqueStream) SendMsg(m any) error {
	if resp, is := m.(*discoverypb.DeltaDiscoveryResponse); is {
		for _, r := range resp.GetResources() {
			r.Version = opaquePrefix + r.GetVersion() // the Resource is not shared with other responses
		}
	}
	return s.ServerStream.SendMsg(m)
}

// RecvMsg implements grpc.ServerStream.
func (s opaqueStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if req, is := m.(*discoverypb.DeltaDiscoveryRequest); is {
		for name, v := range req.GetInitialResourceVersions() {
			req.InitialResourceVersions[name] = strings.TrimPrefix(v, opaquePrefix)
		}
	}
	return err
}

// counting is a listener whose connections count the written bytes.
type counting struct {
	net.Listener
	r *returning
}

// Accept implements net.Listener.
func (c counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return counted{conn, c.r}, nil
}

// counted is a connection that counts the written bytes.
type counted struct {
	net.Conn
	r *returning
}

// Write implements net.Conn.
func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	now := time.Now().Unix()
	c.r.count(func(t *Traffic) {
		t.Bytes += int64(n)
		c.r.seconds[now] += int64(n)
		t.Burst = max(t.Burst, c.r.seconds[now])
	})
	return n, err
}

// Restart restarts the server. Errors: its kind is not returning.
func (s *Server) Restart(struct{}, *struct{}) error {
	r, is := s.backend.(*returning)
	if !is {
		return fmt.Errorf("restart server %s: only one of the kind returning does", s.kind)
	}
	return r.restart()
}

// seen implements counter.
func (r *returning) seen() Traffic {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.traffic
}
