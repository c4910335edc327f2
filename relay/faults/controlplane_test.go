package faults_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachetypes "github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// controlPlaneEnv has this program be a control plane.
const controlPlaneEnv = "FAULTS_CONTROL_PLANE"

// clusters are how many the control plane has, with endpoints each.
const clusters = 30

// edsNames are the endpoints that clients ask for.
var edsNames = []string{"a", "c1", "c2"}

func clusterNames() []string {
	names := []string{"a"}
	for i := 1; i < clusters; i++ {
		names = append(names, fmt.Sprint("c", i))
	}
	return names
}

func world() (msgs []proto.Message) {
	for i, name := range clusterNames() {
		msgs = append(msgs, relaytest.Cluster(name), relaytest.Endpoints(name, fmt.Sprint("127.0.0.1:", 1000+i)))
	}
	return append(msgs, relaytest.Listener("web", "route"), relaytest.Route("route", []string{"*"}, "a"))
}

// runControlPlane serves the same world each time, says where, and then takes changes by
// lines until there are no more.
func runControlPlane(changes io.Reader, say io.Writer) error {
	caches := make(map[string]*cachev3.LinearCache)
	mux := &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        make(map[string]cachev3.Cache),
	}
	for _, typeURL := range []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, relaytest.RouteType} {
		caches[typeURL] = cachev3.NewLinearCache(typeURL)
		mux.Caches[typeURL] = caches[typeURL]
	}
	put := func(m proto.Message) error {
		return caches["type.googleapis.com/"+string(m.ProtoReflect().Descriptor().FullName())].UpdateResource(cachev3.GetResourceName(m), cachetypes.Resource(m))
	}
	for _, m := range world() {
		if err := put(m); err != nil {
			return err
		}
	}
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}))
	discoverypb.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(context.Background(), mux, nil))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // awaited below
	fmt.Fprintln(say, "serving", l.Addr())
	for lines := bufio.NewScanner(changes); lines.Scan(); {
		if err := put(relaytest.Endpoints("a", "127.0.0.1:"+strings.TrimSpace(lines.Text()))); err != nil {
			return err
		}
		fmt.Fprintln(say, "changed", lines.Text())
	}
	server.Stop()
	return <-served
}
