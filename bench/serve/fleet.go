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

// fleetClusters is the number of clusters that each Envoy receives, each with its endpoints.
const fleetClusters = 100

// ProbePath returns the path of the health check that an Envoy sends to Options.Probe once it has applied a change.
func ProbePath(change int) string { return "/" + strconv.Itoa(change) }

// fleet is go-control-plane's server with complete configuration for real Envoys: clusters, endpoints, a listener "web"
// and its routes. A change updates the cluster "probe", after which each Envoy sends a health check to its endpoint.
type fleet struct {
	options Options
	control *envoytest.ControlPlane
}

func newFleet(o Options) *fleet { return &fleet{options: o} }

// start implements backend.
func (f *fleet) start() (string, error) {
	tb := bound.New() // not ended: the control plane runs until the process ends
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
func (f *fleet) publish(_ content.Kind, b batch) error {
	return b.each(func(s content.Stamp) error {
		tb := bound.New()
		return tb.Do(func() { f.control.Put(f.probe(int(s.Change))) })
	})
}

// probe returns the cluster "probe" after a change. Envoys run its health check at once, and then after an hour, so
// that each change causes one request.
func (f *fleet) probe(change int) *clusterpb.Cluster {
	c := relaytest.StaticCluster("probe", f.options.Probe)
	c.HealthChecks = []*corepb.HealthCheck{{
		Timeout: durationpb.New(time.Minute), Interval: durationpb.New(time.Hour), NoTrafficInterval: durationpb.New(time.Hour),
		UnhealthyThreshold: wrapperspb.UInt32(1), HealthyThreshold: wrapperspb.UInt32(1),
		HealthChecker: &corepb.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corepb.HealthCheck_HttpHealthCheck{Path: ProbePath(change)}},
	}}
	return c
}
