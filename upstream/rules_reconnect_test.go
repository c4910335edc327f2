package upstream_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream"
)

var unavailable = status.New(codes.Unavailable, "go away")

// closeStreams accepts n streams, ends each at once, and returns the delay before each.
func (r *rig) closeStreams(n int) []time.Duration {
	r.t.Helper()
	var waits []time.Duration
	for range n {
		since := time.Now()
		s := r.Accept(r.t.Context())
		waits = append(waits, time.Since(since))
		s.Close(unavailable)
	}
	return waits
}

// expectBackoff fails the test unless the waits are 1, 1.6, 2.56 … s, each ±20 %.
func (r *rig) expectBackoff(waits []time.Duration) {
	r.t.Helper()
	want := time.Second
	for i, got := range waits {
		if got < want*8/10 || got > want*12/10+10*time.Millisecond {
			r.t.Errorf("attempt %d after %v, want %v ±20%% (all: %v)", i+1, got, want, waits)
		}
		want = want * 16 / 10
	}
}

// TestR135_Backoff: an origin that ends streams without a response is retried after 1, 1.6, 2.56 … s (±20 %). A stream
// that received a response is reopened within 500ms, and the backoff starts over.
func TestR135_Backoff(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		r.closeStreams(1)
		first := r.closeStreams(6)
		r.expectBackoff(first)

		s := r.Accept(t.Context())
		s.Send(response(clusters, "a@1"))
		r.pass(soon)
		s.Close(unavailable)
		if waits := r.closeStreams(1); waits[0] > 510*time.Millisecond {
			t.Errorf("delay after a served stream: %v, want at most 500ms", waits[0])
		}
		second := r.closeStreams(5)
		r.expectBackoff(second)
		if first[0] == second[0] && first[1] == second[1] {
			t.Errorf("delays without jitter: %v, %v", first, second)
		}
		// The view has not changed.
		r.expect("members", r.members(clusters), "a@1")
	})
}

// TestR135_HeldStreamReconnectsAtOnce: an origin that holds a stream open before it ends it, such as a relay that waits
// for its own origin, is retried at once. One that holds it for less than 5s is not.
func TestR135_HeldStreamReconnectsAtOnce(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		r.closeStreams(5)
		ended := time.Now().Add(-time.Hour)
		for round := range 20 {
			s := r.Accept(t.Context())
			if wait := time.Since(ended); round > 0 && wait > 510*time.Millisecond {
				t.Errorf("round %d: delay after a stream that was held open: %v, want at most 500ms", round, wait)
			}
			r.pass(10 * time.Second)
			s.Close(unavailable)
			ended = time.Now()
		}
		r.closeStreams(1)
		r.expectBackoff(r.closeStreams(3))
		s := r.Accept(t.Context())
		r.pass(4 * time.Second)
		s.Close(unavailable)
		if wait := r.closeStreams(1)[0]; wait < 3*time.Second {
			t.Errorf("delay after a stream that was held open for 4s: %v, want the backoff", wait)
		}
	})
}

// TestR135_BackoffIsBounded: the backoff never exceeds 30s (±20 %).
func TestR135_BackoffIsBounded(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.Stop()
		r.watch.SubscribeAll(clusters)
		r.pass(5 * time.Minute)
		before := r.log.count("upstream stream closed")
		r.pass(15 * time.Minute)
		if n := r.log.count("upstream stream closed") - before; n < 24 || n > 38 {
			t.Errorf("%d attempts in 15 minutes, want 30 ±20%%", n)
		}
		r.put(clusters, "a@1")
		r.Restart()
		r.membersAfter(time.Minute+15*time.Second, "members", clusters, "a@1")
	})
}

// TestR135_AuxiliaryStreamBacksOffAlone: the auxiliary stream has its own backoff and does not affect the main one.
func TestR135_AuxiliaryStreamBacksOffAlone(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1")
		r.watch.SubscribeAll(clusters)
		r.Accept(t.Context())
		r.pass(time.Second)
		r.Change(func(b *relaytest.Behaviour) { b.Manual = true })
		n := r.watch.Subscribe(clusters, []string{"a"})[0]
		r.closeStreams(1)
		r.pass(0)
		if !n.Asked().IsZero() {
			t.Error("the name counts as requested although its stream has ended")
		}
		r.expectBackoff(r.closeStreams(5))
		r.put(clusters, "a@2")
		r.membersAfter(soon, "members", clusters, "a@2")
		if !r.view.Generation().First().Connected || r.State().Streams[0].Ended {
			t.Error("the main stream has ended")
		}
	})
}

