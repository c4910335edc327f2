package downstream

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// invented returns n names or globs that no other call returned for the prefix.
func invented(format string, first, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(format, first+i)
	}
	return names
}

// B.35: the names of all requests of a peer are charged, however few each request has: names and globs, subscribed or
// unsubscribed. The requests wait, and their streams stay open although a first request waits for longer than
// FirstRequestTimeout. Names that the node group has do not wait.
func TestB35_NamesOfManyRequestsWait(t *testing.T) {
	const streams, requests, each = 20, 10, 450
	const glob = "xdstp://a/envoy.config.cluster.v3.Cluster/%d/*"
	subscribe := func(format string) func(stream, n int) wire.Request {
		return func(stream, n int) wire.Request {
			return wire.Request{Subscribe: invented(format, (stream*requests+n)*each, each)}
		}
	}
	for _, tt := range []struct {
		name    string
		request func(stream, n int) wire.Request
		least   time.Duration // until all requests are read
	}{
		{"names", subscribe("invented-%d"), 7 * time.Second},
		{"globs", subscribe(glob), 7 * time.Second},
		{"other names in each", func(stream, n int) wire.Request {
			r := subscribe("invented-%d")(stream, n)
			if n > 0 {
				r.Unsubscribe = subscribe("invented-%d")(stream, n-1).Subscribe
			}
			return r
		}, 7 * time.Second},
		{"known names", subscribe("held-%d"), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				view, _ := cache.New(cache.Config{})
				server := check.Must(New(Config{Views: oneView{view}, ColdWait: time.Hour, FirstRequestTimeout: 100 * time.Millisecond}))
				neighbour := view.Watch()
				defer neighbour.Close()
				held := neighbour.Subscribe(wire.ClusterType, invented("held-%d", 0, streams*requests*each))
				defer neighbour.Unsubscribe(wire.ClusterType, held)
				ctx, cancel := context.WithCancel(t.Context())
				began := time.Now()
				read, ended := make(chan time.Duration, streams), make(chan error, streams)
				for stream := range streams {
					n := 0
					c := &eagerClient{ctx: ctx, next: func() (wire.Request, error) {
						if n == requests {
							read <- time.Since(began)
							<-ctx.Done()
							return wire.Request{}, ctx.Err()
						}
						r := tt.request(stream, n)
						r.Delta, r.TypeURL = true, wire.ClusterType
						if n++; n == 1 {
							r.Node = []byte{}
						}
						return r, nil
					}}
					go func() { ended <- server.serveStream(c, "", true) }()
				}
				var last time.Duration
				for range streams {
					select {
					case last = <-read:
					case err := <-ended:
						t.Fatalf("a stream ended with %v", err)
					}
				}
				if last < tt.least || tt.least == 0 && last > 0 {
					t.Errorf("the requests were read within %v, want at least %v", last, tt.least)
				}
				if limited := server.guard.Counters.Causes()[guard.LimitNameRate]; (limited > 0) != (tt.least > 0) {
					t.Errorf("%d rate limits are counted", limited)
				}
				cancel()
				for range streams {
					<-ended
				}
			})
		})
	}
}

// B.35: the error for names over a limit is built once for a limit, and names the first of many.
func TestB35_ErrorsOfManyNamesAreBuiltOnce(t *testing.T) {
	var k limitCheck
	built := 0
	for i := range 1000 {
		for _, limit := range []guard.Limit{guard.LimitGlobs, guard.LimitOriginNames} {
			k.addOver(fmt.Sprint(i), limit, func() error {
				built++
				return guard.Exceeds(limit, "too many")
			})
		}
	}
	if built != 2 || len(k.over) != 2 || len(k.over[0].names) != 1000 || len(k.over[1].names) != 1000 {
		t.Errorf("%d errors were built for %d limits, want 2 for 1,000 names each", built, len(k.over))
	}
}

// B.35: the names of polls are charged to the same budget as those of streams.
func TestB35_NamesOfPollsWait(t *testing.T) {
	const polls, each = 30, 1000
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := restServer(t)
		began := time.Now()
		for n := range polls {
			names := strings.Join(invented("invented-%d", n*each, each), `","`)
			restPoll(t.Context(), s, "0", `{"node":{},"resource_names":["`+names+`"]}`)
		}
		if took := time.Since(began); took < time.Second || took > 3*time.Second {
			t.Errorf("%d polls for %d names each took %v, want about 2s", polls, each, took)
		}
	})
}

// B.35: names over a limit are tried again as soon as the stream has fewer names, and otherwise only after a pause, since
// a check takes long: not with each answer.
func TestB35_NamesOverALimitAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, _ := cache.New(cache.Config{Quotas: []quota.Names{quota.NewNames(quota.NewPool(2, 2))}})
		other := view.Watch()
		defer other.Close()
		held := other.Subscribe(wire.EndpointType, []string{"x"})
		s := newTestStream(t, view, Config{})
		ask := func(r *wire.Request) {
			t.Helper()
			r.Delta, r.TypeURL = true, wire.EndpointType
			check.OK(t, s.handle(r, nil, time.Now()))
		}
		want := func(what string, names, over int) {
			t.Helper()
			sub := s.subscription(wire.EndpointType)
			if got := len(sub.Names()); got != names || len(sub.OverLimit) != over {
				t.Errorf("%s: %d names are subscribed and %d over a limit, want %d and %d", what, got, len(sub.OverLimit), names, over)
			}
		}
		ask(&wire.Request{Subscribe: []string{"a", "b", "c"}})
		want("at first", 1, 2)
		other.Unsubscribe(wire.EndpointType, held)
		ask(&wire.Request{Nonce: "1"})
		want("at once", 1, 2)
		time.Sleep(overLimitPause)
		ask(&wire.Request{Nonce: "1"})
		want("after a pause", 2, 1)
		ask(&wire.Request{Unsubscribe: []string{"a"}})
		want("with fewer names", 2, 0)
	})
}
