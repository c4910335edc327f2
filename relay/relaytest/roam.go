package relaytest

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// A Roaming client is a light client that reconnects as an Envoy does: when its stream ends, it opens another at the
// next server and reports its versions. Its methods may be called from any goroutine.
type Roaming struct {
	*LightClient
	dial []func() (*grpc.ClientConn, error)
	stop context.CancelFunc
	done chan struct{} // closed when the client has stopped
}

// A Subscription is a subscription of a roaming client: names of a type, or the wildcard if there are no names.
type Subscription struct {
	TypeURL string
	Names   []string
}

// roamPause is the mean pause after a stream without a response. roamPatience is the timeout of a connection attempt.
const (
	roamPause    = 100 * time.Millisecond
	roamPatience = 2 * time.Second
)

// Roam starts a client with subscriptions subs. dial has the functions that connect to the servers; the client connects
// to the server at index first. It stops when tb ends.
func Roam(tb TB, opts LightOptions, first int, dial []func() (*grpc.ClientConn, error), subs ...Subscription) *Roaming {
	ctx, stop := context.WithCancel(tb.Context())
	r := &Roaming{LightClient: newLightClient(tb, opts), dial: dial, stop: stop, done: make(chan struct{})}
	for _, s := range subs {
		r.order = append(r.order, s.TypeURL)
		r.subscribed[s.TypeURL] = s.Names
	}
	go r.roam(ctx, first) // Stop waits for it
	wait.Cleanup(tb, r.Stop)
	return r
}

// Leave closes the stream, so that the client connects to the next server.
func (r *Roaming) Leave() {
	r.mon.Lock()
	cancel := r.cancel
	r.mon.Unlock()
	if cancel != nil {
		cancel()
	}
}

// Await waits until cond returns true, on any stream, or ctx ends. It reports whether cond returned true. cond must
// follow the rules of WaitState.
func (r *Roaming) Await(ctx context.Context, cond func(State) bool) bool {
	return r.mon.Wait(ctx, func() bool { return cond(r.state) }) == nil
}

// Stop stops the client.
func (r *Roaming) Stop() {
	r.stop()
	<-r.done
}

// roam visits the servers in turn, from the index at, until ctx ends.
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

// visit opens a stream and waits until it ends. It reports whether there was a response.
func (r *Roaming) visit(ctx context.Context, dial func() (*grpc.ClientConn, error)) bool {
	conn, err := dial()
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if !connected(ctx, conn) || r.Reconnect(ctx, conn) != nil {
		return false
	}
	before := r.Counts().Responses
	r.wait()
	return r.Counts().Responses > before
}

// connected reports whether a connection could be established.
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
