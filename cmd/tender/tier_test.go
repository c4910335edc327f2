package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// tierRules is a file for TENDER_AUTHZ: ops may read and act, eyes may only read, and tender are peers.
const tierRules = `
version: 1
rules:
- name: fleet
  identities: ["spiffe://example.org/ns/shop/**"]
operators:
  read: ["spiffe://example.org/ns/ops/**", "spiffe://example.org/ns/eyes/**"]
  act: ["spiffe://example.org/ns/ops/**"]
peers: ["spiffe://example.org/ns/tender/**"]
snapshots: ["spiffe://example.org/ns/tender/sa/taker"]
`

// SPIFFE IDs in certificates, as in tierRules.
const (
	eve    = "spiffe://example.org/ns/ops/sa/eve"       // may act
	rita   = "spiffe://example.org/ns/eyes/sa/rita"     // may read
	relays = "spiffe://example.org/ns/tender/sa/tender" // the identity of relays
)

// A tier is a set of two relays that list each other as peers. The embedded operated has no log, and the address of the
// first relay.
type tier struct {
	*operated
	addrs []string // admin addresses
}

// newTier starts a tier. others returns the addresses of further peers, which precede the relays.
func newTier(t *testing.T, others func(*certs.CA) []string) *tier {
	t.Helper()
	s := &tier{operated: &operated{t: t, dir: t.TempDir(), signs: certs.NewCA(t)}}
	s.ca = certs.WriteFile(t, s.dir, "ca.pem", s.signs.PEM)
	cert, key := s.signs.Sign(certs.Leaf{URI: relays, Names: []string{"127.0.0.1"}}).Write(t, s.dir)
	rules := certs.WriteFile(t, s.dir, "authz.yaml", []byte(tierRules))

	// Relays know the addresses of their peers before those listen, so a proxy has each address.
	proxies := []*proxy.Proxy{proxy.New(t, ""), proxy.New(t, "")}
	peers := others(s.signs)
	for _, p := range proxies {
		s.addrs = append(s.addrs, p.Addr())
		peers = append(peers, p.Addr())
	}
	for i, p := range proxies {
		r := instance.Start(t, instance.Options{Options: relay.Options{Level: new(slog.LevelVar)}, Env: []string{
			"TENDER_ORIGIN=file://" + t.TempDir(), "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=0.0.0.0:0", "TENDER_NODE_ID=" + fmt.Sprint("relay-", i),
			"TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key, "TENDER_TLS_CLIENT_CA=" + s.ca, "TENDER_AUTHZ=" + rules,
			"TENDER_PEERS=" + strings.Join(peers, ","), "TENDER_PEERS_TLS_CA=" + s.ca, "TENDER_PEERS_TLS_CERT=" + cert, "TENDER_PEERS_TLS_KEY=" + key,
		}})
		p.Forward(fmt.Sprint("127.0.0.1:", r.AdminAddrs()[0].(*net.TCPAddr).Port))
	}
	s.addr = s.addrs[0]
	return s
}

// badPeers returns the addresses of a peer that is not reachable, and of two servers that are not relays.
func badPeers(t *testing.T) func(*certs.CA) []string {
	return func(ca *certs.CA) []string {
		return []string{proxy.Refused(t), liar(t, ca, func(w io.Writer) { _, _ = io.WriteString(w, "<html>") }), liar(t, ca, endless)}
	}
}

// endless writes until the connection is closed.
func endless(w io.Writer) {
	for err := error(nil); err == nil; {
		_, err = io.WriteString(w, strings.Repeat(" ", 64<<10))
	}
}

