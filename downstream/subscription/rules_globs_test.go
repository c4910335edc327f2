package subscription

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A globFixture is a view of a directory of an origin, for clients that subscribe by a glob, by name and by the
// wildcard of the type.
type globFixture struct {
	t    *testing.T
	view *cache.View
	w    *cache.Writer
}

const (
	lobby     = "xdstp://x/envoy.config.listener.v3.Listener/lobby/"
	lobbyGlob = lobby + "*"
)

var lobbyKey = cache.Collection(wire.ListenerType, lobbyGlob)

// newGlobFixture returns a fixture with a client that subscribes to everything.
func newGlobFixture(t *testing.T) *globFixture {
	view, w := cache.New(cache.Config{})
	gw := &globFixture{t: t, view: view, w: w}
	watch := view.Watch()
	watch.SubscribeAll(lobbyKey)
	watch.SubscribeAll(wire.ListenerType)
	watch.Subscribe(wire.ListenerType, []string{lobby + "a", lobby + "alias", "plain", lobby + "gone"})
	w.TakeDemand()
	w.SetConnected(true)
	return gw
}

// say makes the origin send resources of a set, each in the form name@content.
func (gw *globFixture) say(kind cache.Kind, key string, resources ...*wire.Resource) {
	gw.w.Apply(kind, wire.Update{TypeURL: key, Resources: resources})
	gw.w.SetPhase(key, cache.Confirmed)
}

func (gw *globFixture) resource(name, content string, aliases ...string) *wire.Resource {
	gw.t.Helper()
	r := check.Must(wire.NewResource(wire.ListenerType, name, content, []byte(content)))
	r.Aliases = aliases
	return r
}

func (gw *globFixture) deny(kind cache.Kind, key, name string) {
	gw.w.Apply(kind, wire.Update{TypeURL: key, Errors: []*wire.ResourceError{wire.NewResourceError(name, codes.PermissionDenied, "no")}})
}

// fill makes the origin send two members that are also sent by name, one of them with other content, one member that is
// also in the wildcard set, and further resources of each kind.
func (gw *globFixture) fill() {
	a, b, c := gw.resource(lobby+"a", "1"), gw.resource(lobby+"b", "1", lobby+"alias"), gw.resource(lobby+"c", "1")
	gw.say(cache.Wildcard, lobbyKey, a, b, c)
	gw.say(cache.Wildcard, wire.ListenerType, gw.resource("x", "1"), c, a)
	gw.w.Apply(cache.ByName, wire.Update{TypeURL: wire.ListenerType, Resources: []*wire.Resource{
		gw.resource(lobby+"a", "2"), b, gw.resource("plain", "1"),
	}, Removed: []string{lobby + "gone"}})
}

// A version covers each resource once, even if the client sees it through several subscriptions, and regardless of the
// order in which it subscribed and unsubscribed (B.2).
func TestB2_VersionCountsGlobMembersOnce(t *testing.T) {
	gw := newGlobFixture(t)
	gw.fill()
	asks := []string{lobbyGlob, lobby + "a", lobby + "alias", lobby + "gone", "plain", "*"}
	versions := make(map[int]map[string]string) // by subscriptions; the histories by version
	steps := [][]int{{0x3f}, {0}, {1}, {2}, {4}, {0x20}, {0x1e}, {1, 0x3f}, {0x3f, 1}, {2, 1}}
	for _, history := range steps {
		for want := range 1 << len(asks) {
			s := newClient(gw.view, wire.ListenerType, false)
			for i, subset := range append(history[:len(history):len(history)], want) {
				var names []string
				for bit, name := range asks {
					if subset&(1<<bit) != 0 {
						names = append(names, name)
					}
				}
				if len(names) == 0 {
					names = []string{"none"} // an empty list may mean the wildcard
				}
				s.list(gw.view, gw.w, uint64(i+1), names...)
			}
			g := gw.view.Generation()
			if got, set := s.visibleAt(g).sum(), (sets{s.visibleAt(g), time.Now()}).ownSet(false); got.Version("") != set.Body.Version() {
				t.Fatalf("%#x, then %#x: the sum is %v, and that of the set %v", history, want, got.Version(""), set.Body.Version())
			}
			if versions[want] == nil {
				versions[want] = make(map[string]string)
			}
			versions[want][s.visibleAt(g).sum().Version("")] = fmt.Sprintf("%#x", history)
			s.Close()
		}
	}
	for want, of := range versions {
		if len(of) != 1 {
			t.Errorf("subscriptions %#x have %d versions, want 1; by history: %v", want, len(of), of)
		}
	}
}

