package upstream_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// bad reports whether an origin ends streams that subscribe to a name, or to the wildcard of a type.
func bad(typeURL, name string) bool {
	return strings.HasPrefix(name, "bad") || typeURL == relaytest.RuntimeType && name == "*"
}

// isolated returns what is isolated, as type/name.
func (r *rig) isolated() string {
	var out []string
	for _, i := range r.control.Isolated() {
		for _, name := range i.Names {
			out = append(out, relaytest.ShortType(i.TypeURL)+"/"+name)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestB48_OperatorsSeeIsolatedSubscriptions: a subscription that ends streams is in the status of its view and in the
// counters of the origin, and is logged once, until its client leaves.
func TestB48_OperatorsSeeIsolatedSubscriptions(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Ends: bad}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, "a@1")
		runtime := r.watch.SubscribeAll(relaytest.RuntimeType)
		names := r.watch.Subscribe(endpoints, []string{"bad", "good"})
		r.pass(time.Minute)
		r.expect("isolated", r.isolated(), "ClusterLoadAssignment/bad Runtime/*")
		all := r.control.Isolated()
		if i := all[0]; i.Count != 1 || i.Err == nil || time.Since(i.Since) > 2*time.Minute || !strings.Contains(i.Err.Error(), "no cache") {
			t.Errorf("isolated: %+v, want a count of 1, the error and the time", i)
		}
		check.Equal(t, "counted", r.session.Stats().Isolated, 2)
		check.Equal(t, "log lines", r.log.count("subscription ends upstream streams"), 2)
		r.watch.UnsubscribeAll(runtime)
		r.watch.Unsubscribe(endpoints, names[:1])
		r.pass(soon)
		r.expect("isolated after the client has left", r.isolated(), "")
		check.Equal(t, "counted", r.session.Stats().Isolated, 0)
		streams := r.streams()
		r.pass(longAfter)
		if n := r.streams() - streams; n > 1 {
			t.Errorf("%d streams after the client has left, want one for the comparison at most", n)
		}
	})
}

// TestB48_ReturnIsLogged: an origin ends all streams at once, so that the relay divides them. Then it accepts only what
// was isolated. The relay logs the connection, although the shared stream still fails.
func TestB48_ReturnIsLogged(t *testing.T) {
	var accepts atomic.Pointer[string] // the only type that the origin accepts; nil for all
	ends := func(typeURL, _ string) bool { return accepts.Load() != nil && *accepts.Load() != typeURL }
	inBubble(t, relaytest.Behaviour{Ends: ends}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(listeners)
		r.follow(clusters, "a@1")
		none, second := "", listeners // the shared stream keeps the first type
		accepts.Store(&none)
		r.Restart()
		r.pass(3 * time.Minute)
		check.Equal(t, "subscriptions were isolated", r.log.count("moving subscriptions") > 0, true)
		check.Equal(t, "the view is connected", r.view.Generation().First().Connected, false)
		accepts.Store(&second)
		for range 6000 {
			before := r.log.count("connected to the origin")
			r.pass(10 * time.Millisecond)
			if r.view.Generation().First().Connected {
				check.Equal(t, "the connection was logged", r.log.count("connected to the origin") > before, true)
				return
			}
		}
		t.Error("the view is not connected a minute after the origin accepts listeners")
	})
}

// TestB48_FirstStreamWithABadSubscription: a relay whose first stream carries a subscription that ends it serves all
// others within seconds, whether clients subscribed to them before or after.
func TestB48_FirstStreamWithABadSubscription(t *testing.T) {
	for _, sotw := range []bool{false, true} {
		for _, before := range []time.Duration{0, time.Second, time.Minute} {
			inBubble(t, relaytest.Behaviour{Ends: bad, SotW: sotw, Wrap: true}, upstream.Config{}, func(t *testing.T, r *rig) {
				for _, typeURL := range []string{clusters, listeners, endpoints} {
					r.put(typeURL, "a@1")
				}
				r.watch.SubscribeAll(relaytest.RuntimeType)
				r.pass(before)
				r.watch.SubscribeAll(clusters)
				r.watch.SubscribeAll(listeners)
				r.watch.Subscribe(endpoints, []string{"a", "bad"})
				r.pass(20 * time.Second)
				at := fmt.Sprintf("sotw=%v, %v after the other: ", sotw, before)
				r.expect(at+"clusters", r.members(clusters), "a@1")
				r.expect(at+"listeners", r.members(listeners), "a@1")
				r.expect(at+"endpoints", present(r.named(endpoints)), "a@1")
				if !r.view.Generation().First().Connected {
					t.Error(at + "the view is not connected")
				}
			})
		}
	}
}

