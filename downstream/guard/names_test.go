package guard

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// newNameGuard returns a guard that counts nothing yet.
func newNameGuard() *Guard {
	return New(Config{Limits: WithDefaults(Limits{}), Logger: slog.New(slog.DiscardHandler)})
}

// fixed returns a function that always counts the same.
func fixed(n NameCount) func() NameCount { return func() NameCount { return n } }

// B.35: the names of a peer are charged as a sum over its requests: many small requests wait as long as few large ones,
// from one stream or from many at once. Other peers do not wait.
func TestB35_NamesOfAPeerAreChargedAsASum(t *testing.T) {
	const all, known = 20 * unknownRate, 100 * minNameRate
	for _, tt := range []struct {
		name     string
		request  NameCount
		requests int
		want     time.Duration // of the requests; their last one may exceed the budget
	}{
		{"50 names", NameCount{Listed: 50, Unknown: 50}, all / 50, 19 * time.Second},
		{"450 names", NameCount{Listed: 450, Unknown: 450}, all/450 + 1, 19 * time.Second},
		{"1,001 names", NameCount{Listed: 1001, Unknown: 1001}, all/1001 + 1, 19 * time.Second},
		{"many names", NameCount{Listed: all / 4, Unknown: all / 4}, 4, 14 * time.Second},
		{"known names", NameCount{Listed: 10_000}, known / 10_000, 50 * time.Second},
		{"one name on a stream of many", NameCount{Listed: 1, Kept: 99_999 * keptNames}, known / 100_000, 49 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newNameGuard()
				began := time.Now()
				ended := make(chan time.Duration)
				for range tt.requests {
					go func() {
						check.OK(t, g.AwaitNames(t.Context(), "a", fixed(tt.request)))
						ended <- time.Since(began)
					}()
				}
				synctest.Wait()
				check.OK(t, g.AwaitNames(t.Context(), "b", fixed(tt.request)))
				if took := time.Since(began); took != 0 {
					t.Errorf("the first request of another peer waited for %v", took)
				}
				var last time.Duration
				for range tt.requests {
					last = <-ended
				}
				if off := last - tt.want; off < -time.Second || off > time.Second {
					t.Errorf("%d requests of %+v were read within %v, want about %v", tt.requests, tt.request, last, tt.want)
				}
				if got := g.Counters.Causes()[LimitNameRate]; got != 1 {
					t.Errorf("the peer was rate-limited %d times, want once", got)
				}
			})
		})
	}
}

// B.35: a fleet behind one address may connect at once. Its clients use the same names, which are new for some of its
// first requests.
func TestB35_TheNamesOfAFleetDoNotWait(t *testing.T) {
	const names = 500
	for _, clients := range []int{1000, WithDefaults(Limits{}).MaxPeerConnections, 50_000} {
		synctest.Test(t, func(t *testing.T) {
			g := New(Config{
				Limits: WithDefaults(Limits{MaxPeerConnections: clients}), Logger: slog.New(slog.DiscardHandler),
			})
			began := time.Now()
			for i := range clients {
				n := NameCount{Listed: names}
				if i < unknownRate/names {
					n.Unknown = names
				}
				check.OK(t, g.AwaitNames(t.Context(), "a", fixed(n)))
			}
			if took := time.Since(began); took > 0 {
				t.Errorf("%d clients with %d names each waited for %v", clients, names, took)
			}
		})
	}
}

// B.35: a request of names that the node group has does not wait for those with unknown names.
func TestB35_KnownNamesDoNotWaitForUnknownOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newNameGuard()
		invented := fixed(NameCount{Listed: 2 * unknownRate, Unknown: 2 * unknownRate})
		ctx, cancel := context.WithCancel(t.Context())
		for range 10 {
			go func() { _ = g.AwaitNames(ctx, "a", invented) }()
		}
		synctest.Wait()
		began := time.Now()
		check.OK(t, g.AwaitNames(t.Context(), "a", fixed(NameCount{Listed: 500})))
		if took := time.Since(began); took != 0 {
			t.Errorf("known names waited for %v", took)
		}
		cancel()
	})
}

// B.35: names that become known while a request waits cost it less.
func TestB35_WaitingNamesAreCountedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newNameGuard()
		n := NameCount{Listed: 100_000, Unknown: 100_000}
		check.OK(t, g.AwaitNames(t.Context(), "a", fixed(n)))
		began := time.Now()
		check.OK(t, g.AwaitNames(t.Context(), "a", func() NameCount {
			if time.Since(began) > time.Second {
				n.Unknown = 0
			}
			return n
		}))
		if took := time.Since(began); took < time.Second || took > time.Second+2*recount {
			t.Errorf("the request waited for %v, want a second", took)
		}
	})
}

// B.35: a request that waits ends with its stream and costs nothing, and a drain ends all waits. Peers without requests are forgotten.
func TestB35_WaitingNamesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		draining := make(chan struct{})
		g := New(Config{Limits: WithDefaults(Limits{}), Logger: slog.New(slog.DiscardHandler), Draining: draining})
		all := fixed(NameCount{Listed: 10 * unknownRate, Unknown: 10 * unknownRate})
		check.OK(t, g.AwaitNames(t.Context(), "a", all))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		for range 3 {
			go func() { ended <- g.AwaitNames(ctx, "a", all) }()
		}
		synctest.Wait()
		cancel()
		for range 3 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("a request that waited for names ended with %v, want %v", err, context.Canceled)
			}
		}
		time.Sleep(9 * time.Second)
		began := time.Now()
		check.OK(t, g.AwaitNames(t.Context(), "a", all))
		if took := time.Since(began); took != 0 {
			t.Errorf("after requests that have ended, one waited for %v more", took)
		}
		time.AfterFunc(time.Second, func() { close(draining) })
		check.OK(t, g.AwaitNames(t.Context(), "a", all))
		if took := time.Since(began); took != time.Second {
			t.Errorf("a request waited for %v, want until the drain", took)
		}
		time.Sleep(nameBurst)
		check.OK(t, g.AwaitNames(t.Context(), "b", fixed(NameCount{Listed: 1})))
		if _, known := g.names.peers["a"]; known {
			t.Error("a peer without requests is remembered")
		}
	})
}
