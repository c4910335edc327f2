package downstream

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// B.35: newcomers get their turns in the order in which they were queued. Served streams get turns before them, but
// newcomers do not starve.
func TestB35_NewcomersWaitInOrderBehindServedStreams(t *testing.T) {
	const newcomers, served = 100, 400
	q := &queue{workers: runtime.GOMAXPROCS(0)} // so push starts no worker
	names := make(map[*stream]string)
	push := func(name string, served bool) {
		s := new(stream)
		s.served.Store(served)
		names[s] = name
		q.push(s)
	}
	for i := range newcomers {
		push(fmt.Sprint("newcomer ", i), false)
	}
	for i := range served {
		push(fmt.Sprint("served ", i), true)
	}
	check.Equal(t, "queued newcomers", q.newcomerCount(), newcomers)
	var want []string
	for next := 0; len(want) < newcomers+served; {
		for range turnsPerNewcomer {
			if next < served {
				want = append(want, fmt.Sprint("served ", next))
				next++
			}
		}
		if n := len(want) - next; n < newcomers {
			want = append(want, fmt.Sprint("newcomer ", n))
		}
	}
	var got []string
	for s := q.pop(false, false); s != nil; s = q.pop(true, true) {
		got = append(got, names[s])
	}
	if !slices.Equal(got, want) {
		t.Errorf("turns in the order %q, want %q", got, want)
	}
}

// B.35: newcomers of different peers get turns alternately, each peer's in order. A stream that was served waits with the
// newcomers of its peer while it has a request of many names.
func TestB35_NewcomersOfPeersTakeTurns(t *testing.T) {
	q := &queue{workers: runtime.GOMAXPROCS(0)} // so push starts no worker
	names := make(map[*stream]string)
	push := func(peer string, n int, served bool) {
		s := &stream{peer: peer}
		s.served.Store(served)
		s.asksMany.Store(served)
		names[s] = fmt.Sprint(peer, n)
		q.push(s)
	}
	for n := range 4 {
		push("a", n, n%2 == 1)
	}
	push("b", 0, false)
	push("b", 1, true)
	push("c", 0, false)
	want := []string{"a0", "b0", "c0", "a1", "b1", "a2", "a3"}
	check.Equal(t, "queued newcomers", q.newcomerCount(), len(want))
	var got []string
	for s := q.pop(false, false); s != nil; s = q.pop(true, true) {
		got = append(got, names[s])
	}
	if !slices.Equal(got, want) {
		t.Errorf("turns in the order %q, want %q", got, want)
	}
	if n := len(q.newcomers.lines); n != 0 {
		t.Errorf("%d empty lines are kept", n)
	}
}

// B.12: changes while a response is unanswered are counted as coalesced, and sent in one response after the answer.
func TestB12_CoalescedChangesAreCounted(t *testing.T) {
	const changes = 10
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		w.SetConnected(true)
		s := newTestStream(t, view, Config{})
		s.watch = view.WatchFunc(s.resourceChanged)
		s.client.Watch = s.watch
		s.timer = time.AfterFunc(time.Hour, s.wake)
		defer s.timer.Stop()
		s.acceptRequest(&wire.Request{Delta: true, TypeURL: wire.EndpointType, Subscribe: []string{benchName(0)}})
		synctest.Wait()
		w.TakeDemand()
		for i := range 1 + changes {
			w.Apply(cache.ByName, wire.Update{
				TypeURL: wire.EndpointType, Resources: []*wire.Resource{benchResource(t, wire.EndpointType, 0, fmt.Sprint(i))},
			})
			synctest.Wait()
		}
		if got := s.server.Stats().Coalesced; s.nonces != 1 || got != changes {
			t.Errorf("%d responses were sent and %d changes counted, want 1 and %d", s.nonces, got, changes)
		}
		s.acceptRequest(&wire.Request{Delta: true, TypeURL: wire.EndpointType, Nonce: "1"})
		synctest.Wait()
		if got := s.server.Stats().Coalesced; s.nonces != 2 || got != changes {
			t.Errorf("after the answer %d responses were sent and %d changes counted, want 2 and %d", s.nonces, got, changes)
		}
	})
}