// TestB48_BadNameIsFoundByBisection: of two names that are requested at the same time, one ends streams. The other is served
// meanwhile, and returns to the shared stream. How many streams that takes depends on when they are opened again, at random.
func TestB48_BadNameIsFoundByBisection(t *testing.T) {
	for _, sotw := range []bool{false, true} {
		inBubble(t, relaytest.Behaviour{Ends: bad, SotW: sotw}, upstream.Config{}, func(t *testing.T, r *rig) {
			r.follow(clusters, "a@1")
			r.put(endpoints, "good@1")
			names := r.watch.Subscribe(endpoints, []string{"bad", "good"})
			r.pass(3 * time.Second)
			check.Equal(t, "good is served", strings.Contains(r.named(endpoints), "good@"), true)
			if n := r.streams(); n > 9 {
				t.Errorf("%d streams", n)
			}
			r.pass(time.Minute)
			r.expect("isolated", r.isolated(), "ClusterLoadAssignment/bad")
			r.watch.Unsubscribe(endpoints, names[:1])
			r.pass(10 * time.Minute)
			check.Equal(t, "open streams", len(r.State().Open()), 1)
			r.expect("isolated after the client has left", r.isolated(), "")
			before := r.view.Generation().Revision
			r.put(endpoints, "good@2")
			r.pass(soon)
			check.Equal(t, "a change arrives", r.view.Generation().Revision > before, true)
		})
	}
}

// TestB48_OneBadNameAfterTheOther: a client adds a bad name each second. Once the first is isolated, the stream of the
// others does not end any more, and what they add meanwhile is served.
func TestB48_OneBadNameAfterTheOther(t *testing.T) {
	for _, sotw := range []bool{false, true} {
		cfg := upstream.Config{StreamBurst: 100}
		inBubble(t, relaytest.Behaviour{Ends: bad, SotW: sotw}, cfg, func(t *testing.T, r *rig) {
			r.follow(clusters, "a@1")
			r.put(endpoints, "good@1")
			r.pass(time.Minute)
			bad := r.watch.Subscribe(endpoints, []string{"bad"})
			r.pass(time.Minute) // after the comparison
			carrier := func() int {
				for _, s := range r.State().Open() {
					if s.Types[clusters] != nil {
						return s.ID
					}
				}
				return -1
			}
			stream := carrier()
			for i := range 60 {
				bad = append(bad, r.watch.Subscribe(endpoints, []string{fmt.Sprint("bad", i)})...)
				r.pass(time.Second)
				if now := carrier(); now != stream {
					t.Fatalf("sotw=%v: after %d bad names, the stream of the clusters is %d, was %d", sotw, i, now, stream)
				}
			}
			if n := len(r.State().Open()); n > 9 {
				t.Errorf("%d open streams", n)
			}
			r.watch.Unsubscribe(endpoints, bad)
			r.watch.Subscribe(endpoints, []string{"good"})
			r.namedAfter(2*time.Minute, "names", endpoints, map[bool]string{false: "good@1", true: "good@"}[sotw])
			r.expect("isolated", r.isolated(), "")
			check.Equal(t, "open streams", len(r.State().Open()), 1)
		})
	}
}

// inBubbleWithLives is inBubble with an origin that ends each stream after the duration that life returns.
func inBubbleWithLives(t *testing.T, life func() time.Duration, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		limit := grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, serve grpc.StreamHandler) error {
			over := status.Error(codes.Unavailable, "stream duration exceeded")
			ctx, cancel := context.WithTimeoutCause(ss.Context(), life(), over)
			defer cancel()
			return serve(srv, limitedStream{ss, ctx})
		})
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, ServerOptions: []grpc.ServerOption{limit}})
		test(t, viewSync(t, o, upstream.Config{}))
	})
}

// A limitedStream is a stream with another context.
type limitedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s limitedStream) Context() context.Context { return s.ctx }

// numberedNames returns n names with a prefix.
func numberedNames(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s%03d", prefix, i))
	}
	return names
}

// putAll sets resources of a type with one version.
func (r *rig) putAll(typeURL, version string, names ...string) {
	r.Apply(func(tx *relaytest.Tx) {
		for _, name := range names {
			putIn(tx, typeURL, name+"@"+version)
		}
	})
}

