package envoytest_test

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// reportEvery is the interval of load reports.
const reportEvery = time.Second

// A loadServer is a load reporting service that asks for the load of all clusters each second, and adds it up.
type loadServer struct {
	lrspb.UnimplementedLoadReportingServiceServer

	mu      sync.Mutex
	streams int                       // guarded by mu
	totals  map[localityOf]loadTotals // guarded by mu
}

// A localityOf is a zone of a cluster.
type localityOf struct{ cluster, zone string }

// loadTotals are numbers of requests.
type loadTotals struct{ issued, successful, failed uint64 }

func (l *loadServer) StreamLoadStats(rpc lrspb.LoadReportingService_StreamLoadStatsServer) error {
	l.mu.Lock()
	l.streams++
	l.mu.Unlock()
	for first := true; ; first = false {
		r, err := rpc.Recv()
		if err != nil {
			return nil // the client has closed the stream
		}
		l.add(r)
		if !first {
			continue
		}
		ask := &lrspb.LoadStatsResponse{SendAllClusters: true, LoadReportingInterval: durationpb.New(reportEvery)}
		if err := rpc.Send(ask); err != nil {
			return err
		}
	}
}

// add adds up what Envoys report of dynamic clusters.
func (l *loadServer) add(r *lrspb.LoadStatsRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range r.GetClusterStats() {
		if c.GetClusterName() == "tender" {
			continue // the cluster of the management server
		}
		for _, s := range c.GetUpstreamLocalityStats() {
			key := localityOf{c.GetClusterName(), s.GetLocality().GetZone()}
			sum := l.totals[key]
			sum.issued += s.GetTotalIssuedRequests()
			sum.successful += s.GetTotalSuccessfulRequests()
			sum.failed += s.GetTotalErrorRequests()
			l.totals[key] = sum
		}
	}
}

// differs returns an error unless the totals are these.
func (l *loadServer) differs(want map[localityOf]loadTotals) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !maps.Equal(l.totals, want) {
		return fmt.Errorf("reported load is %v, want %v", l.totals, want)
	}
	return nil
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

// TestEnvoy_LoadReports: the load that two Envoys report arrives at the control plane as one stream, whose sums for each
// cluster and locality are the requests that both have sent. (B.29, R139, R140)
func TestEnvoy_LoadReports(t *testing.T) {
	compared(t, []variant{delta}, func(t *testing.T, _ variant, o *outcome) {
		reports := &loadServer{totals: make(map[localityOf]loadTotals)}
		origin := envoytest.NewControlPlane(t, func(s grpc.ServiceRegistrar) { lrspb.RegisterLoadReportingServiceServer(s, reports) })
		server, streams := origin.Addr, 2
		if !o.direct {
			server, streams = envoytest.NewRelay(t, origin.Addr, "TENDER_LRS=aggregate").Addr, 1
		}
		reportsAddUp(t, o, origin, server, reports)
		reports.mu.Lock()
		defer reports.mu.Unlock()
		if reports.streams != streams {
			t.Errorf("%d streams of load reports, want %d", reports.streams, streams)
		}
	})
}

// reportAnswers has an Envoy report answers also where it has sent no request since its last report. Without that, those that know this
// guard (1.36 does, 1.40 does not) forget the answers to the last requests of a locality if a report comes between.
func reportAnswers(b *bootstrappb.Bootstrap) {
	guard, err := structpb.NewStruct(map[string]any{"envoy.reloadable_features.report_load_with_rq_issued": false})
	if err != nil {
		panic(err) // the map is above
	}
	b.LayeredRuntime = &bootstrappb.LayeredRuntime{Layers: []*bootstrappb.RuntimeLayer{{
		Name: "reports", LayerSpecifier: &bootstrappb.RuntimeLayer_StaticLayer{StaticLayer: guard},
	}}}
}

// awaitReporting waits until an Envoy, which has its clusters, reports the load of each: requests before that are not
// reported. It takes up the clusters of the day with the answer to its first report, and after each report.
func awaitReporting(e *envoytest.Envoy) {
	const asked, sent = "load_reporter.requests", "load_reporter.responses" // Envoy's names: the server requests
	began := int64(-1)
	e.Await("two load reports", func() error {
		stats := e.Stats(`^load_reporter\.`)
		if stats[asked] == 0 {
			return errors.New("the server has not asked")
		}
		if began < 0 {
			began = stats[sent]
		}
		if stats[sent] < began+2 {
			return fmt.Errorf("%d since", stats[sent]-began)
		}
		return nil
	})
}

// reportsAddUp sends requests through two Envoys and waits until the reports account for each.
func reportsAddUp(t *testing.T, o *outcome, origin *envoytest.ControlPlane, server string, reports *loadServer) {
	t.Helper()
	for _, cluster := range []string{"web", "api"} {
		origin.Put(relaytest.Cluster(cluster), zoned(cluster, envoytest.NewBackend(t, cluster+" a"), envoytest.NewBackend(t, cluster+" b")),
			relaytest.Listener(cluster, cluster), relaytest.Route(cluster, []string{"*"}, cluster))
	}
	envoys := make([]*envoytest.Envoy, 2)
	loads := make(map[*envoytest.Load]string) // the cluster of each
	for i := range envoys {
		e := envoytest.Start(t, envoytest.Options{
			Bootstrap: "load-reports.yaml", Server: server, Node: relaytest.EnvoyNode(fmt.Sprint("edge-", i)), Edit: reportAnswers,
		})
		web, api := e.Listener("web"), e.Listener("api")
		awaitReporting(e)
		loads[envoytest.StartLoad(t, web, interval)] = "web"
		loads[envoytest.StartLoad(t, api, 3*interval)] = "api"
		envoys[i] = e
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
	envoys[0].Await("load reports", func() error { return reports.differs(want) })
}
