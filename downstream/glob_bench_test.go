package downstream

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/subscription"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A discardClient is a stream without a transport that discards responses.
type discardClient struct{ grpcCall }

func (discardClient) Context() context.Context { return context.Background() }

func (discardClient) SendMsg(any) error { return nil }

// newTestStream returns a Delta stream whose client discards responses.
func newTestStream(tb testing.TB, view *cache.View, cfg Config) *stream {
	tb.Helper()
	cfg.Views = oneView{view}
	server := check.Must(New(cfg))
	c := &client{cfg: &server.cfg, Client: subscription.Client{
		Settings: &server.cfg.subscriptions, Watch: view.Watch(), Delta: true,
	}}
	return &stream{
		server: server, cfg: &server.cfg, rpc: discardClient{}, delta: true,
		group: Group{View: view, Leave: func() {}}, watch: c.Watch, client: c,
		result: make(chan error, 1), requestLimiter: rate.NewLimiter(rate.Inf, 1), lastNode: lastNode{seen: true},
	}
}

// BenchmarkFlushAmongGlobs measures the cost of sending one change to a client with many globs.
func BenchmarkFlushAmongGlobs(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("globs=%d", n), func(b *testing.B) {
			view, w := cache.New(cache.Config{})
			w.SetConnected(true)
			s := newTestStream(b, view, Config{})
			r := &wire.Request{Delta: true, TypeURL: wire.EndpointType}
			for i := range n {
				r.Subscribe = append(r.Subscribe, fmt.Sprintf("xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/%d/*", i))
			}
			check.OK(b, s.handleNow(r, time.Now()))
			for _, glob := range r.Subscribe {
				w.SetPhase(cache.Collection(wire.EndpointType, glob), cache.Confirmed)
			}
			flush := func() {
				s.lock.acquire()
				defer s.lock.release()
				if _, err := s.flush(time.Now(), true); err != nil {
					b.Fatal(err)
				}
				for _, sub := range s.subs {
					sub.ApplyRequest(&wire.Request{Delta: true, Nonce: sub.Nonce()}, time.Now())
				}
			}
			for range n { // each glob has a separate response
				flush()
			}
			sent, rounds := s.nonces, 0
			for b.Loop() {
				rounds++
				name := "xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/0/a"
				res, err := wire.NewResource(wire.EndpointType, name, "", fmt.Append(nil, rounds))
				check.OK(b, err)
				key := cache.Collection(wire.EndpointType, r.Subscribe[0])
				w.Apply(cache.Wildcard, wire.Update{TypeURL: key, Resources: []*wire.Resource{res}})
				flush()
			}
			if got := s.nonces - sent; got != uint64(rounds) {
				b.Fatalf("%d responses for %d changes", got, rounds)
			}
		})
	}
}
