package conformance_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/rollout"
)

// A memoryTier is a set of relays in memory that are peers of each other. They speak TLS, which ends before their admin addresses.
type memoryTier struct {
	t      testing.TB
	relays map[string]*running // by address
	server *tls.Config

	mu     sync.Mutex // of relays, and what is copied; peers dial at any time
	copies sync.WaitGroup
}

// newMemoryTier starts n relays of an origin with stages.
func newMemoryTier(t testing.TB, o *relaytest.Origin, n int) (tier *memoryTier, all []*running) {
	t.Helper()
	dir, ca := t.TempDir(), certs.NewCA(t)
	trusted := certs.WriteFile(t, dir, "ca.pem", ca.PEM)
	cert, key := ca.Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, dir)
	pair, err := tls.LoadX509KeyPair(cert, key)
	check.OK(t, err)
	tier = &memoryTier{t: t, relays: make(map[string]*running)}
	tier.server = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	peers := ""
	for i := range n {
		peers += fmt.Sprintf(",127.0.0.1:%d", i+1)
	}
	for i := range n {
		opts := instance.Of(o)
		opts.Options.DialPeer = tier.dial
		r := startRelay(t, opts, rolloutStages, "TENDER_DELTA_VERSIONS=content", operated, fmt.Sprint("TENDER_NODE_ID=tender/", i),
			"TENDER_SNAPSHOT_DIR="+filepath.Join(t.TempDir(), "snapshots"), "TENDER_PEERS="+peers[1:],
			"TENDER_PEERS_TLS_CA="+trusted, "TENDER_PEERS_TLS_CERT="+cert, "TENDER_PEERS_TLS_KEY="+key)
		tier.mu.Lock()
		tier.relays[fmt.Sprintf("127.0.0.1:%d", i+1)] = r
		tier.mu.Unlock()
		all = append(all, r)
	}
	t.Cleanup(func() {
		for _, r := range all {
			r.Stop()
		}
		tier.copies.Wait()
	})
	return tier, all
}

// dial connects to the admin address of a relay.
func (m *memoryTier) dial(ctx context.Context, address string) (net.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.relays[address]
	if r == nil {
		return nil, errors.New("no relay listens here")
	}
	to, err := r.DialAdmin(ctx)
	if err != nil {
		return nil, err
	}
	peer, from := net.Pipe()
	served := tls.Server(from, m.server)
	for _, way := range [][2]net.Conn{{served, to}, {to, served}} {
		m.copies.Go(func() { // ends when either end is closed
			_, _ = io.Copy(way[0], way[1])
			_, _ = way[0].Close(), way[1].Close()
		})
	}
	return peer, nil
}

// expectRollouts waits until the rollouts of relays meet a condition. The test fails if that takes longer than tierKnows.
func expectRollouts(t testing.TB, what string, all []*running, met func(relay int, s *rollout.Status) bool) {
	t.Helper()
	began := time.Now()
	for i, r := range all {
		for {
			s := getJSON[admin.Rollouts](t, r, "/api/v1/rollouts").Rollouts[0]
			if met(i, s) {
				break
			}
			if time.Since(began) > tierKnows {
				t.Fatalf("%s: relay %d after %v: phase %v, %+v", what, i, time.Since(began), s.Phase, s.Halted)
			}
			sleep(10 * time.Millisecond)
		}
	}
	t.Log(what, "after", time.Since(began))
}

// tierKnows is the time within which all relays of a tier know what one of them has decided.
const tierKnows = 5 * time.Second

// TestB54_ATierHaltsWithinSeconds: what one relay halts, resumes and promotes, all relays of the tier do within 5 s, also one whose
// peer did not answer until a moment before.
func TestB54_ATierHaltsWithinSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"))
		tier, relays := newMemoryTier(t, o, 3)
		for _, r := range relays {
			c := r.Client(relaytest.ClientOptions{Node: relaytest.EnvoyNode("canary"), AutoAck: true})
			c.Subscribe(relaytest.ClusterType)
		}
		sleep(time.Minute)
		o.Put(relaytest.Cluster("b"))
		expectRollouts(t, "in the first stage", relays, func(_ int, s *rollout.Status) bool { return s.Phase == rollout.Rolling })

		post(t, relays[0], "rollout/abort", admin.RolloutScope{Why: admin.Why{Reason: "bad"}})
		expectRollouts(t, "halted", relays, func(i int, s *rollout.Status) bool {
			return s.Phase == rollout.Halted && (s.Halted.Peer == "127.0.0.1:1") == (i > 0)
		})
		post(t, relays[0], "rollout/resume", admin.RolloutScope{})
		expectRollouts(t, "resumed", relays, func(_ int, s *rollout.Status) bool { return s.Phase == rollout.Rolling })

		tier.mu.Lock()
		delete(tier.relays, "127.0.0.1:1")
		tier.mu.Unlock()
		sleep(admin.RolloutsWait + time.Second) // the open requests are answered
		expectRollouts(t, "alone", relays[1:], func(_ int, s *rollout.Status) bool { return len(s.Peers) == 1 })
		post(t, relays[0], "rollout/abort", admin.RolloutScope{Why: admin.Why{Reason: "bad"}})
		sleep(time.Minute)
		expectRollouts(t, "alone", relays[1:], func(_ int, s *rollout.Status) bool { return s.Phase == rollout.Rolling })
		tier.mu.Lock()
		tier.relays["127.0.0.1:1"] = relays[0]
		tier.mu.Unlock()
		expectRollouts(t, "halted once it answers", relays, func(_ int, s *rollout.Status) bool { return s.Phase == rollout.Halted })
		post(t, relays[0], "rollout/promote", admin.RolloutScope{All: true})
		expectRollouts(t, "promoted", relays, func(_ int, s *rollout.Status) bool { return s.Phase == rollout.Current })
	})
}

// TestB54_ARejectionHaltsTheTier: the canary of one relay rejects a change. The other relay withdraws it from its own canary, which has
// accepted it, and the rest of the clients never have it.
func TestB54_ARejectionHaltsTheTier(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"))
		_, relays := newMemoryTier(t, o, 2)
		var canaries, others []*relaytest.Client
		for i, r := range relays {
			options := relaytest.ClientOptions{Node: relaytest.EnvoyNode("canary"), AutoAck: true}
			if i == 0 {
				options.Reject = rejecting("bad", "unknown http filter")
			}
			canaries = append(canaries, r.Client(options))
			others = append(others, r.Client(relaytest.ClientOptions{Node: relaytest.EnvoyNode("other"), AutoAck: true}))
			canaries[i].Subscribe(relaytest.ClusterType)
			others[i].Subscribe(relaytest.ClusterType)
		}
		sleep(time.Minute)
		o.Put(relaytest.Cluster("bad"))
		sleep(2 * time.Second) // in which changes are gathered
		expectRollouts(t, "halted", relays, func(i int, s *rollout.Status) bool {
			return s.Phase == rollout.Halted && strings.Contains(s.Halted.Reason, "unknown http filter") && (s.Halted.Peer == "127.0.0.1:1") == (i > 0)
		})
		sleep(21 * time.Minute) // longer than the stages
		for i := range relays {
			for what, c := range map[string]*relaytest.Client{"canary": canaries[i], "other": others[i]} {
				if c.State().Has(relaytest.ClusterType, "bad") {
					t.Errorf("relay %d: client %s has what the canary of the first relay has rejected", i, what)
				}
			}
		}
	})
}
