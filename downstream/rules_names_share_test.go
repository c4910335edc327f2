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

// B.35: a request with many names that the client's group does not know waits until its peer may use the time of others. A request
// with many names that the group knows does not, and neither does a request with few.
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
		known := names("known", largeRequestNames+1)
		neighbour := view.Watch()
		defer neighbour.Close()
		neighbour.Subscribe(wire.EndpointType, known)

		ctx, cancel := context.WithCancel(t.Context())
		var taken []func()
		for range max(1, runtime.GOMAXPROCS(0)/2) {
			done := check.Must(server.guard.Turn(ctx, server.cfg.PeerName(guard.PeerOf(ctx)), math.MaxInt))
			taken = append(taken, done)
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
				t.Errorf("%s: names are watched %d times, want %d", what, got, n)
			}
		}
		requests <- known
		want("names that the group knows", 2*len(known))
		requests <- names("few", largeRequestNames)
		want("few names", 2*len(known)+largeRequestNames)
		requests <- names("unknown", largeRequestNames+1)
		want("many unknown names, without a share of time", 2*len(known)+largeRequestNames)
		for _, done := range taken {
			done()
		}
		want("many unknown names, with a share of time", 2*len(known)+largeRequestNames+largeRequestNames+1)
		cancel()
		time.Sleep(time.Second)
	})
}
