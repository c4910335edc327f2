package upstream_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

const routes = relaytest.RouteType

// conversations returns the requests of the open streams, in the format of conversation.
func (r *rig) conversations() string {
	var out []string
	for _, s := range r.State().Open() {
		out = append(out, r.conversation(s.ID))
	}
	slices.Sort(out) // the origin may see the auxiliary stream first
	return strings.Join(out, " | ")
}

// carried returns the subscriptions of each open stream, as the origin records them.
func (r *rig) carried() string {
	var streams []string
	for _, s := range r.State().Open() {
		var words []string
		for typeURL, t := range s.Types {
			short := relaytest.ShortType(typeURL)
			if t.Wildcard {
				words = append(words, short+" *")
			}
			for name := range t.Names {
				words = append(words, short+" "+name)
			}
		}
		slices.Sort(words)
		streams = append(streams, strings.Join(words, ", "))
	}
	slices.Sort(streams) // the origin may see the auxiliary stream first
	return strings.Join(streams, " | ")
}

// A mixedDemand is the demand of a group of Envoys and gRPC clients. Each function subscribes and returns a function
// that unsubscribes. Envoy does not subscribe to a wildcard of routes, but other clients may.
type mixedDemand map[string]func(w *cache.Watch) (leave func())

// mixed returns a demand for clusters, listeners and routes by wildcard and by name, and for endpoints by name.
func mixed() mixedDemand {
	names := func(typeURL, name string) func(*cache.Watch) func() {
		return func(w *cache.Watch) func() {
			n := w.Subscribe(typeURL, []string{name})
			return func() { w.Unsubscribe(typeURL, n) }
		}
	}
	all := func(typeURL string) func(*cache.Watch) func() {
		return func(w *cache.Watch) func() {
			wildcard := w.SubscribeAll(typeURL)
			return func() { w.UnsubscribeAll(wildcard) }
		}
	}
	return mixedDemand{
		"Cluster *":             all(clusters),
		"Cluster only":          names(clusters, "only"),
		"Listener *":            all(listeners),
		"Listener only":         names(listeners, "only"),
		"ClusterLoadAssignment": names(endpoints, "only"),
		"RouteConfiguration":    names(routes, "only"),
		"RouteConfiguration *":  all(routes),
	}
}

// TestH05_RandomDemandDecidesTheStream: wildcards of clusters and listeners, and names of endpoints and routes, use the main
// stream. The order of requests, reconnects and the end of the other form do not matter.
func TestH05_RandomDemandDecidesTheStream(t *testing.T) {
	const (
		envoys = "Cluster *, ClusterLoadAssignment only, Listener *, RouteConfiguration only"
		others = "Cluster only, Listener only, RouteConfiguration *"
		named  = "Cluster only, ClusterLoadAssignment only, Listener only, RouteConfiguration only"
	)
	cfg := upstream.Config{Linger: 20 * time.Second}
	rnd := rand.New(rand.NewPCG(5, 5))
	for i := range check.Rounds(12) {
		inBubble(t, relaytest.Behaviour{SotW: i%3 == 2, Wrap: true}, cfg, func(t *testing.T, r *rig) {
			for _, typeURL := range []string{clusters, endpoints, listeners, routes} {
				r.put(typeURL, "only@1", "other@1")
			}
			demand, leave := mixed(), make(map[string]func())
			order := slices.Sorted(maps.Keys(demand))
			rnd.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			for _, what := range order {
				leave[what] = demand[what](r.watch)
				r.pass(time.Duration(rnd.IntN(3)) * time.Second)
			}
			at := fmt.Sprint("subscribed in the order ", strings.Join(order, ", "))
			r.pass(time.Minute)
			r.expect(at, r.carried(), envoys+" | "+others)
			r.Restart()
			r.pass(time.Minute)
			r.expect(at+", after a restart", r.carried(), envoys+" | "+others)
			for _, what := range order {
				if strings.HasSuffix(what, "*") {
					leave[what]()
					r.pass(time.Duration(rnd.IntN(3)) * time.Second)
				}
			}
			r.pass(3 * time.Minute)
			r.expect(at+", without wildcards", r.carried(), named)
			for _, what := range order {
				if strings.HasSuffix(what, "*") {
					demand[what](r.watch)
				} else {
					leave[what]()
				}
			}
			r.pass(3 * time.Minute)
			r.expect(at+", without names", r.carried(), "Cluster *, Listener *, RouteConfiguration *")
			for _, typeURL := range []string{clusters, listeners, routes} {
				r.expect(at+", members of "+typeURL, r.members(typeURL), "only@1 other@1")
				r.expect(at+", names of "+typeURL, r.named(typeURL), "")
			}
		})
	}
}

// TestH05_MovedNamesKeepResources: names that move to the auxiliary stream resume there with the cached versions, and
// are served from the cache until the origin responds. Late responses on the old stream apply to neither form, and
// changes since are delivered.
func TestH05_MovedNamesKeepResources(t *testing.T) {
	var onResponse atomic.Pointer[func()]
	cfg := upstream.Config{Trace: func(upstream.Received) upstream.Trace {
		if f := onResponse.Swap(nil); f != nil {
			(*f)()
		}
		return nil
	}}
	inBubble(t, relaytest.Behaviour{Manual: true}, cfg, func(t *testing.T, r *rig) {
		r.watch.Subscribe(clusters, []string{"a", "b", "c"})
		r.watch.Subscribe(routes, []string{"r"})
		old := r.Accept(t.Context())
		old.Send(response(clusters, "a@1", "b@1", "c@1"))
		old.Send(response(routes, "r@1"))
		r.pass(time.Minute)
		before := r.view.Generation().Type(clusters).ByName.Last()
		// A client subscribes to the wildcard while the relay applies the first of 20 responses.
		wildcard := func() {
			r.watch.SubscribeAll(clusters)
			time.Sleep(time.Second)
		}
		onResponse.Store(&wildcard)
		for range 20 {
			old.Send(response(clusters, "late@1"))
		}
		mainStream, names := r.Accept(t.Context()), r.Accept(t.Context())
		r.pass(time.Minute)
		if mainStream.State().Types[routes] == nil {
			mainStream, names = names, mainStream
		}
		r.expect("streams", r.conversations(), "[cds node +a +b +c a=1 b=1 c=1] | [cds node] [rds +r r=1]")
		r.expect("names before the first response", r.named(clusters), "a@1 b@1 c@1")
		if last := r.view.Generation().Type(clusters).ByName.Last(); last != before {
			t.Errorf("the move changed the named resources: position %d, want %d", last, before)
		}
		mainStream.Send(response(clusters, "d@1"))
		gone := response(clusters, "a@2")
		gone.RemovedResources = []string{"b"}
		names.Send(gone)
		r.membersAfter(time.Minute, "members", clusters, "d@1")
		r.expect("names", r.named(clusters), "a@2 c@1")
		r.expect("route", r.named(routes), "r@1")
	})
}