// current returns how many resources of a type that clients subscribe to by name have a version.
func (r *rig) current(typeURL, version string) int {
	return strings.Count(r.named(typeURL)+" ", "@"+version+" ")
}

// TestB48_OriginThatEndsAllStreams: an origin, or a proxy before it, ends each stream after some seconds, or restarts
// every few seconds. After a search of less than a minute, changes arrive within seconds, and nothing is isolated.
func TestB48_OriginThatEndsAllStreams(t *testing.T) {
	for _, of := range []struct{ life, restart time.Duration }{
		{2 * time.Second, time.Hour}, {5 * time.Second, time.Hour}, {8 * time.Second, time.Hour},
		{time.Hour, 2 * time.Second}, {time.Hour, 6 * time.Second},
	} {
		inBubbleWithLives(t, func() time.Duration { return of.life }, func(t *testing.T, r *rig) {
			names := numberedNames("e", 20)
			r.follow(clusters, "a@0")
			r.watch.SubscribeAll(listeners)
			r.watch.Subscribe(endpoints, names)
			restartAt, found := time.Now(), false
			for at := 0; at < 300; at++ {
				r.putAll(endpoints, fmt.Sprint("v", at), names...)
				r.put(clusters, fmt.Sprint("a@v", at))
				r.put(listeners, fmt.Sprint("a@v", at))
				for range 30 { // of 100 ms
					r.pass(100 * time.Millisecond)
					if !found && r.log.count("origin ends all streams") > 0 {
						found = true
						r.expect("isolated", r.isolated(), "")
					}
					if time.Since(restartAt) >= of.restart {
						r.Restart()
						restartAt = time.Now()
					}
				}
				v := fmt.Sprint("v", at)
				if at < 20 {
					continue
				}
				if n := r.current(endpoints, v); n != len(names) || r.members(clusters) != "a@"+v || r.members(listeners) != "a@"+v {
					t.Fatalf("%v, %v: 3s after change %d: %d names, clusters %s, listeners %s, isolated %q",
						of.life, of.restart, at, n, r.members(clusters), r.members(listeners), r.isolated())
				}
			}
			check.Equal(t, "log lines", r.log.count("origin ends all streams"), 1)
		})
	}
}

// TestB48_IdleOriginThatEndsAllStreams: an origin without changes ends each stream after some seconds. Once the relay
// notices, nothing is isolated again: the shared stream is not divided, although it has ended many times.
func TestB48_IdleOriginThatEndsAllStreams(t *testing.T) {
	for range 5 {
		inBubbleWithLives(t, func() time.Duration { return 2 * time.Second }, func(t *testing.T, r *rig) {
			r.put(clusters, "a@0")
			r.put(listeners, "a@0")
			r.watch.SubscribeAll(clusters)
			r.watch.SubscribeAll(listeners)
			r.watch.Subscribe(endpoints, numberedNames("e", 20))
			moved := func() int { return r.log.count("moving subscriptions") }
			for range 120 {
				if r.pass(time.Second); r.log.count("origin ends all streams") > 0 {
					break
				}
			}
			before := moved()
			check.Equal(t, "subscriptions were isolated", before > 0, true)
			r.pass(10 * time.Minute)
			check.Equal(t, "isolated again", moved()-before, 0)
			check.Equal(t, "log lines", r.log.count("origin ends all streams"), 1)
		})
	}
}

// TestB48_CauseAmongManyNames: the search for one name among a thousand takes seconds, also if the name is in the part
// that stays on the failing stream each time.
func TestB48_CauseAmongManyNames(t *testing.T) {
	for _, sotw := range []bool{false, true} {
		inBubble(t, relaytest.Behaviour{Ends: bad, SotW: sotw, Wrap: true}, upstream.Config{}, func(t *testing.T, r *rig) {
			names := numberedNames("e", 1000)
			r.follow(clusters, "a@1")
			r.watch.Subscribe(endpoints, append(names, "bad")) // the first in order
			r.pass(25 * time.Second)
			r.putAll(endpoints, "2", names...)
			r.pass(time.Second)
			if n := r.current(endpoints, "2"); n != len(names) {
				t.Errorf("sotw=%v: %d names are current, want %d", sotw, n, len(names))
			}
			r.expect("isolated", r.isolated(), "ClusterLoadAssignment/bad")
		})
	}
}

