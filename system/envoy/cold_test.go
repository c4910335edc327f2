package envoy_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// A coldStart is what an Envoy needs until it accepts connections. All but took is independent of the machine.
type coldStart struct {
	took      time.Duration
	responses map[string]int // that the Envoy received, by type URL
	updates   int64          // that it applied: in SotW, each cluster does the work of each response
	origin    envoytest.Messages
}

// coldTypes are the types that an Envoy requests at its start, with their names in metrics.
var coldTypes = map[string]string{
	relaytest.ClusterType: "cds", relaytest.EndpointType: "eds", relaytest.ListenerType: "lds", relaytest.RouteType: "rds",
}

// startCold starts the first Envoy of a server and kills it once it accepts connections. relay is nil for the control plane
// itself.
func startCold(t *testing.T, c client, origin *envoytest.ControlPlane, relay *envoytest.Relay, clusters int64) coldStart {
	t.Helper()
	server, id := origin.Addr, "direct"
	if relay != nil {
		server, id = relay.Addr, "relayed"
	}
	s, before := coldStart{responses: make(map[string]int)}, origin.Messages(relaytest.EndpointType)
	began := time.Now()
	e := envoytest.Start(t, c.options(server, id))
	e.Listener("web")
	s.took = time.Since(began)
	stats := e.Stats("")
	if got := stats["cluster_manager.active_clusters"]; got <= clusters {
		t.Errorf("Envoy %s has %d clusters, want more than %d", id, got, clusters)
	}
	e.Kill()
	s.updates = stats.Sum("update_success")
	after := origin.Messages(relaytest.EndpointType)
	s.origin = envoytest.Messages{Requests: after.Requests - before.Requests, Responses: after.Responses - before.Responses}
	for typeURL, name := range coldTypes {
		if s.responses[typeURL] = origin.Messages(typeURL).Responses; relay != nil {
			s.responses[typeURL] = sentToClients(t, relay, name)
		}
	}
	return s
}

// sentToClients returns how many responses of a type a relay has sent to clients.
func sentToClients(t *testing.T, r *envoytest.Relay, name string) (sum int) {
	t.Helper()
	for line := range strings.Lines(string(r.Get("/metrics"))) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(series, "tender_client_responses_total{") || !strings.Contains(series, fmt.Sprintf("type=%q", name)) {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		sum += n
	}
	return sum
}

// TestEnvoy_ColdRelay: the first Envoy of a relay with thousands of clusters needs at most 1.5 times the responses of each
// type, and updates, that it needs without a relay, and the relay as many requests and responses of endpoints. Each is a
// round trip, and a SotW Envoy does the work of all its clusters for each response of endpoints. The log has the times of
// both, without an expectation, because they depend on the machine. (B.5)
func TestEnvoy_ColdRelay(t *testing.T) {
	const clusters = 3000
	matrix(t, ads, func(t *testing.T, c client) {
		origin := envoytest.NewControlPlane(t)
		world := []proto.Message{relaytest.Listener("web", "web"), relaytest.Route("web", []string{"*"}, "cluster-0000")}
		for i := range clusters {
			name := fmt.Sprintf("cluster-%04d", i)
			world = append(world, relaytest.Cluster(name), relaytest.Endpoints(name, "127.0.0.1:1"))
		}
		origin.Put(world...)
		direct := startCold(t, c, origin, nil, clusters)
		// A first response does not wait for endpoints longer than TENDER_COLD_WAIT, whatever the machine.
		relay := envoytest.NewRelay(t, origin.Addr, "TENDER_COLD_WAIT=10m")
		relayed := startCold(t, c, origin, relay, clusters)
		t.Logf("ready after %v directly, and after %v with a relay: %.1f times",
			direct.took, relayed.took, relayed.took.Seconds()/direct.took.Seconds())
		t.Logf("needs directly %+v, and with a relay %+v", direct, relayed)

		most := func(what string, got, without int) {
			t.Helper()
			if without == 0 || 2*got > 3*without {
				t.Errorf("%s: %d, want at most 1.5 times the %d without a relay", what, got, without)
			}
		}
		for typeURL, name := range coldTypes {
			most("responses of "+name, relayed.responses[typeURL], direct.responses[typeURL])
		}
		most("updates of the Envoy", int(relayed.updates), int(direct.updates))
		most("requests of endpoints to the control plane", relayed.origin.Requests, direct.origin.Requests)
		most("responses of endpoints of the control plane", relayed.origin.Responses, direct.origin.Responses)
	})
}
