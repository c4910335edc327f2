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

	"google.golang.org/grpc"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// An answeringClient is a Delta stream without a transport, of a client that answers
// each response.
type answeringClient struct {
	grpc.ServerStream
	requests chan wire.Request // closed when the client has no more
	sent     *atomic.Int64     // by all clients
	after    time.Duration     // how long an answer takes
}

func (c *answeringClient) Context() context.Context { return context.Background() }

func (c *answeringClient) SendMsg(m any) error {
	c.sent.Add(1)
	answer := wire.Request{Delta: true, TypeURL: wire.EndpointType, Nonce: m.(*wire.Response).Nonce}
	reply := func() { c.requests <- answer }
	if c.after == 0 {
		// Not by a timer: two goroutines of a bubble that have timers fire at once, at the
		// same time, crash the race detector (Go 1.26).
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

// TestFewTurnsAreForNothing: of many clients that want few of many names each, a change
// has only those looked at that want it, and nearly each of these is sent something. An
// answer has nobody looked at, whatever else has changed since the response; but what a
// client wants and has changed meanwhile waits for it, so that it costs a turn more.
func TestFewTurnsSendNothing(t *testing.T) {
	for _, tt := range []struct {
		after time.Duration // with a change each millisecond
		idle  float64       // of the turns, at most
	}{{0, 0.01}, {5500 * time.Microsecond, 0.12}} {
		t.Run(tt.after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { countTurns(t, tt.after, tt.idle) })
		})
	}
}

func countTurns(t *testing.T, after time.Duration, atMost float64) {
	const clients, names, each, changes = 100, 1000, 20, 2000
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
		time.Sleep(time.Second) // what is sent after an answer is answered too
		synctest.Wait()
	}
	settle()

	sentBefore := sent.Load()
	before := server.Stats()
	for i := range changes {
		change(random.IntN(names), i+1)
		time.Sleep(time.Millisecond) // all that it wakes is done by then
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
	t.Logf("%d responses, %d turns, %d of them for nothing", got, turns, idle)
}

// TestAQueueThatIsNeverEmptyStaysSmall: it keeps its order, and no room for the streams
// that have left it.
func TestBusyQueueStaysSmall(t *testing.T) {
	q := queue{workers: runtime.GOMAXPROCS(0)} // none begins
	all := make([]*stream, 10)
	for i := range all {
		all[i] = new(stream)
		q.push(all[i])
	}
	for i := range 10_000 {
		s := q.pop(false, false)
		if want := all[i%len(all)]; s != want {
			t.Fatalf("turn %d: got another stream than the one that waited longest", i)
		}
		q.push(s)
	}
	if got := cap(q.newcomers.streams); got > 4*len(all) {
		t.Errorf("the queue has room for %d streams, of which there are %d", got, len(all))
	}
}