// TestB48_MoreCausesThanBranches: clients subscribe to more bad names of several types than there are branches. All
// others are served after a few minutes, and streams are few. If the origin accepts one of the bad names later, its client
// is served.
func TestB48_MoreCausesThanBranches(t *testing.T) {
	var fixed atomic.Bool
	ends := func(_, name string) bool {
		return strings.HasPrefix(name, "bad") && (name != "bad005" || !fixed.Load())
	}
	inBubble(t, relaytest.Behaviour{Ends: ends}, upstream.Config{}, func(t *testing.T, r *rig) {
		types := []string{endpoints, relaytest.RouteType, relaytest.SecretType}
		good := numberedNames("0", 50)
		for _, typeURL := range types {
			r.putAll(typeURL, "1", append(good, "bad005")...)
			r.watch.Subscribe(typeURL, append(slices.Clone(good), numberedNames("bad", 10)...))
		}
		r.follow(clusters, "a@1")
		r.pass(2 * time.Minute) // usually less than 30 s
		for at := range 20 {
			v := fmt.Sprint("v", at)
			r.put(clusters, "a@"+v)
			for _, typeURL := range types {
				r.putAll(typeURL, v, good...)
			}
			r.pass(time.Second)
			r.expect("clusters", r.members(clusters), "a@"+v)
			for _, typeURL := range types {
				if n := r.current(typeURL, v); n != len(good) {
					t.Fatalf("change %d: %d names of %s are current, want %d", at, n, typeURL, len(good))
				}
			}
			r.pass(20 * time.Second)
		}
		for range 10 { // a branch that was just divided does not count
			if r.session.Stats().Isolated != 30 {
				r.pass(10 * time.Second)
			}
		}
		check.Equal(t, "isolated", r.session.Stats().Isolated, 30)
		check.Equal(t, "log lines", r.log.count("subscription ends upstream streams") <= 30, true)
		streams := r.streams()
		r.pass(10 * time.Minute)
		if n := r.streams() - streams; n > 10*2*8+10 {
			t.Errorf("%d streams in ten minutes, want at most two a minute for each branch", n)
		}
		fixed.Store(true)
		r.pass(20 * time.Minute)
		for _, typeURL := range types {
			check.Equal(t, "the name that the origin accepts now", r.current(typeURL, "1"), 1)
		}
	})
}

// TestB48_ResourcesLinger: while an origin ends all streams at once, clients leave and return. They find all resources,
// also those whose subscriptions are isolated meanwhile.
func TestB48_ResourcesLinger(t *testing.T) {
	var down atomic.Bool
	life := func() time.Duration {
		if down.Load() {
			return 0
		}
		return time.Hour
	}
	inBubbleWithLives(t, life, func(t *testing.T, r *rig) {
		names := numberedNames("e", 4)
		r.putAll(endpoints, "1", names...)
		r.follow(clusters, "a@1", "b@1")
		r.put(listeners, "l@1")
		subscribe := func() (leave func()) {
			c, l, e := r.watch.SubscribeAll(clusters), r.watch.SubscribeAll(listeners), r.watch.Subscribe(endpoints, names)
			return func() {
				r.watch.UnsubscribeAll(c)
				r.watch.UnsubscribeAll(l)
				r.watch.Unsubscribe(endpoints, e)
			}
		}
		leave := subscribe()
		r.pass(time.Minute)
		down.Store(true)
		r.Restart()
		for range 20 {
			r.pass(15 * time.Second)
			leave()
			r.pass(time.Second)
			got := fmt.Sprint(r.current(endpoints, "1"), " ", r.members(clusters), " ", r.members(listeners))
			if want := "4 a@1 b@1 l@1"; got != want {
				t.Fatalf("a returning client finds %s, want %s", got, want)
			}
			leave = subscribe()
		}
		check.Equal(t, "subscriptions were isolated", r.log.count("moving subscriptions") > 0, true)
	})
}

// TestB48_SubscriptionsOfClientsThatLeaveAtOnce: a client subscribes and leaves before the stream ends. Its subscription
// is not retried.
func TestB48_SubscriptionsOfClientsThatLeaveAtOnce(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Ends: bad}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, "a@1")
		for i := range 30 {
			names := r.watch.Subscribe(endpoints, []string{fmt.Sprint("bad", i)})
			runtime := r.watch.SubscribeAll(relaytest.RuntimeType)
			r.pass(soon)
			r.watch.Unsubscribe(endpoints, names)
			r.watch.UnsubscribeAll(runtime)
			r.pass(time.Second)
		}
		r.pass(20 * time.Second)
		r.expect("isolated", r.isolated(), "")
		streams := r.streams()
		r.pass(10 * time.Minute)
		if n := r.streams() - streams; n > 1 {
			t.Errorf("%d streams after the clients have left, want one for the comparison at most", n)
		}
	})
}

