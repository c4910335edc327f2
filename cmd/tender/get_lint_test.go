package main

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// byADS is the source of resources that clients request from the same server.
var byADS = &corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_Ads{Ads: &corepb.AggregatedConfigSource{}}}

// edsCluster returns a cluster that refers to endpoints of the same name.
func edsCluster(name string) types.Resource {
	return &clusterpb.Cluster{
		Name: name, ClusterDiscoveryType: &clusterpb.Cluster_Type{Type: clusterpb.Cluster_EDS},
		EdsClusterConfig: &clusterpb.Cluster_EdsClusterConfig{EdsConfig: byADS},
	}
}

// frontListener returns a listener that refers to a route configuration.
func frontListener(t *testing.T, routes string) types.Resource {
	manager := &hcmpb.HttpConnectionManager{StatPrefix: "front", RouteSpecifier: &hcmpb.HttpConnectionManager_Rds{
		Rds: &hcmpb.Rds{RouteConfigName: routes, ConfigSource: byADS},
	}}
	filter := &listenerpb.Filter{Name: "http", ConfigType: &listenerpb.Filter_TypedConfig{TypedConfig: pack(t, manager)}}
	address := &corepb.Address{Address: &corepb.Address_SocketAddress{SocketAddress: &corepb.SocketAddress{
		Address: "::", PortSpecifier: &corepb.SocketAddress_PortValue{PortValue: 80},
	}}}
	return &listenerpb.Listener{Name: "front", Address: address, FilterChains: []*listenerpb.FilterChain{{Filters: []*listenerpb.Filter{filter}}}}
}

// routesTo returns a route configuration with one route to each cluster.
func routesTo(name string, clusters ...string) types.Resource {
	var routes []*routepb.Route
	for _, cluster := range clusters {
		routes = append(routes, &routepb.Route{
			Match:  &routepb.RouteMatch{PathSpecifier: &routepb.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routepb.Route_Route{Route: &routepb.RouteAction{ClusterSpecifier: &routepb.RouteAction_Cluster{Cluster: cluster}}},
		})
	}
	return &routepb.RouteConfiguration{Name: name, VirtualHosts: []*routepb.VirtualHost{{Name: "v", Domains: []string{"*"}, Routes: routes}}}
}

// TestGetLint verifies that get --lint follows references, and that the exit code is 1 only if a finding breaks a
// resource.
func TestGetLint(t *testing.T) {
	t.Parallel()
	good := map[resource.Type][]types.Resource{
		resource.ClusterType:  {edsCluster("a")},
		resource.EndpointType: {endpoints("a")},
		resource.ListenerType: {frontListener(t, "r")},
		resource.RouteType:    {routesTo("r", "a")},
	}
	with := func(typeURL resource.Type, all ...types.Resource) map[resource.Type][]types.Resource {
		changed := make(map[resource.Type][]types.Resource)
		for typeURL, all := range good {
			changed[typeURL] = all
		}
		changed[typeURL] = all
		return changed
	}
	for name, tt := range map[string]struct {
		resources      map[resource.Type][]types.Resource
		args           string
		code           int
		stdout, stderr string // parts of the output; an empty stdout means no output
	}{
		"good":                        {good, "", exitOK, "", "4 resources checked, no findings"},
		"one type":                    {good, "rds r", exitOK, "", "3 resources checked, no findings"},
		"missing cluster":             {with(resource.RouteType, routesTo("r", "a", "b")), "", exitFailure, `names cluster "b", which the server did not send`, "1 of 1 findings break a resource"},
		"static cluster":              {with(resource.RouteType, routesTo("r", "a", "b-1")), "--static-cluster b-*", exitOK, "", "no findings"},
		"missing route configuration": {with(resource.ListenerType, frontListener(t, "x")), "", exitFailure, `names route configuration "x"`, "1 of 1 findings"},
		"missing endpoints":           {with(resource.ClusterType, edsCluster("a"), edsCluster("c")), "cds", exitFailure, `names endpoints "c"`, "1 of 1 findings"},
		"finding of a validator":      {with(resource.RouteType, &routepb.RouteConfiguration{Name: "r", VirtualHosts: []*routepb.VirtualHost{{Name: "v"}}}), "", exitOK, "VirtualHosts[0].Domains", ""},
		"missing name":                {good, "rds r y", exitFailure, "", `about "y"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cp := startControlPlane(t)
				cp.set(t, "1", tt.resources)
				code, stdout, stderr := execute(append([]string{"get", "--lint", "-a", cp.address, "--timeout=1s"}, strings.Fields(tt.args)...)...)
				if code != tt.code || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) || tt.stdout == "" && stdout != "" {
					t.Errorf("code %d, stdout %q, stderr %q, want %d, %q, %q", code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
				}
			})
		})
	}
}

func TestGetLint_JSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cp := startControlPlane(t)
		cp.set(t, "1", map[resource.Type][]types.Resource{resource.ClusterType: {&clusterpb.Cluster{Name: "a", LbPolicy: 99}}})
		code, stdout, stderr := execute("get", "--lint", "--sotw", "-o", "json", "-a", cp.address, "cds")
		var got []map[string]string
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != exitOK || len(got) == 0 || got[0]["name"] != "a" || got[0]["type_url"] != resource.ClusterType {
			t.Errorf("code %d, stdout %q, stderr %q, error %v, want findings about a", code, stdout, stderr, err)
		}
	})
}

func TestGetLint_Usage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--lint -w cds":                 "--lint and --watch exclude each other",
		"--lint -o yaml cds":            "--output=yaml: with --lint, want wide or json",
		"--lint --static-cluster [ cds": "--static-cluster=[: syntax error in pattern",
		"--static-cluster a cds":        "--static-cluster: only --lint takes it",
		"":                              "a TYPE is required",
		"--lint nothing":                "unknown type",
	} {
		if code, _, stderr := execute(append([]string{"get"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("tender get %s: code %d, stderr %q, want 2 and %q", args, code, stderr, want)
		}
	}
}
