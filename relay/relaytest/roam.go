package relaytest

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// A Roaming client is a light client that reconnects like an Envoy: when its stream ends, it opens another at its next
// server and reports its versions. Its methods may be called from any goroutine.
type Roaming struct {
	*LightClient
	dial []func() (*grpc.ClientConn, error)
	stop context.CancelFunc
	done chan struct{} // closed once it roams no more
}

// A Subscription is what a roaming client asks for: names of a type, or all of it if
// there are none.
type Subscription struct {
	TypeURL string
	Names   []string
}

// roamPause is about how long a client waits after a stream without a response. roamPatience is the timeout of a
// connection attempt.
const (
	roamPause    = 100 * time.Millisecond
	roamPatience = 2 * time.Second
)

// Roam starts a client that begins with the server at first, of those that dial reaches,
// and asks for all of what. It ends when tb ends.
func Roam(tb TB, opts LightOptions, first int, dial []func() (*grpc.ClientConn, error), what ...Subscription) *Roaming {
	ctx, stop := context.WithCancel(tb.Context())
	r := &Roaming{LightClient: newLightClient(tb, opts), dial: dial, stop: stop, done: make(chan struct{})}
	for _, s := range what {
		r.order = append(r.order, s.TypeURL)
		r.subscribed[s.TypeURL] = s.Names
	}
	go r.roam(ctx, first) // Stop waits for it
	wait.Cleanup(tb, r.Stop)
	return r
}

// Leave ends the stream, so that the client reconnects to its next server.
func (r *Roaming) Leave() {
	r.mon.Lock()
	cancel := r.cancel
	r.mon.Unlock()
	if cancel != nil {
		cancel()
	}
}

// Await waits until cond returns true, on any stream, or ctx ends. It reports whether cond was true. The rules for the
// condition of WaitState apply.
func (r *Roaming) Await(ctx context.Context, cond func(State) bool) bool {
	return r.mon.Wait(ctx, func() bool { return cond(r.state) }) == nil
}

// Stop ends the client.
func (r *Roaming) Stop() {
	r.stop()
	<-r.done
}

func (r *Roaming) roam(ctx context.Context, at int) {
	defer close(r.done)
	for ; ctx.Err() == nil; at++ {
		if !r.visit(ctx, r.dial[at%len(r.dial)]) {
			timer := time.NewTimer(roamPause/2 + rand.N(roamPause))
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
		}
	}
}

// visit serves one stream until it ends, and reports whether there was a response.
func (r *Roaming) visit(ctx context.Context, dial func() (*grpc.ClientConn, error)) bool {
	conn, err := dial()
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if !connected(ctx, conn) || r.Reconnect(ctx, conn) != nil {
		return false
	}
	told := r.Counts().Responses
	r.wait()
	return r.Counts().Responses > told
}

// connected reports whether a connection could be made.
func connected(ctx context.Context, conn *grpc.ClientConn) bool {
	ctx, cancel := context.WithTimeout(ctx, roamPatience)
	defer cancel()
	conn.Connect()
	for {
		switch s := conn.GetState(); {
		case s == connectivity.Ready:
			return true
		case s == connectivity.TransientFailure || !conn.WaitForStateChange(ctx, s):
			return false
		}
	}
}