// TestB48_NamesAreForgottenWhileUnreachable: while the origin is unreachable, the relay keeps nothing of names that
// clients subscribed to meanwhile and that have lingered long enough.
func TestB48_NamesAreForgottenWhileUnreachable(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{Linger: time.Second}, func(t *testing.T, r *rig) {
		r.follow(clusters, "a@1")
		r.Stop()
		r.pass(time.Minute)
		var names []weak.Pointer[cache.Name]
		for i := range 100 {
			n := r.watch.Subscribe(endpoints, []string{fmt.Sprint("n", i)})
			names = append(names, weak.Make(n[0]))
			r.pass(soon)
			r.watch.Unsubscribe(endpoints, n)
			r.pass(soon)
		}
		r.pass(time.Minute)
		runtime.GC()
		kept := len(slices.DeleteFunc(names, func(n weak.Pointer[cache.Name]) bool { return n.Value() == nil }))
		if kept > 5 {
			t.Errorf("%d of 100 names are in memory, want almost none", kept)
		}
	})
}

// TestB48_WaitingNamesAreNotRequested: an isolated name counts as not requested while its stream is closed. Otherwise
// clients would be told after a while that it does not exist, although the origin could not answer.
func TestB48_WaitingNamesAreNotRequested(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Ends: bad, SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, "a@1")
		n := r.watch.Subscribe(clusters, []string{"bad"})[0]
		r.pass(5 * time.Minute)
		r.expect("isolated", r.isolated(), "Cluster/bad")
		check.Equal(t, "the view is connected", r.view.Generation().From(n).Connected, true)
		check.Equal(t, "the name is not requested", n.Asked().IsZero(), true)
	})
}

// TestB48_HeldRemovalsSurviveIsolation: the origin has lost all routes, and their removals are held. Then it ends all
// streams after a second, so that the names move between streams. They stay held, also on the new streams.
func TestB48_HeldRemovalsSurviveIsolation(t *testing.T) {
	var short atomic.Bool
	life := func() time.Duration {
		if short.Load() {
			return time.Second
		}
		return time.Hour
	}
	inBubbleWithLives(t, life, func(t *testing.T, r *rig) {
		routes := relaytest.RouteType
		names := numberedNames("r", 20)
		r.putAll(routes, "1", names...)
		r.follow(clusters, "a@1")
		r.watch.Subscribe(routes, names)
		r.pass(time.Minute)
		r.changeWhileDown(removing(routes, names...))
		r.pass(30 * time.Second)
		check.Equal(t, "held", heldNow(r.session), 20)
		short.Store(true)
		r.Restart()
		r.pass(20 * time.Second)
		check.Equal(t, "subscriptions were isolated", r.log.count("moving subscriptions") > 0, true)
		short.Store(false)
		r.pass(time.Minute)
		check.Equal(t, "held", heldNow(r.session), 20)
		check.Equal(t, "routes that clients have", r.current(routes, "1"), 20)
		check.Equal(t, "log lines", r.log.count(heldLine), 1)
		r.putAll(routes, "2", names...)
		for range 60 {
			r.pass(time.Minute)
			check.Equal(t, "routes that the origin has again", r.current(routes, "2"), 20)
		}
	})
}

