package upstream_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

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