// liar starts a server with a valid certificate that is not a relay, and returns its address.
func liar(t *testing.T, ca *certs.CA, write func(io.Writer)) string {
	t.Helper()
	cert, key := ca.Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, t.TempDir())
	config, err := (&cli.TLSFlags{Cert: cert, Key: key}).Config()
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w) }))
	s.TLS = config
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// TestB49_TierShowsClientsOfLowerTiers: a relay of the tier is shown with the clients of the relays below it.
func TestB49_TierShowsClientsOfLowerTiers(t *testing.T) {
	var out strings.Builder
	err := printTier(&out, &admin.TierStatus{Relays: []admin.TierRelay{
		{Address: "10.0.0.1:18443", TierSummary: &admin.TierSummary{NodeID: "region-0", Ready: true, Streams: 3, Below: &admin.TierTotals{
			Relays: 3, Silent: 1, TierCounts: admin.TierCounts{Clients: 1200, InSync: 1198, Rejecting: 1, Unknown: 1},
		}}},
		{Address: "10.0.0.2:18443", TierSummary: &admin.TierSummary{NodeID: "region-1", Ready: true}},
	}})
	const want = "    below 3 relays: 1200 clients: 1 rejecting, 0 behind, 1 unknown, 1198 in sync; the clients of 1 relay are UNKNOWN\n" +
		"10.0.0.2:18443"
	if err != nil || !strings.Contains(out.String(), want) {
		t.Errorf("printed:\n%s\nerror %v, want\n%s", &out, err, want)
	}
}

// TestTierIsSeenFromOneRelay verifies that one relay returns the status of all relays of its tier, and an error for
// each unreachable peer.
func TestTierIsSeenFromOneRelay(t *testing.T) {
	s := newTier(t, badPeers(t))
	reader := s.certificate(rita)
	code, stdout, stderr := execute(append([]string{"status", "--tier", "-o", "json", "--admin", s.addr}, reader...)...)
	var found admin.TierStatus
	if err := json.Unmarshal([]byte(stdout), &found); err != nil || code != exitFailure || len(found.Relays) != 5 {
		t.Fatalf("tender status --tier: error %v, code %d, %s%s, want 5 relays", err, code, stdout, stderr)
	}
	for i, want := range []string{"relay-0", "connection refused", "is not that of a relay", "has more than 4194304 bytes", "relay-1"} {
		r := found.Relays[i]
		if r.TierSummary != nil && (r.NodeID != want || !r.Ready || r.Error != "") || r.TierSummary == nil && !strings.Contains(r.Error, want) {
			t.Errorf("relay %d: %+v, want %s", i, r, want)
		}
	}
	_, stdout, _ = execute(append([]string{"status", "--tier", "--admin", s.addr}, reader...)...)
	if strings.Count(stdout, "UNREACHABLE") != 3 || !strings.Contains(stdout, "relay-1") {
		t.Errorf("tender status --tier prints %s, want 3 unreachable peers and relay-1", stdout)
	}
	_, stdout, _ = execute(append([]string{"clients", "--tier", "-o", "yaml", "--admin", s.addr}, reader...)...)
	for i, want := range []string{"connection refused", "is not that of a relay", "has more than 4194304 bytes", "relay: relay-0", "relay: relay-1"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("tender clients --tier, relay %d: %s, want %s", i, stdout, want)
		}
	}
	if code, stdout, _ = execute(append([]string{"status", "--tier", "-o", "yaml", "--admin", s.addr}, reader...)...); code != exitFailure || !strings.Contains(stdout, "node_id: relay-1") {
		t.Errorf("tender status --tier -o yaml: code %d, %s, want 1, since peers are not reachable, and relay-1", code, stdout)
	}
}

