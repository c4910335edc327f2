package main

import (
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// A forgetfulStream removes the second resource from responses with two resources.
type forgetfulStream struct{ grpc.ServerStream }

// SendMsg implements [grpc.ServerStream].
func (s forgetfulStream) SendMsg(m any) error {
	if resp, ok := m.(*discoverypb.DeltaDiscoveryResponse); ok && len(resp.GetResources()) == 2 {
		resp.Resources = resp.GetResources()[:1]
	}
	return s.ServerStream.SendMsg(m)
}

// TestAudit audits a relay against the server of go-control-plane: while all streams receive the same resources, and
// while new streams receive fewer resources than the relay.
func TestAudit(t *testing.T) {
	synctest.Test(t, testAudit)
}

func testAudit(t *testing.T) {
	var forgetful atomic.Bool
	cp := startControlPlane(t, grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, serve grpc.StreamHandler) error {
		if forgetful.Load() {
			stream = forgetfulStream{stream}
		}
		return serve(srv, stream)
	}))
	cp.set(t, "v1", map[resource.Type][]types.Resource{
		resource.ClusterType:  {cluster("web", ""), cluster("cart", "")},
		resource.EndpointType: {endpoints("web"), endpoints("cart")},
	})
	r := startRemote(t, instance.Options{Target: cp.address, Options: relay.Options{DialOptions: hostFor([]string{cp.address}).dialOptions}})
	must(t, exitOK, []string{"no subscriptions to audit"}, "audit")
	must(t, exitOK, []string{"web"}, "get", "-a", r.target, "cds")
	must(t, exitOK, []string{"cart"}, "get", "-a", r.target, "eds", "cart")
	must(t, exitOK, []string{"cds 2 0 0 0 0 0", "eds 1 0 0 0 0 0"}, "audit")
	must(t, exitOK, []string{"no subscriptions to audit"}, "audit", "--type", "lds")
	must(t, exitOK, []string{`"equal": 1`}, "audit", "--type", "eds", "-o", "json")
	must(t, exitFailure, []string{`there is no origin "x"; the origins are default`}, "audit", "--origin", "x")
	must(t, exitUsage, []string{"--output=x: want text or json"}, "audit", "-o", "x")

	forgetful.Store(true)
	must(t, exitFailure, []string{"cds 1 0 0 0 0 1", "missing there: the relay has version", "at least one view differs from its origin, or could not be compared"}, "audit", "--type", "cds")
	must(t, exitOK, []string{"cart", "web"}, "get", "-a", r.target, "cds")
}

// TestAuditOfADirectory checks that an audit of a relay that has only directories is an error, with the reason, and that
// an audit of others names the directories that it skips.
func TestAuditOfADirectory(t *testing.T) {
	startRemote(t, instance.Options{Env: []string{"TENDER_ORIGIN=file://" + t.TempDir()}})
	for _, args := range [][]string{nil, {"-o", "json"}, {"--origin", "default"}} {
		code, stdout, stderr := execute(append([]string{"audit"}, args...)...)
		if code != exitFailure || stdout != "" || !strings.Contains(stderr, `origin "default": the origin is a directory`) {
			t.Errorf("tender audit %q: code %d, %q, %q, want 1 and the reason", args, code, stdout, stderr)
		}
	}
	var text strings.Builder
	mixed := admin.Audits{
		Views:   []admin.ViewAudit{{Origin: "default", Group: "g", Types: []admin.TypeAudit{{TypeURL: "t", Equal: 1}}}},
		Skipped: []admin.SkippedAudit{{Origin: "files", Reason: "it is a directory"}},
	}
	if err := printAudits(&text, &mixed); err != nil || !strings.HasPrefix(text.String(), "origin files not audited: it is a directory\n") {
		t.Errorf("printAudits: %v, %q, want the skipped origin first", err, text.String())
	}
}

// TestTierAuditResult checks the result of an audit of a tier whose responses are printed as JSON.
func TestTierAuditResult(t *testing.T) {
	answer := func(text string) admin.TierAnswer { return admin.TierAnswer{Answer: json.RawMessage(text)} }
	equal, failed := answer(`{"views":[{"types":[{"equal":1}]}]}`), admin.TierAnswer{Error: "connection refused"}
	for name, tt := range map[string]struct {
		relays []admin.TierAnswer
		want   error
	}{
		"all equal":        {[]admin.TierAnswer{equal, equal}, nil},
		"a type differs":   {[]admin.TierAnswer{answer(`{"views":[{"types":[{"missing_here":1}]}]}`), equal}, errDrift},
		"one not compared": {[]admin.TierAnswer{equal, answer(`{"views":[{"error":"timeout"}]}`)}, errDrift},
		"one failed":       {[]admin.TierAnswer{answer(`{"views":[{"error":"timeout"}]}`), failed}, errTier},
	} {
		if err := checkTier(admin.TierAnswers{Relays: tt.relays}); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", name, err, tt.want)
		}
	}
	if err := checkTier(admin.TierAnswers{Relays: []admin.TierAnswer{answer(`[]`)}}); err == nil {
		t.Error("a malformed response gave no error")
	}
}
