package downstream

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// An answeringClient is a Delta stream without a transport, whose client sends an ACK of each response.
type answeringClient struct {
	grpcCall
	requests chan wire.Request // the test closes it after the last request
	sent     *atomic.Int64     // responses to all clients
	after    time.Duration     // delay of an ACK
}

func (c *answeringClient) Context() context.Context { return context.Background() }

func (c *answeringClient) SendMsg(m any) error {
	c.sent.Add(1)
	answer := wire.Request{Delta: true, TypeURL: wire.EndpointType, Nonce: m.(*wire.Response).Nonce}
	reply := func() { c.requests <- answer }
	if c.after == 0 {
		// No timer: if the timers of two goroutines of a bubble fire at the same time, the race detector crashes (Go 1.26).
		go reply()
		return nil
	}
	time.AfterFunc(c.after, reply)
	return nil
}

func (c *answeringClient) RecvMsg(m any) error {
	r, more := <-c.requests
	if !more {
		return io.EOF
	}
	*m.(*wire.Request) = r
	return nil
}

// TestFewTurnsSendNothing checks that a change gives a turn only to the clients that subscribed to the resource, and
// that nearly all of these turns send a response. An ACK causes no turn, unless a change is due to the client that
// waited for the ACK; such a change takes two turns.
func TestFewTurnsSendNothing(t *testing.T) {
	for _, tt := range []struct {
		after time.Duration // delay of an ACK, with a change each millisecond
		idle  float64       // largest fraction of turns in which nothing is sent
	}{{0, 0.01}, {5500 * time.Microsecond, 0.11}} {
		t.Run(tt.after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { countTurns(t, tt.after, tt.idle) })
		})
	}
}

// countTurns has 50 clients with 10 of 500 names each, and counts their turns during 1,000 changes.
func countTurns(t *testing.T, after time.Duration, atMost float64) {
	const clients, names, each, changes = 50, 500, 10, 1000
	random := rand.New(rand.NewPCG(1, 2))
	view, w := cache.New(cache.Config{})
	server, err := New(Config{Views: oneView{view}})
	check.OK(t, err)
	change := func(i, version int) {
		w.Apply(cache.ByName, wire.Update{
			TypeURL: wire.EndpointType, Resources: []*wire.Resource{benchResource(t, wire.EndpointType, i, fmt.Sprint(version))},
		})
	}
	w.SetConnected(true)
	var sent atomic.Int64
	for range clients {
		c := &answeringClient{requests: make(chan wire.Request, 16), sent: &sent, after: after}
		first := wire.Request{Delta: true, TypeURL: wire.EndpointType, Node: []byte{}}
		for _, i := range random.Perm(names)[:each] {
			first.Subscribe = append(first.Subscribe, benchName(i))
		}
		c.requests <- first
		defer close(c.requests)
		go func() {
			if err := server.serveStream(c, "", true); err != nil {
				t.Errorf("a stream ended with %v", err)
			}
		}()
	}
	synctest.Wait()
	w.TakeDemand()
	for i := range names {
		change(i, 0)
	}
	settle := func() {
		time.Sleep(time.Second) // responses that were delayed by an ACK are answered too
		synctest.Wait()
	}
	settle()

	sentBefore := sent.Load()
	before := server.Stats()
	for i := range changes {
		change(random.IntN(names), i+1)
		time.Sleep(time.Millisecond) // all turns that the change causes have ended by then
	}
	settle()
	turned := server.Stats()
	turns, idle := turned.Turns-before.Turns, turned.IdleTurns-before.IdleTurns
	got, want := sent.Load()-sentBefore, int64(changes*clients*each/names)
	if got < want*85/100 || got > want*11/10 {
		t.Errorf("got %d responses, want about %d", got, want)
	}
	if float64(idle) > atMost*float64(turns) {
		t.Errorf("in %d of %d turns nothing was sent, want at most %.0f%%", idle, turns, 100*atMost)
	}
	t.Logf("%d responses, %d turns, %d of them sent nothing", got, turns, idle)
}

// TestBusyQueueStaysSmall checks that a queue that is never empty keeps its order, and no memory for removed streams.
func TestBusyQueueStaysSmall(t *testing.T) {
	q := queue{workers: runtime.GOMAXPROCS(0)} // so push starts no worker
	all := make([]*stream, 10)
	for i := range all {
		all[i] = new(stream)
		q.push(all[i])
	}
	for i := range 10_000 {
		s := q.pop(false, false)
		if want := all[i%len(all)]; s != want {
			t.Fatalf("turn %d: got another stream, want the one that was queued first", i)
		}
		q.push(s)
	}
	if got := cap(q.newcomers.lines[""].waiting); got > 4*len(all) {
		t.Errorf("the queue has capacity for %d streams, want at most %d", got, 4*len(all))
	}
}