// TestTierCommandNamesTheOperator verifies that a command with --tier runs on every reachable relay. Each relay
// records the operator, and the relay that forwarded the command.
func TestTierCommandNamesTheOperator(t *testing.T) {
	records := collectEvents(t)
	s := newTier(t, badPeers(t))
	code, stdout, _ := execute(append([]string{"freeze", "--tier", "--reason", "bad routes", "--admin", s.addr}, s.certificate(eve)...)...)
	if code != exitFailure || strings.Count(stdout, "FROZEN") != 2 || strings.Count(stdout, "FAILED: ") != 3 || !strings.Contains(stdout, "(relay-1)") {
		t.Errorf("tender freeze --tier: code %d, %s, want 2 frozen relays and 3 failures", code, stdout)
	}
	flags := s.certificate(rita)
	_, stdout, _ = execute(append([]string{"history", "-o", "json", "--admin", s.addrs[1]}, flags...)...)
	var done admin.Actions
	if err := json.Unmarshal([]byte(stdout), &done); err != nil || len(done.Actions) != 1 {
		t.Fatalf("tender history of the peer: error %v, %s, want one action", err, stdout)
	}
	if a := done.Actions[0]; a.Command != "freeze" || a.Operator != eve || a.Via != relays || a.Reason != "bad routes" {
		t.Errorf("the peer recorded %+v, want freeze by %s via the first relay", a, eve)
	}
	var forwarded []*logspb.LogRecord
	for _, event := range awaitEvents(t, records, 2) { // the command for the tier, and the forwarded command
		if strings.Contains(event.String(), "tender.via") && event.TimeUnixNano == uint64(done.Actions[0].At.UnixNano()) {
			forwarded = append(forwarded, event)
		}
	}
	if len(forwarded) != 1 {
		t.Fatalf("received %d events of the forwarded command, want 1", len(forwarded))
	}
	checkEvent(t, forwarded[0], done.Actions[0])
	// An operator who may only read cannot forward commands either.
	if code, _, stderr := execute(append([]string{"thaw", "--tier", "--admin", s.addr}, flags...)...); code != exitFailure || !strings.Contains(stderr, "may act") {
		t.Errorf("tender thaw --tier by a reader: code %d, %s, want an authorization error", code, stderr)
	}
}

// TestTierCommands verifies that each command with --tier runs on two relays on behalf of the operator. Each command
// refuses an operator who may only read.
func TestTierCommands(t *testing.T) {
	s := newTier(t, func(*certs.CA) []string { return nil })
	act, read := s.certificate(eve), s.certificate(rita)
	commands := 0
	for _, tt := range []struct {
		args []string
		want string // printed for each relay
	}{
		{[]string{"freeze"}, "FROZEN"},
		{[]string{"thaw"}, "changes are distributed"},
		{[]string{"pass", "--all"}, "nothing is passed"},
		{[]string{"drop", "--all"}, "nothing is dropped"},
		{[]string{"audit", "--type", "cds"}, "FAILED: origin \"default\": the origin is a directory"},
		{[]string{"log-level", "warn"}, "warn"},
	} {
		args := append(tt.args, "--tier", "--reason", "test", "--admin", s.addr)
		if code, stdout, stderr := execute(append(args, read...)...); code != exitFailure || !strings.Contains(stdout+stderr, "may act") {
			t.Errorf("tender %s by a reader: code %d, %s%s, want an authorization error", strings.Join(tt.args, " "), code, stdout, stderr)
		}
		code, stdout, stderr := execute(append(args, act...)...)
		wantCode, fails := exitOK, strings.HasPrefix(tt.want, "FAILED")
		if fails {
			wantCode = exitFailure
		}
		if code != wantCode || strings.Count(stdout, tt.want) < 2 || strings.Contains(stdout, "FAILED") != fails {
			t.Errorf("tender %s: code %d, %s%s, want %q for two relays", strings.Join(tt.args, " "), code, stdout, stderr, tt.want)
		}
		if !fails {
			commands++
		}
	}
	for output, want := range map[string]string{"table": "nothing is pending", "json": `"pending": []`} {
		code, stdout, stderr := execute(append([]string{"pending", "--tier", "-o", output, "--admin", s.addr}, read...)...)
		if code != exitOK || strings.Count(stdout, want) < 2 {
			t.Errorf("tender pending -o %s by a reader: code %d, %s%s, want %q for two relays", output, code, stdout, stderr, want)
		}
	}
	for _, addr := range s.addrs {
		_, stdout, _ := execute(append([]string{"history", "-o", "json", "--limit", "100", "--admin", addr}, read...)...)
		var done admin.Actions
		if err := json.Unmarshal([]byte(stdout), &done); err != nil {
			t.Fatalf("tender history: error %v, %s", err, stdout)
		}
		named := 0
		for _, a := range done.Actions {
			if a.Operator == eve && a.Reason == "test" && a.Error == "" {
				named++
			}
			if strings.Contains(a.Command, "pending") {
				t.Errorf("%s recorded a query as a command: %+v", addr, a)
			}
		}
		if named < commands {
			t.Errorf("%s recorded %d commands of the operator, want %d: %+v", addr, named, commands, done.Actions)
		}
	}
	if code, stdout, _ := execute(append([]string{"status", "--tier", "--admin", s.addr}, read...)...); code != exitOK || strings.Count(stdout, "yes") < 2 {
		t.Errorf("tender status --tier: code %d, %s, want two ready relays", code, stdout)
	}
}

