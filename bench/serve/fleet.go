package serve

import (
	"fmt"
	"strconv"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xdstender/tender/bench/bound"
	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// fleetClusters is how many clusters Envoys get, each with its endpoints.
const fleetClusters = 100

// ProbePath returns the path of the request that an Envoy sends to Options.Probe once it has a change.
func ProbePath(change int) string { return "/" + strconv.Itoa(change) }

// fleet is go-control-plane's server with a SnapshotCache of what real Envoys need: clusters, endpoints, a listener "web"
// and its routes. A change is one of the cluster "probe", whose endpoint each Envoy then sends a health check to.
type fleet struct {
	options Options
	control *envoytest.ControlPlane
}

func newFleet(o Options) *fleet { return &fleet{options: o} }

// start implements backend.
func (f *fleet) start() (string, error) {
	tb := bound.New() // ends with the process
	err := tb.Do(func() {
		f.control = envoytest.NewControlPlane(tb)
		f.control.Apply("", func(w *envoytest.World) {
			for i := range fleetClusters {
				name := fmt.Sprint("cluster-", i)
				w.Put(relaytest.Cluster(name), relaytest.Endpoints(name, "127.0.0.1:9"))
			}
			w.Put(f.probe(0), relaytest.Listener("web", "web"), relaytest.Route("web", []string{"*"}, "cluster-0"))
		})
	})
	if err != nil {
		return "", err
	}
	return f.control.Addr, nil
}

// publish implements backend.
func (f *fleet) publish(_ content.Kind, s content.Stamp) error {
	tb := bound.New()
	return tb.Do(func() { f.control.Put(f.probe(int(s.Change))) })
}

// probe returns the cluster after a change: it has one health check, which is due at once, and then in an hour.
func (f *fleet) probe(change int) *clusterpb.Cluster {
	c := relaytest.StaticCluster("probe", f.options.Probe)
	c.HealthChecks = []*corepb.HealthCheck{{
		Timeout: durationpb.New(time.Minute), Interval: durationpb.New(time.Hour), NoTrafficInterval: durationpb.New(time.Hour),
		UnhealthyThreshold: wrapperspb.UInt32(1), HealthyThreshold: wrapperspb.UInt32(1),
		HealthChecker: &corepb.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corepb.HealthCheck_HttpHealthCheck{Path: ProbePath(change)}},
	}}
	return c
}
