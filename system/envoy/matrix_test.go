package envoy_test

import (
	"flag"
	"os"
	"path"
	"slices"
	"testing"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// The flags select the runs of each test. A direct run shows how Envoy and the control plane behave without the relay.
var (
	full   = flag.Bool("full", false, "run each test with every version of Envoy in every variant")
	direct = flag.Bool("direct", false, "also run each scenario with the Envoy connected to the control plane")
)

// A variant is a transport protocol of xDS with its bootstrap in deploy/envoy.
type variant struct{ name, bootstrap string }

// The variants. A test of several has Envoys of different variants.
var (
	delta      = variant{"delta", "delta-ads.yaml"}
	sotw       = variant{"sotw", "sotw-ads.yaml"}
	deltaTypes = variant{"delta-types", "delta-types.yaml"}
	sotwTypes  = variant{"sotw-types", "sotw-types.yaml"}
	rest       = variant{"rest", "rest.yaml"}

	ads     = []variant{delta, sotw}
	every   = []variant{delta, sotw, deltaTypes, sotwTypes, rest}
	several = []variant{{}}
)

// A client is an Envoy of one version that speaks one variant.
type client struct {
	variant
	version string // such as 1.40.0
	binary  string
}

// options returns the options of an Envoy that connects to a server.
func (c client) options(server, id string) envoytest.Options {
	return envoytest.Options{Binary: c.binary, Bootstrap: c.bootstrap, Server: server, Node: relaytest.EnvoyNode(id)}
}

// speaking returns the same Envoy with another variant.
func (c client) speaking(v variant) client {
	c.variant = v
	return c
}

// speak sets the ADS protocol of any bootstrap to that of the client.
func (c client) speak(b *bootstrappb.Bootstrap) {
	b.GetDynamicResources().GetAdsConfig().ApiType = corepb.ApiConfigSource_DELTA_GRPC
	if c.variant == sotw {
		b.GetDynamicResources().GetAdsConfig().ApiType = corepb.ApiConfigSource_GRPC
	}
}

// clients returns the clients of a test with these variants: all that choose selects, or those of $ENVOY if it is set.
func clients(t *testing.T, variants []variant) []client {
	t.Helper()
	if os.Getenv("ENVOY") != "" {
		binary := envoytest.Binary(t)
		all := choose([]string{envoytest.VersionOf(t, binary)}, variants, false)
		for i := range all {
			all[i].binary = binary
		}
		return all
	}
	all := choose(envoytest.Versions(t), variants, *full)
	for i := range all {
		all[i].binary = envoytest.Installed(t, all[i].version)
	}
	return all
}

// choose returns a client for each combination of versions, oldest first, and variants. If not all are wanted, the
// version of SotW beside other variants is the oldest, and that of all others the newest.
func choose(versions []string, variants []variant, all bool) (chosen []client) {
	for _, v := range variants {
		from, to := len(versions)-1, len(versions)
		if v == sotw && len(variants) > 1 {
			from, to = 0, 1
		}
		if all {
			from, to = 0, len(versions)
		}
		for _, version := range versions[from:to] {
			chosen = append(chosen, client{variant: v, version: version})
		}
	}
	return chosen
}

// matrix runs a test with each of its clients, in parallel with each other and with other tests. A subtest has the name
// of the version and the variant, such as 1.40.0/delta.
func matrix(t *testing.T, variants []variant, run func(*testing.T, client)) {
	t.Helper()
	t.Parallel()
	for _, c := range clients(t, variants) {
		t.Run(path.Join(c.version, c.name), func(t *testing.T) {
			t.Parallel()
			run(t, c)
		})
	}
}

// TestMatrix: the clients of a test without and with -full.
func TestMatrix(t *testing.T) {
	for _, tt := range []struct {
		variants []variant
		full     bool
		want     []string
	}{
		{ads, false, []string{"1.40.0/delta", "1.36.2/sotw"}},
		{[]variant{sotw}, false, []string{"1.40.0/sotw"}},
		{several, false, []string{"1.40.0"}},
		{every, false, []string{"1.40.0/delta", "1.36.2/sotw", "1.40.0/delta-types", "1.40.0/sotw-types", "1.40.0/rest"}},
		{ads, true, []string{"1.36.2/delta", "1.38.0/delta", "1.40.0/delta", "1.36.2/sotw", "1.38.0/sotw", "1.40.0/sotw"}},
	} {
		var got []string
		for _, c := range choose([]string{"1.36.2", "1.38.0", "1.40.0"}, tt.variants, tt.full) {
			got = append(got, path.Join(c.version, c.name))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("clients of %v, full %v: got %q, want %q", tt.variants, tt.full, got, tt.want)
		}
	}
}
