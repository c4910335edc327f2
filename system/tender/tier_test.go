package tender_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// tierRules is a file for TENDER_AUTHZ: operators may act, and relays may forward their commands.
const tierRules = `
version: 1
rules:
- name: fleet
  identities: ["spiffe://example.org/ns/shop/**"]
operators:
  read: ["` + operator + `"]
  act: ["` + operator + `"]
peers: ["` + peer + `"]
`

// SPIFFE IDs in certificates, as in tierRules.
const (
	operator = "spiffe://example.org/ns/ops/sa/eve"
	peer     = "spiffe://example.org/ns/tender/sa/tender" // the identity of relays
	client   = "spiffe://example.org/ns/shop/sa/cart"
)

// A tier is a set of relays that share a file origin and list each other as peers.
type tier struct {
	t      *testing.T
	relays []*envoytest.RelayProcess
	addrs  []string // admin addresses, in the order of relays
	files  string   // directory of the file origin
	closed string   // the address of a peer that is not reachable
	flags  map[string][]string
}

// newTier starts a tier of several relays with further variables.
func newTier(t *testing.T, relays int, env ...string) *tier {
	t.Helper()
	s := &tier{t: t, files: t.TempDir(), closed: proxy.Refused(t), flags: make(map[string][]string)}
	dir, ca := t.TempDir(), certs.NewCA(t)
	trusted := certs.WriteFile(t, dir, "ca.pem", ca.PEM)
	cert, key := ca.Sign(certs.Leaf{URI: peer, Names: []string{"127.0.0.1"}}).Write(t, dir)
	rules := certs.WriteFile(t, dir, "authz.yaml", []byte(tierRules))
	for _, id := range []string{operator, client} {
		cert, key := ca.Sign(certs.Leaf{URI: id}).Write(t, t.TempDir())
		s.flags[id] = []string{"--tls-ca", trusted, "--cert", cert, "--key", key}
	}

	// Relays know the addresses of their peers before those listen, so a proxy has each address.
	var proxies []*proxy.Proxy
	for range relays {
		p := proxy.New(t, "")
		proxies, s.addrs = append(proxies, p), append(s.addrs, p.Addr())
	}
	for i, p := range proxies {
		r := envoytest.StartRelayOf(t, binary, "file://"+s.files, append([]string{
			"TENDER_ADMIN_LISTEN=0.0.0.0:0", "TENDER_NODE_ID=" + fmt.Sprint("relay-", i),
			"TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key, "TENDER_TLS_CLIENT_CA=" + trusted, "TENDER_AUTHZ=" + rules,
			"TENDER_PEERS=" + strings.Join(append([]string{s.closed}, s.addrs...), ","),
			"TENDER_PEERS_TLS_CA=" + trusted, "TENDER_PEERS_TLS_CERT=" + cert, "TENDER_PEERS_TLS_KEY=" + key,
			"TENDER_SNAPSHOT_DIR=" + t.TempDir(),
		}, env...)...)
		_, port, err := net.SplitHostPort(r.Admin)
		if err != nil {
			t.Fatal(err)
		}
		p.Forward("127.0.0.1:" + port)
		s.relays = append(s.relays, r)
	}
	return s
}

// clusters writes clusters to the file origin, and waits until clients of each relay receive them.
func (s *tier) clusters(names ...string) {
	s.t.Helper()
	s.write(names...)
	s.serve(names...)
}

// write writes clusters to the file origin.
func (s *tier) write(names ...string) {
	s.t.Helper()
	text := "resources:\n"
	for _, name := range names {
		text += fmt.Sprintf("- {'@type': %s, name: %s}\n", relaytest.ClusterType, name)
	}
	next := filepath.Join(s.t.TempDir(), "next.yaml")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(s.files, "clusters.yaml")); err != nil {
		s.t.Fatal(err)
	}
}

// serve waits until clients of each relay receive exactly these clusters.
func (s *tier) serve(names ...string) {
	s.t.Helper()
	for _, r := range s.relays {
		await(s.t, r, fmt.Sprintf("the clusters %q", names), func(stdout string) bool { return slices.Equal(strings.Fields(stdout), names) },
			append([]string{"get", "-a", r.Addr, "cds", "-o", "name", "--user-agent", "envoy"}, s.flags[client]...)...)
	}
}