// A scriptedTier returns the same responses to each forwarded command.
type scriptedTier struct {
	admin.Tier
	answers []admin.TierAnswer
}

// Forward implements [admin.Tier].
func (s scriptedTier) Forward(context.Context, *admin.TierSummary, string, string, []byte, time.Duration) []admin.TierAnswer {
	return s.answers
}

// TestTierRollbackOutput verifies the output of a rollback with --tier for each relay, with the changes of a dry run,
// and the exit code after a failure of one relay.
func TestTierRollbackOutput(t *testing.T) {
	change := admin.RolloutChange{Origin: "default", Group: "g", TypeURL: listenerType, Name: "ingress", Change: "removed"}
	rolledBack := func(_ context.Context, of admin.RollbackScope) (admin.Rollbacks, error) {
		r := admin.Rollbacks{Origins: []admin.Rollback{{Origin: "default", Views: 1, Resources: 1}}, DryRun: of.DryRun}
		if of.DryRun {
			r.Diff = &admin.RolloutDiff{Changes: []admin.RolloutChange{change}, Total: 3}
		} else {
			r.Origins[0].Freeze = &admin.Freezing{By: "eve", Rollback: &admin.RolledBack{To: "abcdef"}}
		}
		return r, nil
	}
	answers := []admin.TierAnswer{
		{Address: "peer:1", NodeID: "relay-1", Answer: json.RawMessage(`{"origins": [{"origin": "west", "views": 7}]}`)},
		{Address: "closed:1", Error: "unreachable: connection refused"},
	}
	t.Setenv(adminVariable, serveAdmin(t, "unix", admin.Status{}, func(cfg *admin.Config) {
		rollback := admin.NewCommand("rollback", rolledBack)
		rollback.Forwarded = true
		cfg.Commands = append(cfg.Commands, rollback)
		cfg.Tier, cfg.Summary = scriptedTier{answers: answers}, func() *admin.TierSummary { return &admin.TierSummary{NodeID: "relay-0"} }
		cfg.RollbackDiff = func(context.Context, string, admin.RolloutChoice) (admin.RolloutDiff, error) {
			return admin.RolloutDiff{Changes: []admin.RolloutChange{change}, Total: 1}, nil
		}
	}))
	others := " relay peer:1 (relay-1) ORIGIN STATE VIEWS RESOURCES BY west changes are distributed 7 0 - relay closed:1 (unknown) FAILED: unreachable: connection refused"
	must(t, exitFailure, []string{
		"relay self (relay-0) - lds ingress", "2 more changes: --dry-run without --tier prints all ORIGIN STATE VIEWS RESOURCES BY default dry run: nothing is changed 1 1 -" + others, errTier.Error(),
	}, "rollback", "abcdef", "--dry-run", "--tier")
	must(t, exitFailure, []string{"- lds ingress", "relay self (relay-0) ORIGIN STATE VIEWS RESOURCES BY default ROLLED BACK 1 1 ", others, errTier.Error()},
		"rollback", "abcdef", "--reason", "bad routes", "--tier")
}

