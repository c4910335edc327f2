package tender_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
)

// TestB54_HaltsReachTheTier: an operator halts, resumes and promotes changes at one relay, and the other relay of the tier
// does as well. Both name the peer that does not answer.
func TestB54_HaltsReachTheTier(t *testing.T) {
	t.Parallel()
	s := newTier(t, 2, "TENDER_ROLLOUT=id=canary* 10m", "TENDER_DELTA_VERSIONS=content")
	s.clusters("a")
	s.write("a", "b")
	s.await("in the first stage", func(_ int, r *rollout.Status) bool { return r.Phase == rollout.Rolling })
	s.await("with a peer that does not answer", func(_ int, r *rollout.Status) bool {
		return len(r.Peers) == 1 && r.Peers[0].Address == s.closed
	})

	began := time.Now()
	s.command("rollout", "abort", "--reason", "bad")
	s.await("halted", func(i int, r *rollout.Status) bool {
		return r.Halted != nil && (r.Halted.Peer == s.addrs[0]) == (i == 1)
	})
	t.Log("halted at both after", time.Since(began))
	s.serve("a")

	s.command("rollout", "resume")
	s.await("resumed", func(_ int, r *rollout.Status) bool { return r.Phase == rollout.Rolling })
	s.command("rollout", "promote", "--all")
	s.serve("a", "b")
}

// command runs a command at the first relay.
func (s *tier) command(args ...string) {
	s.t.Helper()
	args = append(append(args, "--admin", s.addrs[0]), s.flags[operator]...)
	if code, stdout, stderr := run(s.t, args...); code != 0 {
		s.t.Fatalf("tender %q: code %d, %s%s", args, code, stdout, stderr)
	}
}

// await waits until the rollouts of both relays meet a condition.
func (s *tier) await(what string, met func(relay int, r *rollout.Status) bool) {
	s.t.Helper()
	for i, r := range s.relays {
		r.Await("rollout "+what, func() error {
			var all admin.Rollouts
			s.read(i, &all, "rollout", "status")
			if len(all.Rollouts) != 1 || !met(i, all.Rollouts[0]) {
				return fmt.Errorf("rollouts of relay %d: %+v", i, all.Rollouts[0])
			}
			return nil
		})
	}
}
