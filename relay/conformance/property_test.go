package conformance_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestD4_RandomInvariants checks invariants with random sequences of origin changes and restarts, and of client
// subscriptions, NACKs, reconnects and stalls. The relay runs alone or in a chain of two (B.41).
//
//  1. Convergence: each client ends with the origin's resources for its group and subscriptions, in both variants.
//  2. No invented removal: a resource that a client loses was removed by the origin.
//  3. No resend: nothing is sent in an hour without changes.
//  4. Uniqueness: relaytest.Client checks it on every response.
//  5. Versions: equal sets have equal version_info, different sets have different ones.
//  7. Order: a route arrives after the cluster that it names, even if changes are merged, and after the
//     endpoints that the origin set before it. A changed EDS cluster is followed by its endpoints.
//  8. Isolation: a client receives no resource of another group.
//  9. Upstream: each response of the origin is answered once. The subscriptions at the origin are those of
//     the clients, plus those that linger.
//
// 10. Byte identity: each resource is sent as the origin sent it.
//
// TestC11 checks the cost of a stalled client (11). Some names are xdstp names, which both groups share (R130) and
// a glob matches. Some resources must not be cached (R125).
func TestD4_RandomInvariants(t *testing.T) {
	checkRandom(t, 8, func(rt *rapid.T) {
		s := script{
			relays:   rapid.IntRange(1, 2).Draw(rt, "relays"),
			interval: rapid.SampledFrom(sceneIntervals).Draw(rt, "push interval"),
			behaviour: relaytest.Behaviour{
				SilentOnMissing: rapid.Bool().Draw(rt, "silent on missing"),
				IgnoreIRV:       rapid.Bool().Draw(rt, "ignore versions"),
				EmptyVersions:   rapid.Bool().Draw(rt, "empty versions"),
				SotW:            rapid.Bool().Draw(rt, "SotW"),
				Wrap:            true, // in SotW, for acmeType
				NamedOnly:       func(_, name string) bool { return isShared(name) },
			},
			steps: rapid.SliceOfN(rapid.Custom(drawStep), 5, 25).Draw(rt, "steps"),
		}
		runScene(t, rt, func(sc *scene) { sc.run(s) })
	})
}

type script struct {
	relays    int    // in a row
	interval  string // TENDER_MIN_PUSH_INTERVAL
	behaviour relaytest.Behaviour
	steps     []step
}

// A step is one event. Which of its numbers are used depends on what.
type step struct {
	what            string
	client, typ, at int
	n               int
}

func (s step) String() string {
	return fmt.Sprintf("%s(%d,%d,%d,%d)", s.what, s.client, s.typ, s.at, s.n)
}

func drawStep(t *rapid.T) step {
	return step{
		what: rapid.SampledFrom([]string{
			"put", "put", "put", "remove", "swap", "warm", "scale", "subscribe", "subscribe", "wildcard", "unsubscribe",
			"unwildcard",
			"reconnect", "pause", "resume", "reject", "restart", "away", "pass", "check",
		}).Draw(t, "what"),
		client: rapid.IntRange(0, 3).Draw(t, "client"),
		typ:    rapid.IntRange(0, len(sceneTypes)-1).Draw(t, "type"),
		at:     rapid.IntRange(0, 7).Draw(t, "name"),
		n:      rapid.IntRange(0, 1000).Draw(t, "n"),
	}
}

const acmeType = "type.googleapis.com/acme.Foo"

var sceneTypes = []string{
	relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, relaytest.RouteType, acmeType,
}

// sceneIntervals are values of TENDER_MIN_PUSH_INTERVAL; "off" is more likely.
var sceneIntervals = []string{"off", "off", "off", "cds=1s", "*=1s", "cds=2s,lds=1s,rds=3s,eds=500ms", "lds=3s,rds=1s"}

// A scene is one run of a script. It stands in for the test, so that rapid can shrink a failure.
type scene struct {
	testing.TB

	mu       sync.Mutex
	failures []string

	origin     *relaytest.Origin
	contents   [2]*relaytest.Content // by group
	relay      *running
	clients    []*actor
	noRemovals bool                        // the origin may omit removals
	sotwOrigin bool                        // the origin omits removals of types that are not complete sets
	existed    [2]map[string]bool          // set at some time: type URL and name, by group
	removed    [2]map[string]bool          // removed at some time: type URL and name, by group
	routed     map[relaytest.Digest]string // routes to the cluster that they name
	scaled     map[relaytest.Digest]revision
	owner      map[relaytest.Digest]int  // the group of each resource that was ever set
	shared     map[relaytest.Digest]bool // resources that both groups may receive
	counter    int
	out        io.Writer // of the relay's log; nil discards it
}

