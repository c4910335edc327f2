package envoytest_test

import (
	"testing"

	"github.com/xdstender/tender/relay/envoytest"
)

// TestEnvoy_Traffic: an Envoy below the relay serves requests, and has the configuration of an Envoy on the control
// plane.
func TestEnvoy_Traffic(t *testing.T) {
	scenario(t, ads, func(t *testing.T, s *setup) {
		s.origin.Put(web("one", envoytest.NewBackend(t, "one"))...)
		e := s.envoy(t, "edge-1")
		load := envoytest.StartLoad(t, e.Listener("web"), interval)
		load.Continue(20)
		if r := load.Stop(); len(r.Failures) > 0 {
			t.Error(r)
		}
		other := envoytest.Start(t, envoytest.Options{Bootstrap: s.bootstrap, Server: s.origin.Addr})
		other.Listener("web")
		e.AwaitConfig(other.Config())
		if stats := e.Stats(envoytest.Judged); stats.Sum("update_rejected")+stats.Sum("init_fetch_timeout") > 0 {
			t.Error(stats)
		}
	})
}