// afterFailover runs a test with a rig of two origins. The first has responded for the endpoints a and b and has
// stopped.
func afterFailover(t *testing.T, test func(t *testing.T, one, two *relaytest.Origin, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		one := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: "one"})
		two := relaytest.NewOrigin(t, relaytest.OriginOptions{
			Memory: true, Address: "two", Behaviour: relaytest.Behaviour{Manual: true},
		})
		r := viewSync(t, one, upstream.Config{
			Targets: []string{one.Target(), two.Target()}, DialOptions: relaytest.DialOptions(one, two),
		})
		r.put(endpoints, "a@1", "b@1")
		r.watch.Subscribe(endpoints, []string{"a", "b"})
		r.pass(soon)
		one.Stop()
		test(t, one, two, r)
	})
}

// TestB15_C19_FailoverReportsNoVersions: the relay does not report the versions of one target to another. Later it
// reports only those that the target itself has sent.
func TestB15_C19_FailoverReportsNoVersions(t *testing.T) {
	afterFailover(t, func(t *testing.T, _, two *relaytest.Origin, r *rig) {
		s := two.Accept(t.Context())
		r.expect("first request to the second target", received(s.Recv(t.Context())), "[eds node +a +b]")
		s.Send(response(endpoints, "a@5"))
		r.expect("ACK to the second target", received(s.Recv(t.Context())), "[eds ACK 1]")
		r.expect("named", r.named(endpoints), "a@5 b@1")
		s.Close(unavailable)
		s = two.Accept(t.Context())
		r.expect("second stream to the second target", received(s.Recv(t.Context())), "[eds node +a +b a=5]")
		r.expect("named", r.named(endpoints), "a@5 b@1")
	})
}

// TestB15_FailoverAndBack: after a return from a target that sent no response, the relay reports the cached versions,
// since all are from the first target.
func TestB15_FailoverAndBack(t *testing.T) {
	afterFailover(t, func(t *testing.T, one, two *relaytest.Origin, r *rig) {
		two.Accept(t.Context()).Recv(t.Context())
		one.Restart()
		two.Stop()
		r.pass(time.Minute)
		r.expect("second stream to the first target", r.conversation(1), "[eds node +a +b a=1 b=1]")
	})
}

// TestB5_NoDemandIsLost: no order of disconnects, demand and responses loses demand. After each of many rounds the view
// equals the origin.
func TestB5_NoDemandIsLost(t *testing.T) {
	cfg := upstream.Config{Linger: 3 * time.Second}
	inBubble(t, relaytest.Behaviour{Manual: false}, cfg, func(t *testing.T, r *rig) {
		for round := range 60 {
			w := r.view.Watch()
			r.put(clusters, fmt.Sprint("a@", round), fmt.Sprint("b@", round))
			switch round % 5 {
			case 0:
				r.Stop()
			case 1:
				r.GoAway()
			}
			n := w.Subscribe(clusters, []string{"a"})
			r.pass(time.Duration(round%3) * 2 * time.Millisecond)
			all := w.SubscribeAll(clusters)
			r.pass(time.Duration(round%4) * 2 * time.Millisecond)
			if round%2 == 0 {
				w.Unsubscribe(clusters, n)
				n = w.Subscribe(clusters, []string{"b"})
			}
			if round%5 == 0 {
				r.Restart()
			}
			r.pass(time.Minute)
			if got, want := present(r.members(clusters)), fmt.Sprintf("a@%[1]d b@%[1]d", round); got != want {
				t.Fatalf("round %d: members %s, want %s\n%v", round, got, want, r.State())
			}
			if got, want := r.named(clusters), fmt.Sprintf("%c@%d", "ba"[round%2], round); got != want {
				t.Fatalf("round %d: named %s, want %s\n%v", round, got, want, r.State())
			}
			w.Unsubscribe(clusters, n)
			w.UnsubscribeAll(all)
			w.Close()
			if round%3 == 0 {
				r.pass(time.Minute)
				if got := r.State().Names(clusters); len(got) != 0 {
					t.Fatalf("round %d: subscribed names %v, want none without clients", round, got)
				}
			}
		}
	})
}