// An actor is a client, and its expected state.
type actor struct {
	*relaytest.Client
	variant      relaytest.Variant
	group        int
	subscribed   map[string]map[string]bool
	unsubscribed map[string]bool // type URL and name, of subscriptions that it ended
	paused       bool
	ordered      bool // it subscribed to clusters before routes

	mu       sync.Mutex
	nackNext bool // NACK the next response
	nacked   bool // it sent a NACK since the last check
}

func (sc *scene) Errorf(format string, args ...any) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.failures = append(sc.failures, fmt.Sprintf(format, args...))
}

func (sc *scene) Fatalf(format string, args ...any) {
	sc.Errorf(format, args...)
	panic(errStop)
}

func (sc *scene) Fatal(args ...any) { sc.Fatalf("%s", fmt.Sprint(args...)) }

func (sc *scene) Output() io.Writer {
	if sc.out != nil {
		return sc.out
	}
	return io.Discard
}

// runScene runs a random sequence in a bubble, and fails rt with the failures of its scene.
func runScene(t *testing.T, rt *rapid.T, run func(sc *scene)) {
	t.Helper()
	var failures []string
	synctest.Test(t, func(t *testing.T) {
		sc := &scene{TB: t}
		defer func() {
			failures = sc.failures
			if r := recover(); r != nil && r != any(errStop) {
				panic(r)
			}
		}()
		run(sc)
	})
	if len(failures) > 0 {
		rt.Fatalf("%s", strings.Join(failures, "\n"))
	}
}

// errStop is what Fatalf panics with.
var errStop = errors.New("stop")

// run plays a script, and checks the rules at its end.
func (sc *scene) run(s script) {
	sc.noRemovals = !s.behaviour.SotW && s.behaviour.SilentOnMissing && s.behaviour.IgnoreIRV
	sc.sotwOrigin = s.behaviour.SotW
	sc.origin = relaytest.NewOrigin(sc, relaytest.OriginOptions{Memory: true, Behaviour: s.behaviour})
	sc.contents[0] = sc.origin.Content
	sc.contents[1] = sc.origin.For(func(n *corepb.Node) bool { return n.GetUserAgentName() != "envoy" })
	sc.existed, sc.removed = [2]map[string]bool{{}, {}}, [2]map[string]bool{{}, {}}
	sc.scaled = map[relaytest.Digest]revision{}
	sc.routed, sc.owner, sc.shared = map[relaytest.Digest]string{}, map[relaytest.Digest]int{}, map[relaytest.Digest]bool{}
	// No cold timeout, since these clients do not reconnect on their own.
	interval := "TENDER_MIN_PUSH_INTERVAL=" + s.interval
	sc.relay = start(sc, sc.origin, "TENDER_COLD_WAIT=10m", interval)
	for range s.relays - 1 {
		sc.relay = sc.relay.downstreamRelay("TENDER_COLD_WAIT=10m", interval)
	}
	for group := range sc.contents {
		sc.put(group, acmeType, "always")
	}
	for i := range 4 {
		sc.join(relaytest.Variant(i%2), i/2)
	}
	sc.joinOrdered()
	sc.waitOrdered()
	for _, st := range s.steps {
		sc.step(st)
	}
	sc.check()
	sc.closeClients()
}

// join adds a client of a group.
func (sc *scene) join(v relaytest.Variant, group int) {
	a := &actor{variant: v, group: group, subscribed: map[string]map[string]bool{}, unsubscribed: map[string]bool{}}
	node := relaytest.EnvoyNode(fmt.Sprintf("envoy-%d", len(sc.clients)))
	if group == 1 {
		node = relaytest.GRPCNode(fmt.Sprintf("grpc-%d", len(sc.clients)))
	}
	a.Client = sc.relay.Client(relaytest.ClientOptions{
		Variant: v, Node: node, AutoAck: true,
		Reject: func(*relaytest.Response) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.nackNext {
				a.nackNext, a.nacked = false, true
				return errors.New("not to my liking")
			}
			return nil
		},
	})
	sc.clients = append(sc.clients, a)
	a.subscribe(acmeType, "always") // a first response needs a resource
}

