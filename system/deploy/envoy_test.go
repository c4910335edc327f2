package deploy_test

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// install copies a YAML file of deploy/envoy to dir, with the path of s.files in place of /etc/envoy.
func (s *envoySite) install(dir, name string) string {
	s.t.Helper()
	text := readText(s.t, envoyDir+name)
	return certs.WriteFile(s.t, dir, name, []byte(strings.ReplaceAll(text, "/etc/envoy", s.files)))
}

// validate runs `envoy --mode validate` on a bootstrap, with an Envoy of each version.
func (s *envoySite) validate(name string) {
	s.t.Helper()
	path := s.install(s.t.TempDir(), name)
	for _, version := range envoytest.Versions(s.t) {
		out, err := exec.Command(envoytest.Installed(s.t, version), "--mode", "validate", "--config-path", path, "--log-level", "warning").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "OK") {
			s.t.Errorf("Envoy %s: %s: %v\n%s", version, name, err, out)
		}
	}
}

// server returns the address of the relay that a bootstrap's Envoy connects to.
func (s *envoySite) server(b *bootstrappb.Bootstrap) string {
	switch {
	case b.GetDynamicResources().GetCdsConfig().GetApiConfigSource().GetApiType() == corepb.ApiConfigSource_REST:
		return s.relay.RESTAddrs()[0].String()
	case relayCluster(s.t, b).GetTransportSocket() != nil:
		return s.relay.TLSAddrs()[0].String()
	default:
		return s.relay.Addrs()[0].String()
	}
}

// serves starts an Envoy from a bootstrap, and returns it once it has served a request with the configuration of the
// control plane.
func (s *envoySite) serves(name, server string) *envoytest.Envoy {
	s.t.Helper()
	s.content.Put(relaytest.StaticCluster("web", envoytest.NewBackend(s.t, "backend").Addr))
	e := envoytest.Start(s.t, envoytest.Options{Bootstrap: name, Server: server, ControlPlane: s.origin.Addr(), Files: s.files})
	e.AwaitReady()
	load := envoytest.StartLoad(s.t, e.Listener("ingress"), 10*time.Millisecond)
	load.Await("an answer of the backend", func(r envoytest.Report) bool { return r.Answers["backend"] > 0 })
	if r := load.Stop(); len(r.Failures) > 0 {
		s.t.Errorf("requests failed: %v", r)
	}
	if stats := e.Stats(envoytest.Judged); stats.Sum("update_rejected") > 0 {
		s.t.Errorf("the Envoy rejected updates: %v", stats)
	}
	return e
}

// TestEnvoy_Bootstraps checks that each version of Envoy accepts each bootstrap. An Envoy that is started from it with
// a relay becomes ready and serves requests.
func TestEnvoy_Bootstraps(t *testing.T) {
	for _, name := range bootstraps(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := readBootstrap(t, name)
			s := newEnvoySite(t, b, "TENDER_LRS=aggregate")
			for _, secret := range secrets {
				s.install(s.files, secret)
			}
			s.validate(name)
			s.serves(name, s.server(b))
			if got := s.origin.State().OpenConnections; got != 1 {
				t.Errorf("the control plane has %d connections, want only the relay's", got)
			}
			if b.GetClusterManager().GetLoadStatsConfig() != nil {
				s.reports.Await(t, func(reports []*lrspb.LoadStatsRequest) error {
					if !slices.ContainsFunc(reports, func(r *lrspb.LoadStatsRequest) bool { return len(r.GetClusterStats()) > 0 }) {
						return errors.New("the control plane has received none")
					}
					return nil
				})
			}
		})
	}
}

// TestEnvoy_Fallback checks that the control plane serves an Envoy with fallback.yaml while the relay has no
// configuration.
func TestEnvoy_Fallback(t *testing.T) {
	t.Parallel()
	const name = "fallback.yaml"
	b := readBootstrap(t, name)
	s := newEnvoySite(t, b, "TENDER_ORIGIN=127.0.0.1:1", "TENDER_COLD_WAIT=100ms")
	s.serves(name, s.server(b))
	if got := s.origin.State(); got.OpenConnections != 1 {
		t.Errorf("the control plane has %d connections, want only the Envoy's", got.OpenConnections)
	}
}
