package authz_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// TestB36_RulesThatChangeForLoadsAndPolls checks that new rules also apply to open streams of load reports and to
// pending polls.
func TestB36_RulesThatChangeForLoadsAndPolls(t *testing.T) {
	synctest.Test(t, testRulesThatChangeForLoadsAndPolls)
}

func testRulesThatChangeForLoadsAndPolls(t *testing.T) {
	shop := "- {name: shop, identities: [\"" + web + "\"], secrets: [a]}\n"
	m := newMeshInMemory(t, shop+"- {name: other, identities: [\""+other+"\"]}\n", "TENDER_LRS=aggregate")
	m.put("a", "1")
	loads, err := lrspb.NewLoadReportingServiceClient(m.dial(other)).StreamLoadStats(m.within())
	if err == nil {
		err = loads.Send(&lrspb.LoadStatsRequest{Node: nodeOf("other")})
	}
	if err != nil {
		t.Fatal(err)
	}
	m.logs("load report stream opened")
	const body = `{"node": {"id": "x"}, "resource_names": ["a"], "version_info": "`
	code, answer := m.poll(web, "secrets", body+`"}`)
	_, version, _ := strings.Cut(answer, `{"versionInfo":"`)
	version, _, _ = strings.Cut(version, `"`)
	if code != http.StatusOK || version == "" {
		t.Fatalf("poll: got %d %s, want the Secret and its version", code, answer)
	}
	held := make(chan string, 1)
	go func() { // ends when the poll is answered
		defer close(held)
		code, answer := m.pollFor(web, "secrets", body+version+`"}`, "30000")
		held <- http.StatusText(code) + answer
	}()
	if synctest.Wait(); m.Streams() != 2 {
		t.Fatalf("%d streams, want the load report stream and the second poll", m.Streams())
	}

	m.rule(strings.Replace(shop, "[a]", "[b]", 1))
	if _, err := loads.Recv(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "no rule is about it") {
		t.Errorf("load report stream closed with %v, want PERMISSION_DENIED", err)
	}
	if got := <-held; !strings.Contains(got, "Forbidden") || !strings.Contains(got, `may not have the Secret \"a\"`) {
		t.Errorf("pending poll after the change of the rules: got %s, want 403", got)
	}
}

// TestCheckFiles checks the errors and warnings that CheckFiles returns for a file of rules.
func TestCheckFiles(t *testing.T) {
	ca, dir := certs.NewCA(t), t.TempDir()
	cert, key := ca.Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, dir)
	check := func(rules string) (warnings []string, err error) {
		t.Helper()
		cfg, err := relay.LoadConfig([]string{"TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key, "TENDER_TLS_LISTEN=:1", "TENDER_NODE_GROUP_BY=cluster,metadata.env",
			"TENDER_TLS_CLIENT_CA=" + certs.WriteFile(t, dir, "ca.pem", ca.PEM), "TENDER_AUTHZ=" + certs.WriteFile(t, dir, "authz.yaml", []byte(rules))})
		if err != nil {
			t.Fatal(err)
		}
		return cfg.CheckFiles()
	}
	_, err := check("version: 1\nrules: []\n")
	if want := `TENDER_AUTHZ="` + dir + `/authz.yaml": authz.yaml:2:8: rules is empty`; err == nil || err.Error() != want {
		t.Errorf("CheckFiles: %v, want %s", err, want)
	}
	warnings, err := check("version: 1\nrules:" + tenants)
	want := []string{
		"TENDER_AUTHZ: TENDER_NODE_GROUP_BY has metadata.env, which the rules tenants do not restrict: their clients can join any of these groups and read its resources",
		"TENDER_AUTHZ: no rule matches anonymous: clients of TENDER_LISTEN, which has no TLS, are refused",
	}
	if err != nil || strings.Join(warnings, "\n") != strings.Join(want, "\n") {
		t.Errorf("CheckFiles: %q, %v, want %q", warnings, err, want)
	}
}
