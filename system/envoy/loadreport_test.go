package envoy_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/loadserver"
)

// A localityOf identifies a zone of a cluster.
type localityOf struct{ cluster, zone string }

// loadTotals holds the numbers of requests of a locality.
type loadTotals struct{ issued, successful, failed uint64 }

// loadOf returns the sums of the reported requests, without those to the management server.
func loadOf(reports []*lrspb.LoadStatsRequest) map[localityOf]loadTotals {
	totals := make(map[localityOf]loadTotals)
	for _, r := range reports {
		for _, c := range r.GetClusterStats() {
			if c.GetClusterName() == "tender" {
				continue // the cluster of the management server
			}
			for _, s := range c.GetUpstreamLocalityStats() {
				key := localityOf{c.GetClusterName(), s.GetLocality().GetZone()}
				sum := totals[key]
				sum.issued += s.GetTotalIssuedRequests()
				sum.successful += s.GetTotalSuccessfulRequests()
				sum.failed += s.GetTotalErrorRequests()
				totals[key] = sum
			}
		}
	}
	return totals
}

// zoned returns endpoints in two zones, "a" and "b".
func zoned(cluster string, a, b *envoytest.Backend) *endpointpb.ClusterLoadAssignment {
	all := relaytest.Endpoints(cluster, a.Addr)
	all.Endpoints = append(all.Endpoints, relaytest.Endpoints(cluster, b.Addr).GetEndpoints()...)
	for i, zone := range []string{"a", "b"} {
		all.Endpoints[i].Locality = &corepb.Locality{Region: "region", Zone: zone}
	}
	return all
}

// TestEnvoy_LoadReports: the relay forwards the load reports of two Envoys to the control plane on one stream. The
// sums for each cluster and locality equal the requests that both Envoys sent. (B.29, R139, R140)
func TestEnvoy_LoadReports(t *testing.T) {
	compared(t, []variant{delta}, func(t *testing.T, c client, o *outcome) {
		var reports loadserver.Server
		origin := envoytest.NewControlPlane(t, reports.Register)
		server, streams := origin.Addr, 2
		if !o.direct {
			server, streams = envoytest.NewRelay(t, origin.Addr, "TENDER_LRS=aggregate").Addr, 1
		}
		want := requestsOf(t, c, o, origin, server)
		reports.Await(t, func(all []*lrspb.LoadStatsRequest) error {
			if totals := loadOf(all); !maps.Equal(totals, want) {
				return fmt.Errorf("reported load is %v, want %v", totals, want)
			}
			return nil
		})
		if n := reports.Streams(); n != streams {
			t.Errorf("%d streams report load, want %d", n, streams)
		}
	})
}

// reportAnswers makes an Envoy report the responses of a locality also if no request was sent to it since the last
// report. Otherwise Envoys with this runtime guard (1.36, but not 1.40) lose the responses to the last requests when
// a report falls in between.
func reportAnswers(b *bootstrappb.Bootstrap) {
	guard, err := structpb.NewStruct(map[string]any{"envoy.reloadable_features.report_load_with_rq_issued": false})
	if err != nil {
		panic(err) // the map above is valid
	}
	b.LayeredRuntime = &bootstrappb.LayeredRuntime{Layers: []*bootstrappb.RuntimeLayer{{
		Name: "reports", LayerSpecifier: &bootstrappb.RuntimeLayer_StaticLayer{StaticLayer: guard},
	}}}
}

// awaitReporting waits until an Envoy reports the load of all its clusters; earlier requests are not reported. An
// Envoy adds new clusters when it receives the response to its first report, and after each report.
func awaitReporting(e *envoytest.Envoy) {
	const asked, sent = "load_reporter.requests", "load_reporter.responses" // in Envoy's terms, the server sends requests
	began := int64(-1)
	e.Await("two load reports", func() error {
		stats := e.Stats(`^load_reporter\.`)
		if stats[asked] == 0 {
			return errors.New("the server has not requested reports")
		}
		if began < 0 {
			began = stats[sent]
		}
		if stats[sent] < began+2 {
			return fmt.Errorf("%d reports so far", stats[sent]-began)
		}
		return nil
	})
}

// requestsOf sends requests through two Envoys and returns the expected totals.
func requestsOf(t *testing.T, c client, o *outcome, origin *envoytest.ControlPlane, server string) map[localityOf]loadTotals {
	t.Helper()
	for _, cluster := range []string{"web", "api"} {
		origin.Put(relaytest.Cluster(cluster), zoned(cluster, envoytest.NewBackend(t, cluster+" a"), envoytest.NewBackend(t, cluster+" b")),
			relaytest.Listener(cluster, cluster), relaytest.Route(cluster, []string{"*"}, cluster))
	}
	loads := make(map[*envoytest.Load]string) // cluster by load
	for i := range 2 {
		opts := c.options(server, fmt.Sprint("edge-", i))
		opts.Bootstrap, opts.Edit = "load-reports.yaml", reportAnswers
		e := envoytest.Start(t, opts)
		web, api := e.Listener("web"), e.Listener("api")
		awaitReporting(e)
		loads[envoytest.StartLoad(t, web, interval)] = "web"
		loads[envoytest.StartLoad(t, api, 3*interval)] = "api"
	}
	want := make(map[localityOf]loadTotals)
	for load := range loads {
		load.Await("answers of both zones", func(r envoytest.Report) bool { return len(r.Answers) == 2 && r.Total() >= 100 })
	}
	for load, cluster := range loads {
		r := load.Stop()
		o.requests(r)
		for _, zone := range []string{"a", "b"} {
			n := uint64(r.Answers[cluster+" "+zone])
			sum := want[localityOf{cluster, zone}]
			want[localityOf{cluster, zone}] = loadTotals{issued: sum.issued + n, successful: sum.successful + n}
		}
	}
	return want
}