// read runs a command at the relay of an index, and decodes its JSON.
func (s *tier) read(relay int, into any, args ...string) {
	s.t.Helper()
	args = append(args, "-o", "json", "--admin", s.addrs[relay])
	code, stdout, stderr := run(s.t, append(args, s.flags[operator]...)...)
	if err := json.Unmarshal([]byte(stdout), into); err != nil || code != 0 {
		s.t.Fatalf("tender %q: error %v, code %d, %s%s", args, err, code, stdout, stderr)
	}
}

// generations returns the kept generations of the clusters at a relay, newest first.
func (s *tier) generations(relay int) []admin.Generation {
	s.t.Helper()
	var known admin.Generations
	s.read(relay, &known, "generations")
	if len(known.Views) != 1 {
		s.t.Fatalf("%d views at relay %d, want 1", len(known.Views), relay)
	}
	return known.Views[0].Generations
}

// keep waits until each relay has completed the current generation, which takes a second without changes, and returns
// the generation.
func (s *tier) keep() (generation string) {
	s.t.Helper()
	for i, r := range s.relays {
		r.Await("complete generation", func() error {
			newest := s.generations(i)[0]
			if age := time.Since(newest.Since); age < 3*time.Second {
				return fmt.Errorf("generation %s is served for %v", newest.Generation, age)
			}
			generation = newest.Generation
			return nil
		})
	}
	return generation
}

// TestTierRollback verifies that a rollback with --tier, and then a thaw, change the configuration of the clients of
// three relays. A fourth relay is unreachable: it is printed with the error, and the exit code is 1. Each reached relay
// has an audit record with the operator.
func TestTierRollback(t *testing.T) {
	t.Parallel()
	s := newTier(t, 3)
	s.clusters("a", "b")
	good := s.keep()
	s.clusters("bad")
	for i := range s.relays {
		if !slices.ContainsFunc(s.generations(i), func(g admin.Generation) bool { return g.Generation == good }) {
			t.Fatalf("relay %d does not keep the generation %s", i, good)
		}
	}
	for _, tt := range []struct {
		args   []string
		prints string   // for each reachable relay
		serves []string // clusters after the command
	}{
		{[]string{"rollback", good, "--dry-run"}, "2 added, 0 changed, 1 removed\n\nORIGIN", []string{"bad"}},
		{[]string{"rollback", good}, "ROLLED BACK", []string{"a", "b"}},
		{[]string{"thaw", "--dry-run"}, "1 added, 0 changed, 2 removed\n\nORIGIN", []string{"a", "b"}},
		{[]string{"thaw"}, "changes are distributed", []string{"bad"}},
	} {
		command := tt.args[0]
		args := append(tt.args, "--tier", "--reason", "bad routes", "--admin", s.addrs[0])
		code, stdout, stderr := run(t, append(args, s.flags[operator]...)...)
		if code != 1 || !strings.Contains(stderr, "at least one relay did not carry out the command") {
			t.Errorf("tender %s --tier: code %d, %s, want 1 because of the unreachable relay", command, code, stderr)
		}
		if strings.Count(stdout, tt.prints) != 3 || strings.Count(stdout, "FAILED: ") != 1 {
			t.Errorf("tender %s --tier prints %s, want %q for 3 relays, and one failure", command, stdout, tt.prints)
		}
		if !strings.Contains(stdout, "relay "+s.closed+" (unknown)\nFAILED: unreachable: ") {
			t.Errorf("tender %s --tier prints %s, want that %s is unreachable", command, stdout, s.closed)
		}
		s.serve(tt.serves...)
		for i := range s.relays {
			// The relay that receives the command from the operator records it as a command for the tier.
			name, via := command, peer
			if i == 0 {
				name, via = "tier/"+command, ""
			}
			var done admin.Actions
			if s.read(i, &done, "history"); len(done.Actions) == 0 {
				t.Fatalf("relay %d has no audit record", i)
			}
			a := done.Actions[0]
			if a.Command != name || a.Operator != operator || a.Via != via || a.Reason != "bad routes" || a.Code != 200 {
				t.Errorf("relay %d recorded %+v, want %s by %s via %q", i, a, name, operator, via)
			}
			if command == "rollback" && !strings.Contains(string(a.Arguments), good) {
				t.Errorf("relay %d recorded the arguments %s, want the generation %s", i, a.Arguments, good)
			}
		}
	}
}
