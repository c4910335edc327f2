package upstream

import (
	"context"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/xdstender/tender/cache/wire"
)

// TestUnresolvedName checks that the error of a name without addresses names the target and DNS.
func TestUnresolvedName(t *testing.T) {
	dns := manual.NewBuilderWithScheme("nowhere")
	dns.InitialState(resolver.State{})
	s, err := New(Config{
		Targets: []string{"nowhere:///istiod.example:15010"}, Credentials: insecure.NewCredentials(),
		DialOptions: []grpc.DialOption{grpc.WithResolvers(dns)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	var failure string
	_ = s.Probe(ctx, Probe{
		Node: new(corepb.Node), TypeURL: wire.ClusterType, Opened: func() {},
		Failed: func(err error) { failure = err.Error(); cancel() },
	})
	if !strings.Contains(failure, "the name in nowhere:///istiod.example:15010 does not resolve") {
		t.Errorf("the probe failed with %q, want an error that names the target and DNS", failure)
	}
}
