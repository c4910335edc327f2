package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/logs"
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
`

// A tier is a set of relays that share a file origin and list each other as peers. The embedded operated has no log,
// and the address of the first relay.
type tier struct {
	*operated
	addrs []string    // admin addresses
	xds   []string    // addresses for clients
	files string      // directory of the file origin
	logs  []*logs.Log // of each relay
}

// newTier starts a tier of two relays. Their peers include an address without a listener, and two servers that are not
// relays.
func newTier(t *testing.T) *tier {
	t.Helper()
	return newTierOf(t, 2, func(ca *certs.CA) []string {
		return []string{closedAddress(t), liar(t, ca, func(w io.Writer) { _, _ = io.WriteString(w, "<html>") }), liar(t, ca, endless)}
	})
}

// newTierOf starts a tier of several relays. others returns the addresses of further peers, which precede the relays.
func newTierOf(t *testing.T, relays int, others func(*certs.CA) []string) *tier {
	t.Helper()
	s := &tier{files: t.TempDir(), operated: &operated{t: t, dir: t.TempDir(), signs: certs.NewCA(t)}}
	s.ca = certs.WriteFile(t, s.dir, "ca.pem", s.signs.PEM)
	cert, key := s.signs.Sign(certs.Leaf{URI: "spiffe://example.org/ns/tender/sa/tender", Names: []string{"127.0.0.1"}}).Write(t, s.dir)
	rules := certs.WriteFile(t, s.dir, "authz.yaml", []byte(tierRules))

	var listeners []net.Listener
	peers := others(s.signs)
	for range relays {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		s.addrs = append(s.addrs, l.Addr().String())
		peers = append(peers, l.Addr().String())
	}
	for i, l := range listeners {
		_ = l.Close() // the relay listens on the same port
		r := instance.Start(t, instance.Options{Options: relay.Options{Level: new(slog.LevelVar)}, Env: []string{
			"TENDER_ORIGIN=file://" + s.files, "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=0.0.0.0:" + port(l), "TENDER_NODE_ID=" + fmt.Sprint("relay-", i),
			"TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key, "TENDER_TLS_CLIENT_CA=" + s.ca, "TENDER_AUTHZ=" + rules,
			"TENDER_PEERS=" + strings.Join(peers, ","), "TENDER_PEERS_TLS_CA=" + s.ca, "TENDER_PEERS_TLS_CERT=" + cert, "TENDER_PEERS_TLS_KEY=" + key,
		}})
		s.logs, s.xds = append(s.logs, &r.Log), append(s.xds, r.Addrs()[0].String())
	}
	s.addr = s.addrs[0]
	return s
}

// port returns the TCP port of a listener as text.
func port(l net.Listener) string { return fmt.Sprint(l.Addr().(*net.TCPAddr).Port) }

// closedAddress returns an address without a listener.
func closedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	return l.Addr().String()
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

// TestFleetIsSeenFromOneRelay verifies that one relay returns the status of all relays of its tier, and an error for
// each unreachable peer.
func TestFleetIsSeenFromOneRelay(t *testing.T) {
	s := newTier(t)
	reader := s.certificate("spiffe://example.org/ns/eyes/sa/rita")
	code, stdout, stderr := execute(append([]string{"status", "--fleet", "-o", "json", "--admin", s.addr}, reader...)...)
	var found admin.FleetStatus
	if err := json.Unmarshal([]byte(stdout), &found); err != nil || code != exitOK || len(found.Relays) != 5 {
		t.Fatalf("tender status --fleet: error %v, code %d, %s%s, want 5 relays", err, code, stdout, stderr)
	}
	for i, want := range []string{"relay-0", "connection refused", "is not that of a relay", "has more than 4194304 bytes", "relay-1"} {
		r := found.Relays[i]
		if r.FleetSummary != nil && (r.NodeID != want || !r.Ready || r.Error != "") || r.FleetSummary == nil && !strings.Contains(r.Error, want) {
			t.Errorf("relay %d: %+v, want %s", i, r, want)
		}
	}
	_, stdout, _ = execute(append([]string{"status", "--fleet", "--admin", s.addr}, reader...)...)
	if strings.Count(stdout, "UNREACHABLE") != 3 || !strings.Contains(stdout, "relay-1") {
		t.Errorf("tender status --fleet prints %s, want 3 unreachable peers and relay-1", stdout)
	}
	if code, stdout, _ = execute(append([]string{"status", "--fleet", "-o", "yaml", "--admin", s.addr}, reader...)...); code != exitOK || !strings.Contains(stdout, "node_id: relay-1") {
		t.Errorf("tender status --fleet -o yaml: code %d, %s, want 0 and relay-1", code, stdout)
	}
}

// TestFleetCommandNamesTheOperator verifies that a command with --fleet runs on every reachable relay. Each relay
// records the operator, and the relay that forwarded the command.
func TestFleetCommandNamesTheOperator(t *testing.T) {
	records := collectEvents(t)
	s := newTier(t)
	const eve = "spiffe://example.org/ns/ops/sa/eve"
	code, stdout, _ := execute(append([]string{"freeze", "--fleet", "--reason", "bad routes", "--admin", s.addr}, s.certificate(eve)...)...)
	if code != exitFailure || strings.Count(stdout, "FROZEN") != 2 || strings.Count(stdout, "FAILED: ") != 3 || !strings.Contains(stdout, "(relay-1)") {
		t.Errorf("tender freeze --fleet: code %d, %s, want 2 frozen relays and 3 failures", code, stdout)
	}
	flags := s.certificate("spiffe://example.org/ns/eyes/sa/rita")
	_, stdout, _ = execute(append([]string{"history", "-o", "json", "--admin", s.addrs[1]}, flags...)...)
	var done admin.Actions
	if err := json.Unmarshal([]byte(stdout), &done); err != nil || len(done.Actions) != 1 {
		t.Fatalf("tender history of the peer: error %v, %s, want one action", err, stdout)
	}
	if a := done.Actions[0]; a.Command != "freeze" || a.Operator != eve || a.Via != "spiffe://example.org/ns/tender/sa/tender" || a.Reason != "bad routes" {
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
	if code, _, stderr := execute(append([]string{"thaw", "--fleet", "--admin", s.addr}, flags...)...); code != exitFailure || !strings.Contains(stderr, "may act") {
		t.Errorf("tender thaw --fleet by a reader: code %d, %s, want an authorization error", code, stderr)
	}
}

// clusters writes clusters to the file origin, and waits until clients of each relay receive them.
func (s *tier) clusters(names ...string) {
	s.t.Helper()
	text := "resources:\n"
	for _, name := range names {
		text += "- {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: " + name + "}\n"
	}
	certs.WriteFile(s.t, s.files, "clusters.yaml", []byte(text))
	s.serve(names...)
}

// serve waits until clients of each relay receive exactly these clusters.
func (s *tier) serve(names ...string) {
	s.t.Helper()
	flags := s.certificate("spiffe://example.org/ns/shop/sa/cart")
	for _, addr := range s.xds {
		await(s.t, fmt.Sprintf("the clusters %q", names), func(stdout string) bool { return slices.Equal(strings.Fields(stdout), names) },
			append([]string{"get", "-a", addr, "cds", "-o", "name", "--user-agent", "envoy"}, flags...)...)
	}
}

// leave makes all relays serve another generation, and reports whether each relay still keeps the given one. It waits
// before the change, because a relay completes a generation only after a second without changes.
func (s *tier) leave(generation string) bool {
	s.t.Helper()
	flags := s.certificate("spiffe://example.org/ns/ops/sa/eve")
	list := func(addr string) []string {
		return append([]string{"generations", "-o", "json", "--admin", addr}, flags...)
	}
	for _, addr := range s.addrs {
		await(s.t, "a generation that is at least two seconds old", func(stdout string) bool {
			var known admin.Generations
			return json.Unmarshal([]byte(stdout), &known) == nil && time.Since(known.Views[0].Generations[0].Since) > 2*time.Second
		}, list(addr)...)
	}
	s.clusters("bad")
	return !slices.ContainsFunc(s.addrs, func(addr string) bool {
		_, stdout, _ := execute(list(addr)...)
		return !strings.Contains(stdout, generation)
	})
}

// generations returns the generation that each relay serves, in the order of addrs.
func (s *tier) generations() (all []string) {
	s.t.Helper()
	flags := s.certificate("spiffe://example.org/ns/ops/sa/eve")
	for _, addr := range s.addrs {
		_, stdout, stderr := execute(append([]string{"generations", "-o", "json", "--admin", addr}, flags...)...)
		var known admin.Generations
		if err := json.Unmarshal([]byte(stdout), &known); err != nil || len(known.Views) != 1 {
			s.t.Fatalf("tender generations: error %v, %s%s, want one view", err, stdout, stderr)
		}
		all = append(all, known.Views[0].Generations[0].Generation)
	}
	return all
}

// TestFleetCommands verifies that each command with --fleet runs on three relays on behalf of the operator. Each
// command rejects an operator who may only read.
func TestFleetCommands(t *testing.T) {
	s := newTierOf(t, 3, func(*certs.CA) []string { return nil })
	const eve = "spiffe://example.org/ns/ops/sa/eve"
	act, read := s.certificate(eve), s.certificate("spiffe://example.org/ns/eyes/sa/rita")
	s.clusters("a", "b")
	good := s.generations()
	if good[0] == "" || good[1] != good[0] || good[2] != good[0] {
		t.Fatalf("generations %q, want three equal ones", good)
	}
	for !s.leave(good[0]) {
		s.clusters("a", "b")
	}
	commands := 0
	for _, tt := range []struct {
		args []string
		want string // printed for each relay
		then func()
	}{
		{[]string{"freeze"}, "FROZEN", func() {}},
		{[]string{"thaw"}, "changes are distributed", func() {}},
		{[]string{"release", "--all"}, "nothing is released", func() {}},
		{[]string{"discard", "--all"}, "nothing is discarded", func() {}},
		{[]string{"audit", "--type", "cds"}, "(relay-", func() {}},
		{[]string{"log-level", "warn"}, "warn", func() {}},
		{[]string{"rollback", good[0], "--dry-run"}, "dry run", func() { s.serve("bad") }},
		{[]string{"rollback", good[0]}, "ROLLED BACK", func() { s.serve("a", "b") }},
		{[]string{"thaw"}, "changes are distributed", func() { s.serve("bad") }},
	} {
		args := append(tt.args, "--fleet", "--reason", "test", "--admin", s.addr)
		if code, stdout, stderr := execute(append(args, read...)...); code != exitFailure || !strings.Contains(stdout+stderr, "may act") {
			t.Errorf("tender %s by a reader: code %d, %s%s, want an authorization error", strings.Join(tt.args, " "), code, stdout, stderr)
		}
		code, stdout, stderr := execute(append(args, act...)...)
		if code != exitOK || strings.Count(stdout, tt.want) < 3 || strings.Contains(stdout, "FAILED") {
			t.Errorf("tender %s: code %d, %s%s, want %q for three relays", strings.Join(tt.args, " "), code, stdout, stderr, tt.want)
		}
		tt.then()
		commands++
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
		}
		if named < commands {
			t.Errorf("%s recorded %d commands of the operator, want %d: %+v", addr, named, commands, done.Actions)
		}
	}
	if code, stdout, _ := execute(append([]string{"status", "--fleet", "--admin", s.addr}, read...)...); code != exitOK || strings.Count(stdout, "yes") < 3 {
		t.Errorf("tender status --fleet: code %d, %s, want three ready relays", code, stdout)
	}
}

// TestOnlyPeersForward verifies that a relay accepts admin.OperatorHeader only from peers. Peers can read the summary
// of a relay, and without the header nothing else.
func TestOnlyPeersForward(t *testing.T) {
	s := newTier(t)
	for _, tt := range []struct {
		who, method, path, operator string // who: path of the SPIFFE ID below ns
		code                        int
		want                        string
	}{
		{"ops/sa/eve", "POST", "freeze", "spiffe://example.org/ns/ops/sa/boss", 403, "is not one of the peers"},
		{"eyes/sa/rita", "POST", "freeze", "spiffe://example.org/ns/ops/sa/eve", 403, "is not one of the peers"},
		{"shop/sa/cart", "POST", "freeze", "spiffe://example.org/ns/ops/sa/eve", 403, "is not one of the peers"},
		{"tender/sa/x", "POST", "freeze", "", 403, "may act"},
		{"tender/sa/x", "POST", "fleet/freeze", "spiffe://example.org/ns/ops/sa/eve", 403, "peers may not forward requests"},
		{"tender/sa/x", "POST", "rollout/abort", "spiffe://example.org/ns/ops/sa/eve", 403, "peers may not forward requests"},
		{"tender/sa/x", "GET", "status", "", 403, "is not one of the operators"},
		{"tender/sa/x", "GET", "status", "spiffe://example.org/ns/ops/sa/eve", 403, "peers may not forward requests"},
		{"tender/sa/x", "GET", "fleet/self", "", 200, "relay-0"},
		{"shop/sa/cart", "GET", "fleet/self", "", 403, "is not one of the operators"},
		{"tender/sa/x", "POST", "thaw", "alice at 127.0.0.1", 200, "origins"},
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
