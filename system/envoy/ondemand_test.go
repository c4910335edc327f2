package envoy_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ondemandpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// scripted runs a Delta scenario with a scripted origin. The argument server is the address of a relay or, in a
// second run with -direct, of the origin.
func scripted(t *testing.T, b relaytest.Behaviour, run func(t *testing.T, c client, o *outcome, origin *relaytest.Origin, server string)) {
	t.Helper()
	compared(t, []variant{delta}, func(t *testing.T, c client, o *outcome) {
		origin := relaytest.NewOrigin(t, relaytest.OriginOptions{Behaviour: b})
		server := origin.Addr()
		if !o.direct {
			server = envoytest.NewRelay(t, server).Addr
		}
		run(t, c, o, origin, server)
	})
}

// overADS returns a ConfigSource for the ADS stream.
func overADS() *corepb.ConfigSource {
	return &corepb.ConfigSource{
		ResourceApiVersion:    corepb.ApiVersion_V3,
		ConfigSourceSpecifier: &corepb.ConfigSource_Ads{Ads: &corepb.AggregatedConfigSource{}},
	}
}

// onDemand returns a Listener "web" with the on-demand filter, whose routes are the RouteConfiguration "web".
func onDemand(t *testing.T, options *ondemandpb.OnDemand) *listenerpb.Listener {
	t.Helper()
	l := relaytest.Listener("web", "web")
	filter := l.GetFilterChains()[0].GetFilters()[0]
	manager := new(hcmpb.HttpConnectionManager)
	if err := filter.GetTypedConfig().UnmarshalTo(manager); err != nil {
		t.Fatal(err)
	}
	manager.HttpFilters = slices.Insert(manager.HttpFilters, 0, &hcmpb.HttpFilter{
		Name: "envoy.filters.http.on_demand", ConfigType: &hcmpb.HttpFilter_TypedConfig{TypedConfig: relaytest.Pack(options)},
	})
	filter.ConfigType = &listenerpb.Filter_TypedConfig{TypedConfig: relaytest.Pack(manager)}
	return l
}

// ask sends one request and returns the status code and the body. header is a list of names and values.
func ask(t *testing.T, address, host string, header ...string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport, Timeout: relaytest.Patience}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // the body was read to its end
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", string(body)))
}

// virtualHost returns a VHDS resource "web/NAME" that routes to a cluster. Each host other than NAME is added as an
// alias.
func virtualHost(t *testing.T, name, cluster, version string, hosts ...string) *discoverypb.Resource {
	t.Helper()
	host := relaytest.Route("web/"+name, hosts, cluster).GetVirtualHosts()[0]
	r := &discoverypb.Resource{Name: host.GetName(), Version: version, Resource: relaytest.Pack(host)}
	for _, h := range hosts {
		if h != name {
			r.Aliases = append(r.Aliases, "web/"+h)
		}
	}
	return r
}

// TestEnvoy_VHDS: the first request for an unknown host waits until the Envoy has received its virtual host, by name
// or by an alias. A host that the origin does not have is answered with 404. Changes reach the Envoys that requested
// the host. The Envoys use a stream for VHDS alone. There is no direct run, because the scripted origin serves only
// ADS. (R094, R095, B.20, B.26)
func TestEnvoy_VHDS(t *testing.T) {
	matrix(t, []variant{delta}, func(t *testing.T, c client) {
		origin := relaytest.NewOrigin(t, relaytest.OriginOptions{Behaviour: hosts})
		servesHosts(t, c, &outcome{t: t}, origin, envoytest.NewRelay(t, origin.Addr()).Addr, byDelta())
	})
}

// TestEnvoy_VHDSOverADS is TestEnvoy_VHDS over ADS, which Envoy 1.36 rejects. (R094, R095, B.20)
func TestEnvoy_VHDSOverADS(t *testing.T) {
	scripted(t, hosts, func(t *testing.T, c client, o *outcome, origin *relaytest.Origin, server string) {
		if strings.HasPrefix(c.version, "1.36.") {
			rejectsHosts(t, c, origin, server)
		} else {
			servesHosts(t, c, o, origin, server, overADS())
		}
	})
}

// hosts is the behaviour of an origin that sends virtual hosts on demand. A host that it does not have is an unresolved
// alias.
var hosts = relaytest.Behaviour{
	NamedOnly:  func(of, name string) bool { return of == relaytest.VirtualHostType && name != "web/base.example" },
	Unresolved: func(of, _ string) bool { return of == relaytest.VirtualHostType },
}