// joinOrdered adds two clients that subscribe as an Envoy does, clusters before routes. No step changes their
// subscriptions, so a route must not reach them before its cluster.
func (sc *scene) joinOrdered() {
	for n := range 3 {
		sc.swap(0, n)
		sc.scale(0, n)
	}
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		sc.join(v, 0)
		a := sc.clients[len(sc.clients)-1]
		a.ordered = true
		a.subscribe(relaytest.ClusterType, "*")
		a.WaitState(sc.Context(), func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) >= 6 })
		for n := range 3 {
			a.subscribe(relaytest.RouteType, fmt.Sprintf("swap%d", n))
			a.subscribe(relaytest.RouteType, fmt.Sprintf("scaled%d", n))
			a.subscribe(relaytest.EndpointType, warmName(n))
		}
	}
}

// waitOrdered waits until the ordered clients have their routes. A first response for a new subscription does not
// wait for the ACK of clusters (B.11), so it may precede a changed cluster.
func (sc *scene) waitOrdered() {
	for _, a := range sc.clients {
		if a.ordered {
			a.WaitState(sc.Context(), func(s relaytest.State) bool { return len(s[relaytest.RouteType]) >= 6 })
		}
	}
}

// sharer is the group that has the shared names. The relay subscribes to them with its own node, which is no
// Envoy.
const sharer = 1

func name(i int) string { return fmt.Sprintf("n%d", i) }

// sceneName returns the name for a number: five plain names, two shared ones, and for 7 the glob of the shared
// ones.
func sceneName(typeURL string, i int) string {
	if i < 5 {
		return name(i)
	}
	return "xdstp://x/" + strings.TrimPrefix(typeURL, "type.googleapis.com/") + "/d/" + [...]string{"a", "b",
		"*"}[min(i-5, 2)]
}

func isShared(name string) bool { return strings.HasPrefix(name, "xdstp:") }

// isUncached reports whether a resource must not be cached (R125).
func isUncached(name string) bool { return name == "n4" || strings.HasSuffix(name, "/d/b") }

// contentGroup returns the group whose content has a name that a client of group subscribes to.
func contentGroup(group int, name string) int {
	if isShared(name) {
		return sharer
	}
	return group
}

// wildcardOf returns the glob or wildcard that a name belongs to.
func wildcardOf(name string) string {
	if glob, ok := wire.GlobOf(name); ok {
		return glob
	}
	return "*"
}

// resource returns a resource of a group with new content.
func (sc *scene) resource(group int, typeURL, name string) proto.Message {
	sc.counter++
	mark := fmt.Sprintf("g%d-%d", group, sc.counter)
	switch typeURL {
	case relaytest.ClusterType:
		return relaytest.StaticCluster(name, fmt.Sprintf("127.0.0.1:%d", 1000+sc.counter))
	case relaytest.EndpointType:
		return relaytest.Endpoints(name, fmt.Sprintf("127.0.0.%d:%d", 1+group, 1000+sc.counter))
	case relaytest.ListenerType:
		return relaytest.Listener(name, mark)
	case relaytest.RouteType:
		return relaytest.Route(name, []string{mark}, "")
	default:
		return relaytest.Opaque(typeURL, name, []byte(mark))
	}
}

// put sets new content of a resource.
func (sc *scene) put(group int, typeURL, name string) {
	sc.set(group, typeURL, name, sc.resource(group, typeURL, name))
}

// set sets a resource in the content of its group, and records it.
func (sc *scene) set(group int, typeURL, name string, msg proto.Message) {
	group = contentGroup(group, name)
	sc.existed[group][typeURL+"/"+name] = true
	sc.owner[relaytest.DigestOf(msg)] = group
	if isShared(name) {
		sc.shared[relaytest.DigestOf(msg)] = true
	}
	sc.contents[group].Apply(func(tx *relaytest.Tx) {
		tx.Set(typeURL, name, msg, "")
		if isUncached(name) {
			tx.Uncached(typeURL, name)
		}
	})
}

// warm changes an EDS cluster and leaves its endpoints.
func (sc *scene) warm(group, n int) {
	sc.counter++
	c := relaytest.Cluster(warmName(n))
	c.AltStatName = fmt.Sprintf("g%d-%d", group, sc.counter)
	sc.set(group, relaytest.ClusterType, warmName(n), c)
}