// TestOnlyPeersForward verifies that a relay accepts admin.OperatorHeader only from peers. Peers can read the summary
// of a relay, and without the header nothing else.
func TestOnlyPeersForward(t *testing.T) {
	s := newTier(t, badPeers(t))
	for _, tt := range []struct {
		who, method, path, operator string // who: path of the SPIFFE ID below ns
		code                        int
		want                        string
	}{
		{"ops/sa/eve", "POST", "freeze", "spiffe://example.org/ns/ops/sa/boss", 403, "is not one of the peers"},
		{"eyes/sa/rita", "POST", "freeze", "spiffe://example.org/ns/ops/sa/eve", 403, "is not one of the peers"},
		{"shop/sa/cart", "POST", "freeze", "spiffe://example.org/ns/ops/sa/eve", 403, "is not one of the peers"},
		{"tender/sa/x", "POST", "freeze", "", 403, "may act"},
		{"tender/sa/x", "POST", "tier/freeze", "spiffe://example.org/ns/ops/sa/eve", 403, "peers may not forward requests"},
		{"tender/sa/x", "POST", "rollout/abort", "spiffe://example.org/ns/ops/sa/eve", 403, "peers may not forward requests"},
		{"tender/sa/x", "GET", "status", "", 403, "is not one of the operators"},
		{"tender/sa/x", "GET", "status", "spiffe://example.org/ns/ops/sa/eve", 403, "peers may not forward requests"},
		{"tender/sa/x", "GET", "tier/self", "", 200, "relay-0"},
		{"shop/sa/cart", "GET", "tier/self", "", 403, "is not one of the operators"},
		{"tender/sa/x", "GET", "clients", "", 403, "is not one of the operators"},
		{"tender/sa/x", "GET", "clients", "spiffe://example.org/ns/eyes/sa/rita", 200, `"relay": "relay-0"`},
		{"tender/sa/x", "GET", "clients/1", "spiffe://example.org/ns/eyes/sa/rita", 404, "there is no client 1"},
		{"eyes/sa/rita", "GET", "clients", "spiffe://example.org/ns/ops/sa/eve", 403, "is not one of the peers"},
		{"tender/sa/x", "GET", "tier/clients?relay=self", "spiffe://example.org/ns/eyes/sa/rita", 403, "peers may not forward requests"},
		{"shop/sa/cart", "GET", "tier/clients?relay=self", "", 403, "is not one of the operators"},
		{"eyes/sa/rita", "GET", "tier/clients?relay=self", "", 200, `"relay": "relay-0"`},
		{"eyes/sa/rita", "GET", "tier/clients?relay=" + s.addrs[1], "", 200, "relay-1"},
		{"eyes/sa/rita", "GET", "tier/clients/1?relay=" + s.addrs[1], "", 502, "there is no client 1"},
		{"eyes/sa/rita", "GET", "tier/clients?relay=127.0.0.1:9", "", 404, "TENDER_PEERS has no relay"},
		{"eyes/sa/rita", "GET", "tier/clients", "", 400, "want one address of a relay"},
		{"tender/sa/x", "POST", "thaw", "alice at 127.0.0.1", 200, "origins"},
		{"tender/sa/x", "GET", "tier/snapshot", "", 403, "is not one of the peers that may take snapshots"},
		{"ops/sa/eve", "GET", "tier/snapshot", "", 403, "is not one of the peers that may take snapshots"},
		{"tender/sa/taker", "GET", "tier/snapshot", "", 409, "the relay has no configuration yet"},
	} {
		flags := s.certificate("spiffe://example.org/ns/" + tt.who)
		config, err := (&cli.TLSFlags{CA: flags[1], Cert: flags[3], Key: flags[5]}).Config()
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), tt.method, "https://"+s.addr+"/api/v1/"+tt.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if tt.operator != "" {
			r.Header.Set(admin.OperatorHeader, tt.operator)
		}
		resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != tt.code || !strings.Contains(string(text), tt.want) {
			t.Errorf("%s %s by %s for %q: %s %s, error %v, want %d and %q", tt.method, tt.path, tt.who, tt.operator, resp.Status, text, err, tt.code, tt.want)
		}
		_ = resp.Body.Close()
	}
}