// rejectsHosts waits until an Envoy has rejected a RouteConfiguration that uses VHDS over ADS.
func rejectsHosts(t *testing.T, c client, origin *relaytest.Origin, server string) {
	t.Helper()
	origin.Put(onDemand(t, new(ondemandpb.OnDemand)), &routepb.RouteConfiguration{Name: "web", Vhds: &routepb.Vhds{ConfigSource: overADS()}})
	e := envoytest.Start(t, c.options(server, "edge-1"))
	e.AwaitLine(0, "vhds: only 'DELTA_GRPC' is supported as an api_type")
}

// servesHosts checks requests for hosts through two Envoys that get their virtual hosts on demand.
func servesHosts(t *testing.T, c client, o *outcome, origin *relaytest.Origin, server string, source *corepb.ConfigSource) {
	t.Helper()
	const typeURL = relaytest.VirtualHostType
	origin.Put(onDemand(t, new(ondemandpb.OnDemand)), &routepb.RouteConfiguration{Name: "web", Vhds: &routepb.Vhds{ConfigSource: source}})
	for _, name := range []string{"one", "two"} {
		origin.Put(relaytest.StaticCluster(name, envoytest.NewBackend(t, name).Addr))
	}
	// Envoy ignores an empty response to its first VHDS request and waits for initial_fetch_timeout, so one host
	// always exists.
	origin.SetRaw(typeURL, virtualHost(t, "base.example", "one", "1", "base.example"))
	origin.SetRaw(typeURL, virtualHost(t, "one.example", "one", "1", "one.example"))
	origin.SetRaw(typeURL, virtualHost(t, "shared", "two", "1", "a.example", "b.example"))

	for _, id := range []string{"edge-1", "edge-2"} {
		e := envoytest.Start(t, c.options(server, id))
		address := e.Listener("web")
		for host, want := range map[string]string{
			"base.example": "200 one", "one.example": "200 one", "a.example": "200 two", "b.example": "200 two", "none.example": "404",
		} {
			if got := ask(t, address, host); got != want {
				t.Errorf("%s: %s is answered with %q, want %q", id, host, got, want)
			}
		}
		for _, next := range []string{"two", "one"} {
			origin.SetRaw(typeURL, virtualHost(t, "one.example", next, id+next, "one.example"))
			e.Await("answer by the changed virtual host", func() error {
				if got := ask(t, address, "one.example"); got != "200 "+next {
					return fmt.Errorf("it is %q", got)
				}
				return nil
			})
		}
		o.judge(e, envoytest.Report{})
	}
}

// TestEnvoy_ODCDS: a header names the cluster of a request. The first request to an unknown cluster waits until the
// Envoy has received the cluster. A cluster that the origin does not have is answered with 503. Changes of the
// cluster arrive. (B.6, B.17)
func TestEnvoy_ODCDS(t *testing.T) {
	behaviour := relaytest.Behaviour{NamedOnly: func(of, name string) bool { return of == relaytest.ClusterType && strings.HasPrefix(name, "rare") }}
	scripted(t, behaviour, func(t *testing.T, c client, o *outcome, origin *relaytest.Origin, server string) {
		routes := relaytest.Route("web", []string{"*"}, "")
		routes.GetVirtualHosts()[0].GetRoutes()[0].GetRoute().ClusterSpecifier = &routepb.RouteAction_ClusterHeader{ClusterHeader: "x-cluster"}
		origin.Put(onDemand(t, &ondemandpb.OnDemand{Odcds: &ondemandpb.OnDemandCds{Source: overADS()}}), routes)
		one, two, common := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two"), envoytest.NewBackend(t, "common")
		origin.Put(relaytest.StaticCluster("common", common.Addr), relaytest.StaticCluster("rare-1", one.Addr))

		e := envoytest.Start(t, c.options(server, "edge-1"))
		address := e.Listener("web")
		for cluster, want := range map[string]string{"common": "200 common", "rare-1": "200 one", "rare-none": "503"} {
			if got := ask(t, address, "example", "x-cluster", cluster); got != want {
				t.Errorf("a request to cluster %s is answered with %q, want %q", cluster, got, want)
			}
		}
		origin.Put(relaytest.StaticCluster("rare-1", two.Addr))
		e.Await("answer by the changed cluster", func() error {
			if got := ask(t, address, "example", "x-cluster", "rare-1"); got != "200 two" {
				return fmt.Errorf("it is %q", got)
			}
			return nil
		})
		if got := e.Config().Names("dynamic_active_clusters"); !slices.Equal(got, []string{"common", "rare-1"}) {
			t.Errorf("clusters are %v", got)
		}
		o.judge(e, envoytest.Report{})
	})
}