// The version covers only resources that the client was sent, even if the origin denies a resource in one of two
// subscriptions that include it (R137).
func TestB2_VersionExcludesDeniedGlobMembers(t *testing.T) {
	for name, deny := range map[string]func(gw *globFixture){
		"the glob's member":     func(gw *globFixture) { gw.deny(cache.Wildcard, lobbyKey, lobby+"c") },
		"the name":              func(gw *globFixture) { gw.deny(cache.ByName, wire.ListenerType, lobby+"a") },
		"the wildcard's member": func(gw *globFixture) { gw.deny(cache.Wildcard, wire.ListenerType, lobby+"c") },
		"the glob's and the name": func(gw *globFixture) {
			gw.deny(cache.Wildcard, lobbyKey, lobby+"a")
			gw.deny(cache.ByName, wire.ListenerType, lobby+"a")
		},
	} {
		for _, asks := range [][]string{{lobbyGlob}, {lobbyGlob, lobby + "a"}, {lobbyGlob, "*"}, {lobbyGlob, lobby + "a", "*"}} {
			gw := newGlobFixture(t)
			gw.fill()
			deny(gw)
			s := newClient(gw.view, wire.ListenerType, false)
			r := s.list(gw.view, gw.w, 1, asks...)
			if r == nil {
				t.Fatalf("%s, %q: nothing was sent", name, asks)
			}
			if got := s.visibleAt(gw.view.Generation()).sum().Version(""); got != r.Version() {
				t.Errorf("%s, %q: the sum is %v, and that of the set that was sent %v", name, asks, got, r.Version())
			}
		}
	}
}

// A type and its globs share one pending response. None of them starves because of another that has a set in many parts
// or endless changes.
func TestB12_GlobsAndTheirTypeTakeTurns(t *testing.T) {
	const (
		dirs = "xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/"
		many = 20
	)
	for _, delta := range []bool{true, false} {
		view, w := cache.New(cache.Config{})
		w.SetConnected(true)
		sub := newClient(view, wire.EndpointType, delta)
		sub.Settings.ResponseBytes = 1
		globs := []string{dirs + "a/*", dirs + "b/*"}
		sub.ApplyRequest(&wire.Request{Delta: delta, Subscribe: append([]string{"*"}, globs...)}, time.Now())
		parts := append([]*Subscription{sub}, sub.globs...)
		version, nonces := 0, 0
		change := func(key, dir string, names int) {
			u := wire.Update{TypeURL: key}
			version++
			for i := range names {
				r := check.Must(wire.NewResource(wire.EndpointType, fmt.Sprint(dir, i), "", fmt.Append(nil, version)))
				u.Resources = append(u.Resources, r)
			}
			w.Apply(cache.Wildcard, u)
			w.SetPhase(key, cache.Confirmed)
		}
		dir := map[string]string{wire.EndpointType: "", parts[1].Key: dirs + "a/", parts[2].Key: dirs + "b/"}
		// respond sends the next response, and returns the part that it belongs to.
		respond := func() (to *Subscription) {
			g, now := view.Generation(), time.Now()
			l := &Turn{Newest: g, Cut: g, Now: now}
			for _, glob := range globs {
				sub.WakeGlob(glob)
			}
			for part := range sub.Parts() {
				if sub.Blocked(now) {
					continue
				}
				if r, _, _ := part.Next(l, g.Seq); r.Body != nil {
					to, nonces = part, nonces+1
					part.RecordSent(&r, fmt.Sprint(nonces), view, 0, now)
				}
			}
			sub.EndTurn(l)
			sub.ApplyRequest(&wire.Request{Delta: delta, Nonce: sub.Nonce()}, now)
			return to
		}
		drain := func() (responses int) {
			for respond() != nil {
				responses++
			}
			return responses
		}
		for _, p := range parts {
			change(p.Key, dir[p.Key], many)
		}
		for round := range many {
			told := make(map[*Subscription]bool)
			for range parts {
				told[respond()] = true
			}
			if len(told) != len(parts) || told[nil] {
				t.Fatalf("delta %t, set in parts, round %d: %d of 3 subscriptions were sent a response", delta, round, len(told))
			}
		}
		if drain(); sub.At(view.Generation()).Behind() {
			t.Fatalf("delta %t: the set was not sent completely: %v", delta, sub)
		}
		for _, busy := range parts {
			for _, p := range parts {
				change(p.Key, dir[p.Key], 1)
			}
			told := make(map[*Subscription]bool)
			for range 2 * len(parts) {
				change(busy.Key, dir[busy.Key], 1)
				told[respond()] = true
			}
			if delete(told, nil); len(told) != len(parts) {
				t.Errorf("delta %t: while %q changes constantly, %d of 3 subscriptions are sent a response", delta, busy.glob, len(told))
			}
			drain()
		}
	}
}
