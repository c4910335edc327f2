package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cmd/tender/get"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

func TestGetWatchPrintsChanges(t *testing.T) {
	t.Parallel()
	for variant, flags := range variants {
		t.Run(variant, func(t *testing.T) {
			cp := startControlPlane(t)
			cp.set(t, "v1", map[resource.Type][]types.Resource{resource.ClusterType: {cluster("web", "")}})
			lines := watch(t, append([]string{"-a", cp.address, "-o", "name", "cds"}, flags...)...)
			expect := func(want string) {
				t.Helper()
				for line := range lines {
					if line != want {
						t.Fatalf("printed %q, want %q", line, want)
					}
					return
				}
			}
			expect("added web")
			cp.set(t, "v2", map[resource.Type][]types.Resource{resource.ClusterType: {cluster("web", "new")}})
			expect("changed web")
			cp.set(t, "v3", map[resource.Type][]types.Resource{resource.ClusterType: {cluster("web", "new"), cluster("cart", "")}})
			expect("added cart")
			cp.set(t, "v4", map[resource.Type][]types.Resource{resource.ClusterType: {cluster("cart", "")}})
			expect("removed web")
		})
	}
}

func TestGetWatchOutputs(t *testing.T) {
	t.Parallel()
	content := func(alt string) *anypb.Any { return pack(t, cluster("a", alt)) }
	address := serveXDS(t, deltaSays(
		&discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{{Name: "a", Version: "1", Resource: content("")}}, RemovedResources: []string{"b"}},
		&discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{{Name: "a", Version: "2", Resource: content("x")}}},
		&discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{{Name: "a", Version: "3", Resource: content("x")}}}, // only the version changes
		&discoverypb.DeltaDiscoveryResponse{RemovedResources: []string{"a"}},
	))
	tests := map[string][]string{
		"yaml": {
			"# added a, version 1", "- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster", "  name: a",
			"# missing b: does not exist",
			"# changed a, version 2", "- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster", "  name: a", "  alt_stat_name: x",
			"# removed a: does not exist",
		},
		"json": {
			`{"event":"added","name":"a","version":"1","resource":{"@type":"type.googleapis.com/envoy.config.cluster.v3.Cluster","name":"a"}}`,
			`{"event":"missing","name":"b","reason":"does not exist"}`,
			`{"event":"changed","name":"a","version":"2","resource":{"@type":"type.googleapis.com/envoy.config.cluster.v3.Cluster","name":"a","alt_stat_name":"x"}}`,
			`{"event":"removed","name":"a","reason":"does not exist"}`,
		},
		"name": {"added a", "missing b", "changed a", "removed a"},
		"wide": {"EVENT NAME VERSION BYTES TYPE", "added a 1 3 cds", "missing b - - -", "changed a 2 7 cds", "removed a - - -"},
	}
	for output, want := range tests {
		t.Run(output, func(t *testing.T) {
			i := 0
			for line := range watch(t, "-a", address, "-o", output, "cds", "a", "b") {
				if output == "wide" {
					line = strings.Join(strings.Fields(line), " ")
				}
				if line != want[i] {
					t.Fatalf("line %d: %q, want %q", i, line, want[i])
				}
				if output == "json" && !json.Valid([]byte(line)) {
					t.Errorf("line is not valid JSON: %s", line)
				}
				if i++; i == len(want) {
					break
				}
			}
		})
	}
}

func TestGetWatchGoesOnWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		address := serveXDS(t, deltaSays())
		for line := range watch(t, "-a", address, "--timeout=50ms", "cds") {
			if want := "tender: nothing within 50ms, still waiting"; line != want {
				t.Errorf("printed %q, want %q", line, want)
			}
			break
		}
	})
}

func TestGetFromAServerThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := serveXDS(t, deltaSays())
		mute, muteTarget := memory.listen() // accepts no connection
		defer func() { _ = mute.Close() }()
		nothing := serveXDS(t, nil)
		ends := serveXDS(t, script{
			delta: func(discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error { return nil },
		})
		secure := serveXDS(t, nil, mutualTLS(t, certs.NewCA(t)))
		tests := []struct {
			name string
			args []string
			want string
		}{
			{"no response to a wildcard", []string{"-a", silent, "--timeout=50ms", "cds"}, "tender: get from " + silent + ": no answer within 50ms: the server has no cds, or gives it only by name\n"},
			{"no response to a name", []string{"-a", silent, "--timeout=50ms", "eds", "a"}, "tender: get from " + silent + ": no answer within 50ms: the server has no eds \"a\", or waits for it\n"},
			{"no HTTP/2 server", []string{"-a", muteTarget, "--timeout=50ms", "cds"}, "tender: get from " + muteTarget + ": not connected within 50ms\n"},
			{"no HTTP/2 server, with --watch", []string{"-a", muteTarget, "--timeout=50ms", "-w", "cds"}, "tender: watch " + muteTarget + ": not connected within 50ms\n"},
			{"no Delta", []string{"-a", nothing, "cds"}, "tender: get from " + nothing + ": the server does not serve Delta ADS; try --sotw ("},
			{"no SotW", []string{"-a", nothing, "--sotw", "cds"}, "tender: get from " + nothing + ": the server does not serve state-of-the-world ADS; try without --sotw ("},
			{"stream ended", []string{"-a", ends, "cds"}, "tender: get from " + ends + ": the server ended the stream\n"},
			{"TLS server", []string{"-a", secure, "cds"}, "tender: get from " + secure + ": "},
			{"missing CA file", []string{"-a", silent, "--tls-ca=/nonexistent/ca.pem", "cds"}, "tender: read --tls-ca: open /nonexistent/ca.pem: no such file or directory\n"},
		}
		for _, tt := range tests {
			code, stdout, stderr := execute(append([]string{"get"}, tt.args...)...)
			if code != exitFailure || stdout != "" || !strings.HasPrefix(stderr, tt.want) {
				t.Errorf("%s: code %d, stdout %q\n got %q\nwant %q", tt.name, code, stdout, stderr, tt.want)
			}
		}
	})
}

// TestGetFromNoServer verifies the errors for an address on which no server listens.
func TestGetFromNoServer(t *testing.T) {
	t.Parallel()
	closed := proxy.Refused(t)
	for address, want := range map[string]string{
		closed:                       "dial tcp " + closed + ": connect: connection refused",
		"unix:/nonexistent/xds.sock": "dial unix /nonexistent/xds.sock: connect: no such file or directory",
	} {
		code, stdout, stderr := execute("get", "-a", address, "cds")
		if want = "tender: get from " + address + ": " + want + "\n"; code != exitFailure || stdout != "" || stderr != want {
			t.Errorf("tender get -a %s: code %d, stdout %q\n got %q\nwant %q", address, code, stdout, stderr, want)
		}
	}
}

func TestGetEndsWhenInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		address := serveXDS(t, deltaSays())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		cmd := get.NewCommand(version, getGroups{hostFor([]string{address})}, hostFor([]string{address}).dialOptions...)
		cmd.SetArgs([]string{"-a", address, "cds"})
		cmd.SetOut(new(bytes.Buffer))
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.ExecuteContext(ctx); err == nil || err.Error() != "interrupted" {
			t.Errorf("tender get after an interrupt: error %v, want interrupted", err)
		}
	})
}
