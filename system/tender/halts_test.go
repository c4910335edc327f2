package tender_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
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

// TestB54_ARejectionHaltsTheTier: the canary of one relay rejects a change, and the other relay withdraws it from its own canary, which
// has accepted it. The rest of the clients have it at neither.
func TestB54_ARejectionHaltsTheTier(t *testing.T) {
	t.Parallel()
	s := newTier(t, 2, "TENDER_ROLLOUT=id=canary* 10m", "TENDER_DELTA_VERSIONS=content")
	s.clusters("a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := make(chan struct{}, 1)
	var canaries []*relaytest.Client
	for i, r := range s.relays {
		conn, err := grpc.NewClient(r.Addr, grpc.WithTransportCredentials(credentials.NewTLS(s.clientTLS())))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		options := relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode(fmt.Sprint("canary-", i))}
		options.Reject = func(r *relaytest.Response) error {
			if !slices.ContainsFunc(r.Resources, func(x relaytest.Resource) bool { return x.Name == "bad" }) {
				return nil
			}
			if i == 0 {
				<-seen // not before the other canary has it
				return errors.New("unknown http filter")
			}
			close(seen)
			return nil
		}
		c := relaytest.NewClient(t, conn, options)
		c.Subscribe(relaytest.ClusterType)
		c.WaitState(ctx, func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "a") })
		canaries = append(canaries, c)
	}
	s.write("a", "bad")
	s.await("halted", func(i int, r *rollout.Status) bool {
		return r.Halted != nil && strings.Contains(r.Halted.Reason, "unknown http filter") && (r.Halted.Peer == s.addrs[0]) == (i == 1)
	})
	for _, c := range canaries {
		c.WaitState(ctx, func(s relaytest.State) bool { return !s.Has(relaytest.ClusterType, "bad") })
	}
	s.serve("a")
}

// clientTLS returns the TLS configuration of a client of the relays.
func (s *tier) clientTLS() *tls.Config {
	s.t.Helper()
	files := s.flags[client] // --tls-ca, --cert and --key
	pair, err := tls.LoadX509KeyPair(files[3], files[5])
	if err != nil {
		s.t.Fatal(err)
	}
	ca, err := os.ReadFile(files[1])
	if err != nil {
		s.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}
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
