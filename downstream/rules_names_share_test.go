package downstream

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// B.35: a request with many names that are new to the client's group waits for the CPU share of its peer. A request
// with many names that the group uses does not wait, and neither does a request with few names.
func TestB35_UnknownNamesWaitForPeerShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, _ := cache.New(cache.Config{})
		server := check.Must(New(Config{Views: oneView{view}, ColdWait: time.Hour}))
		names := func(prefix string, n int) []string {
			out := make([]string, n)
			for i := range out {
				out[i] = fmt.Sprint(prefix, i)
			}
			return out
		}
		used := names("used", largeRequestNames+1)
		neighbour := view.Watch()
		defer neighbour.Close()
		neighbour.Subscribe(wire.EndpointType, used)

		ctx, cancel := context.WithCancel(t.Context())
		var shares []func()
		for range max(1, runtime.GOMAXPROCS(0)/2) {
			done := check.Must(server.guard.Turn(ctx, guard.PeerName(guard.PeerOf(ctx)), math.MaxInt))
			shares = append(shares, done)
		}
		requests := make(chan []string)
		c := &eagerClient{ctx: ctx, next: func() (wire.Request, error) {
			select {
			case names := <-requests:
				return wire.Request{Delta: true, TypeURL: wire.EndpointType, Node: []byte{}, Subscribe: names}, nil
			case <-ctx.Done():
				return wire.Request{}, ctx.Err()
			}
		}}
		go func() { _ = server.serveStream(c, "", true) }()
		want := func(what string, n int) {
			t.Helper()
			synctest.Wait()
			if got := view.Interest()[wire.EndpointType].Names; got != n {
				t.Errorf("%s: %d subscriptions to names, want %d", what, got, n)
			}
		}
		requests <- used
		want("names that the group uses", 2*len(used))
		requests <- names("few", largeRequestNames)
		want("few names", 2*len(used)+largeRequestNames)
		requests <- names("new", largeRequestNames+1)
		want("many new names, without a CPU share", 2*len(used)+largeRequestNames)
		for _, done := range shares {
			done()
		}
		want("many new names, with a CPU share", 2*len(used)+largeRequestNames+largeRequestNames+1)
		cancel()
		time.Sleep(time.Second)
	})
}
