package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// SPIFFE IDs in certificates, as in tierRules.
const (
	eve  = "spiffe://example.org/ns/ops/sa/eve"       // may act
	rita = "spiffe://example.org/ns/eyes/sa/rita"     // may read
	peer = "spiffe://example.org/ns/tender/sa/tender" // the identity of relays
)

// newestAction returns the newest audit record of the relay at an address.
func (s *tier) newestAction(addr string) admin.Action {
	s.t.Helper()
	args := append([]string{"history", "-o", "json", "--admin", addr}, s.certificate(rita)...)
	code, stdout, stderr := execute(args...)
	var done admin.Actions
	if err := json.Unmarshal([]byte(stdout), &done); err != nil || code != exitOK || len(done.Actions) == 0 {
		s.t.Fatalf("tender history of %s: error %v, code %d, %s%s, want an action", addr, err, code, stdout, stderr)
	}
	return done.Actions[0]
}

// TestFleetRollback verifies that a rollback with --fleet, and then a thaw, change the configuration of the clients of
// three relays. A fourth relay is unreachable: it is printed with the error, and the exit code is 1. Each reached relay
// has an audit record with the operator.
func TestFleetRollback(t *testing.T) {
	var closed string
	s := newTierOf(t, 3, func(*certs.CA) []string {
		closed = closedAddress(t)
		return []string{closed}
	})
	s.clusters("a", "b")
	good := s.generations()[0]
	for !s.leave(good) {
		s.clusters("a", "b")
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
		args := append(tt.args, "--fleet", "--reason", "bad routes", "--admin", s.addr)
		code, stdout, stderr := execute(append(args, s.certificate(eve)...)...)
		if code != exitFailure || !strings.Contains(stderr, errFleet.Error()) {
			t.Errorf("tender %s --fleet: code %d, %s, want %d because of the unreachable relay", command, code, stderr, exitFailure)
		}
		if strings.Count(stdout, tt.prints) != 3 || strings.Count(stdout, "FAILED: ") != 1 {
			t.Errorf("tender %s --fleet prints %s, want %q for 3 relays, and one failure", command, stdout, tt.prints)
		}
		if !strings.Contains(stdout, "relay "+closed+" (unknown)\nFAILED: unreachable: ") {
			t.Errorf("tender %s --fleet prints %s, want that %s is unreachable", command, stdout, closed)
		}
		s.serve(tt.serves...)
		for i, addr := range s.addrs {
			// The relay that receives the command from the operator records it as a command for the tier.
			name, via := command, peer
			if i == 0 {
				name, via = "fleet/"+command, ""
			}
			a := s.newestAction(addr)
			if a.Command != name || a.Operator != eve || a.Via != via || a.Reason != "bad routes" || a.Code != 200 {
				t.Errorf("relay %d recorded %+v, want %s by %s via %q", i, a, name, eve, via)
			}
			if command == "rollback" && !strings.Contains(string(a.Arguments), good) {
				t.Errorf("relay %d recorded the arguments %s, want the generation %s", i, a.Arguments, good)
			}
		}
	}
}