// TestB48_RandomSubscriptionsThatEndStreams: whatever clients subscribe to and end, and however often the origin
// restarts, all that ends no stream is served, nothing else is isolated, and the streams are few.
func TestB48_RandomSubscriptionsThatEndStreams(t *testing.T) {
	rnd := rand.New(rand.NewPCG(47, 47))
	for round := range check.Rounds(20) {
		b := relaytest.Behaviour{Ends: bad, SotW: round%3 == 2, Wrap: true, SilentOnMissing: round%2 == 0}
		inBubble(t, b, upstream.Config{Linger: 20 * time.Second}, func(t *testing.T, r *rig) {
			types := []string{clusters, listeners, relaytest.RuntimeType}
			for _, typeURL := range []string{clusters, listeners, endpoints} {
				r.put(typeURL, "n0@1", "n1@1", "n2@1", "n3@1")
			}
			all, named := make(map[string]*cache.WildcardWatch), make(map[string]*cache.Name)
			for range 30 {
				switch rnd.IntN(10) {
				case 0:
					r.Restart()
				case 1, 2, 3:
					typeURL := types[rnd.IntN(len(types))]
					if w := all[typeURL]; w != nil {
						r.watch.UnsubscribeAll(w)
						delete(all, typeURL)
					} else {
						all[typeURL] = r.watch.SubscribeAll(typeURL)
					}
				default:
					name := []string{"n", "bad", "n"}[rnd.IntN(3)] + fmt.Sprint(rnd.IntN(4))
					if n := named[name]; n != nil {
						r.watch.Unsubscribe(endpoints, []*cache.Name{n})
						delete(named, name)
					} else {
						named[name] = r.watch.Subscribe(endpoints, []string{name})[0]
					}
				}
				r.pass([]time.Duration{0, soon, time.Second, 15 * time.Second}[rnd.IntN(4)])
			}
			r.pass(5 * time.Minute)
			for _, typeURL := range []string{clusters, listeners, endpoints} {
				r.put(typeURL, "n0@2", "n1@2", "n2@2", "n3@2")
			}
			r.pass(time.Second)
			var isolated, served []string
			for _, name := range slices.Sorted(maps.Keys(named)) {
				if bad(endpoints, name) {
					isolated = append(isolated, "ClusterLoadAssignment/"+name)
				} else {
					served = append(served, name+"@2")
				}
			}
			if all[relaytest.RuntimeType] != nil {
				isolated = append(isolated, "Runtime/*")
			}
			at := fmt.Sprint("round ", round)
			r.expect(at+": names", present(r.named(endpoints)), strings.Join(served, " "))
			for _, typeURL := range []string{clusters, listeners} {
				if all[typeURL] != nil {
					r.expect(at+": members of "+typeURL, r.members(typeURL), "n0@2 n1@2 n2@2 n3@2")
				}
			}
			alone := len(isolated) == 1 && len(served)+len(all) <= 1 // nothing to protect
			if !alone {
				r.expect(at+": isolated", r.isolated(), strings.Join(isolated, " "))
			}
			if n := len(r.State().Open()); n > 2 {
				t.Errorf("%s: %d open streams, want the shared one and one attempt", at, n)
			}
		})
	}
}

// TestB48_RequestsFitInAMessage: no request exceeds 4 MiB, whatever clients subscribe to. Delta requests are split. A SotW
// list cannot be: the names that do not fit are not requested, operators see them, and they are requested once there is
// room. Names that clients have a resource of are requested first, also on a new stream.
func TestB48_RequestsFitInAMessage(t *testing.T) {
	for _, sotw := range []bool{false, true} {
		for _, suffix := range []string{"", "?a=b"} {
			inBubble(t, relaytest.Behaviour{SotW: sotw, SilentOnMissing: true}, upstream.Config{Linger: time.Second}, func(t *testing.T, r *rig) {
				r.put(endpoints, "first@1", "last@1")
				r.follow(clusters, "c@1")
				r.watch.Subscribe(endpoints, []string{"first"})
				r.pass(time.Second)
				var large []string
				for i := range 1200 {
					large = append(large, fmt.Sprintf("large%d", i)+strings.Repeat("x", 4000)+suffix)
				}
				many := r.watch.Subscribe(endpoints, large)
				r.pass(2 * time.Second)
				last := r.watch.Subscribe(endpoints, []string{"last"})[0]
				r.pass(5 * time.Second)
				r.Restart()
				r.pass(time.Minute)
				if got := r.isolated(); (got != "") != sotw {
					t.Errorf("sotw=%v: isolated: %.60s…", sotw, got)
				}
				check.Equal(t, "log lines", r.log.count("names exceed the size of a SotW request") > 0, sotw)
				r.put(endpoints, "first@2")
				r.pass(time.Second)
				if got := present(r.named(endpoints)); !strings.HasPrefix(got, "first@") || !sotw && got != "first@2 last@1" {
					t.Errorf("sotw=%v: names %.60s…", sotw, got)
				}
				r.watch.Unsubscribe(endpoints, many)
				r.pass(time.Minute)
				r.expect("isolated once there is room", r.isolated(), "")
				check.Equal(t, "the last name is requested", last.Asked().IsZero(), false)
				for _, s := range r.State().Streams {
					for i, req := range s.Requests {
						size := proto.Size(req.Message)
						if req.SotW != nil {
							size = proto.Size(req.SotW)
						}
						if size > 4<<20 {
							t.Errorf("sotw=%v: stream %d, request %d has %d bytes", sotw, s.ID, i, size)
						}
					}
				}
			})
		}
	}
}