// scale changes an EDS cluster, its endpoints and a route that needs these endpoints, in this order. The ordered
// clients do not read meanwhile.
func (sc *scene) scale(group, n int) {
	for _, a := range sc.clients {
		if a.ordered {
			a.Pause()
			defer a.Resume()
		}
	}
	defer synctest.Wait()
	sc.warm(group, n)
	rev := revision{warmName(n), sc.counter}
	endpoints := relaytest.Endpoints(rev.name, fmt.Sprintf("127.1.%d.%d:1", rev.n/250, rev.n%250))
	to := relaytest.Route(fmt.Sprintf("scaled%d", n%3), []string{fmt.Sprint(rev.n)}, rev.name)
	sc.scaled[relaytest.DigestOf(endpoints)], sc.scaled[relaytest.DigestOf(to)] = rev, rev
	sc.set(group, relaytest.EndpointType, rev.name, endpoints)
	sc.set(group, relaytest.RouteType, fmt.Sprintf("scaled%d", n%3), to)
}

// A revision is that of endpoints, or the one that a route needs.
type revision struct {
	name string // of the endpoints
	n    int
}

func warmName(n int) string { return fmt.Sprintf("warm%d", n%3) }

func (sc *scene) remove(group int, typeURL, name string) {
	group = contentGroup(group, name)
	sc.removed[group][typeURL+"/"+name] = true
	sc.contents[group].Remove(typeURL, name)
}

// step plays one step.
func (sc *scene) step(st step) {
	a, typeURL := sc.clients[st.client], sceneTypes[st.typ]
	n, content := sceneName(typeURL, st.at), sceneName(typeURL, min(st.at, 6)) // a glob is not a resource
	group := st.n % 2
	switch st.what {
	case "put":
		sc.put(group, typeURL, content)
	case "remove":
		sc.remove(group, typeURL, content)
	case "swap":
		sc.swap(group, st.n)
	case "warm":
		sc.warm(0, st.n)
	case "scale":
		sc.scale(0, st.n)
	case "subscribe":
		a.subscribe(typeURL, n)
	case "wildcard":
		if a.group == 0 && typeURL == relaytest.RouteType {
			return // subscribed by name too: two streams to the origin have no order between them (B.5)
		}
		a.subscribe(typeURL, "*")
	case "unsubscribe":
		a.unsubscribe(typeURL, n)
	case "unwildcard":
		a.unsubscribe(typeURL, "*")
	case "reconnect":
		a.resume()
		a.Reconnect(sc.relay.Conn())
	case "pause":
		a.paused = true
		a.Pause()
	case "resume":
		a.resume()
	case "reject":
		a.mu.Lock()
		a.nackNext = true
		a.mu.Unlock()
	case "restart":
		sc.origin.Restart()
	case "away":
		sc.origin.Stop()
		time.Sleep(time.Duration(st.n) * time.Second / 10)
		sc.put(group, typeURL, content)
		sc.remove(group, typeURL, sceneName(typeURL, (st.at+1)%7))
		sc.origin.Restart()
	case "pass":
		time.Sleep(time.Duration(st.n) * 20 * time.Millisecond)
	case "check":
		sc.check()
	}
}

// swap points a route to a new cluster and removes the old one, in the order that keeps traffic flowing.
func (sc *scene) swap(group, n int) {
	route := fmt.Sprintf("swap%d", n%3)
	sc.counter++
	fresh := fmt.Sprintf("%s-%d", route, sc.counter)
	var old []string
	for _, have := range sc.contents[group].Resources().Names(relaytest.ClusterType) {
		if strings.HasPrefix(have, route+"-") {
			old = append(old, have)
		}
	}
	sc.set(group, relaytest.ClusterType, fresh, relaytest.StaticCluster(fresh, "127.0.0.1:80"))
	to := relaytest.Route(route, []string{"*"}, fresh)
	sc.routed[relaytest.DigestOf(to)] = fresh
	sc.set(group, relaytest.RouteType, route, to)
	for _, name := range old {
		sc.remove(group, relaytest.ClusterType, name)
	}
}

func (a *actor) subscribe(typeURL, n string) {
	if a.subscribed[typeURL] == nil {
		a.subscribed[typeURL] = map[string]bool{}
	}
	a.subscribed[typeURL][n] = true
	a.Subscribe(typeURL, n)
}

func (a *actor) unsubscribe(typeURL, n string) {
	if !a.subscribed[typeURL][n] {
		return
	}
	delete(a.subscribed[typeURL], n)
	a.unsubscribed[typeURL+"/"+n] = true
	a.Unsubscribe(typeURL, n)
}

func (a *actor) resume() {
	if a.paused {
		a.paused = false
		a.Resume()
	}
}
