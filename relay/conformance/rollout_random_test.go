package conformance_test

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// randomStage is how long each of the two stages of a rolloutHistory lasts: that of canary*, and that of second*.
const randomStage = time.Minute

// TestI_RolloutInvariants has two replicas distribute the changes of an origin in stages, in random histories of changes, of operators, of
// restarts, and of clients that move between the replicas. It holds them to this:
//
//   - I1: no client is served a change before the stages ahead of its own have lasted, unless an operator promoted it, and what canaries
//     refuse reaches nobody else, also when a relay has restarted (I10), or for unrelated changes (I11);
//   - I2, I6: once all is answered, what a client has of types that wait is what the origin had at one time;
//   - I4: changes of endpoints are served at once, unless the replica is frozen (I13);
//   - I5: who has a cluster has its endpoints;
//   - I8: at the same replica, clients of a stage have the same;
//   - I9: what no operator keeps back is everywhere in time.
func TestI_RolloutInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawRolloutStep), 5, 25).Draw(rt, "steps")
		var failures []string
		synctest.Test(t, func(t *testing.T) {
			h := &rolloutHistory{scene: scene{TB: t}, bad: make(map[relaytest.Digest]bool)}
			defer func() { failures = h.failures }()
			h.run(steps)
		})
		if len(failures) > 0 {
			rt.Fatalf("%s\n%v", strings.Join(failures, "\n"), steps)
		}
	})
}

// A rolloutStep is what happens, and how long it is quiet then.
type rolloutStep struct {
	what    string
	replica int
	client  int // of those that move
	name    int
	pause   time.Duration
}

func (s rolloutStep) String() string {
	return fmt.Sprintf("%s(%d,%d,%d)+%v", s.what, s.replica, s.client, s.name, s.pause)
}

func drawRolloutStep(t *rapid.T) rolloutStep {
	return rolloutStep{
		what: rapid.SampledFrom([]string{
			"cluster", "cluster", "listener", "listener", "route", "endpoints", "endpoints", "swap", "back", "bad", "bad", "toggle",
			"origin", "restart", "restart", "down", "move", "move", "move", "promote", "all", "abort", "resume", "undo", "freeze", "thaw", "pass",
		}).Draw(t, "what"),
		replica: rapid.IntRange(0, 1).Draw(t, "replica"),
		client:  rapid.IntRange(0, 2).Draw(t, "client"),
		name:    rapid.IntRange(0, 1).Draw(t, "name"),
		pause:   rapid.SampledFrom([]time.Duration{time.Second, 3 * time.Second, 20 * time.Second, 65 * time.Second, 5 * time.Minute}).Draw(t, "pause"),
	}
}

// A rolloutHistory is an origin, two replicas and nine clients: of each stage one that stays at each replica, and one that moves.
type rolloutHistory struct {
	scene
	w        *world
	replicas [2]*rolloutReplica
	clients  []*randomClient

	has      map[string]map[string]int // by type and name, the revision that the origin has
	cuts     []string                  // what it had of types that wait, oldest first
	began    map[string]time.Time      // when the origin first had what it has of a name: "cds a@2"
	promoted time.Time                 // when an operator has promoted something last
	rev      int
	tainted  bool // an operator may have promoted what canaries refuse

	connected time.Time // when a replica has connected to the origin last
	held      bool      // a removal may have been held back, as it came soon after or while the origin was away (H02)

	mu  sync.Mutex
	bad map[relaytest.Digest]bool // guarded by mu; what canaries refuse
}

// A rolloutReplica is one of the relays. It has snapshots of its own.
type rolloutReplica struct {
	*running
	env    []string
	frozen bool
}

// A randomClient is a client, which is connected to one of the replicas.
type randomClient struct {
	*rolloutClient
	stage int
	at    int
}

// waitingTypes are those whose changes wait.
var waitingTypes = []string{"cds", "lds", "rds"}

func (h *rolloutHistory) run(steps []rolloutStep) {
	defer func() {
		r := recover()
		if err, ok := r.(error); r != nil && (!ok || !errors.Is(err, errStop)) {
			panic(r)
		}
	}()
	h.begin()
	for _, s := range steps {
		h.step(s)
		h.pause(s.pause)
	}
	h.end()
}

// begin has all clients have the first state of the origin, which is the last good.
func (h *rolloutHistory) begin() {
	origin := relaytest.NewOrigin(&h.scene, relaytest.OriginOptions{Memory: true})
	h.w = &world{t: &h.scene, origin: origin, revs: make(map[relaytest.Digest]string)}
	h.has = map[string]map[string]int{"cds": {}, "eds": {}, "lds": {}, "rds": {}}
	h.began = make(map[string]time.Time)
	h.change(h.next("cds a"), h.next("cds b"), h.next("cds c"), h.next("eds a"), h.next("eds b"), h.next("eds c"), h.next("lds l"), h.next("lds m"), h.next("rds routes"))
	for i := range h.replicas {
		stages := fmt.Sprintf("TENDER_ROLLOUT=id=canary* %v, id=second* %[1]v", randomStage)
		h.replicas[i] = &rolloutReplica{env: []string{
			stages, "TENDER_DELTA_VERSIONS=content", operated, fmt.Sprint("TENDER_NODE_ID=tender/", i),
			"TENDER_SNAPSHOT_DIR=" + filepath.Join(h.TempDir(), "snapshots"),
		}}
		h.up(i)
	}
	for stage, name := range []string{"canary", "second", "other"} {
		for at := range 3 {
			h.join(fmt.Sprintf("%s-%d", name, at), stage, at%2, relaytest.Variant((at+stage)%2), stage == 0 && at < 2)
		}
	}
	slices.SortStableFunc(h.clients, func(a, b *randomClient) int { return strings.Compare(a.node[len(a.node)-1:], b.node[len(b.node)-1:]) })
	h.w.sleep(time.Minute)
	for _, c := range h.clients {
		if got, want := h.sees(c, waitingTypes...), h.cuts[0]; got != want {
			h.Fatalf("%s begins with %s, want %s", c.node, got, want)
		}
	}
	h.promoted = time.Now()
}

// join adds a client, which refuses what is bad if it is a canary that stays: so there is also evidence for what is bad.
func (h *rolloutHistory) join(node string, stage, at int, v relaytest.Variant, refuses bool) {
	reject := func(r *relaytest.Response) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, res := range r.Resources {
			if h.bad[res.Digest] {
				return fmt.Errorf("%s is bad", res.Name)
			}
		}
		return nil
	}
	if !refuses {
		reject = nil
	}
	c := &rolloutClient{w: &rolloutWorld{world: h.w}, node: node}
	c.Client = h.replicas[at].Client(relaytest.ClientOptions{Variant: v, Node: relaytest.EnvoyNode(node), AutoAck: true, Reject: reject})
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.EndpointType, "a", "b", "c")
	c.Subscribe(relaytest.ListenerType)
	c.Subscribe(relaytest.RouteType, "routes")
	h.clients = append(h.clients, &randomClient{c, stage, at})
}

// up runs a replica, to which its clients return.
func (h *rolloutHistory) up(i int) {
	r := h.replicas[i]
	r.running = start(&h.scene, h.w.origin, r.env...)
	h.connects()
	synctest.Wait()
	for _, c := range h.clients {
		if c.at == i {
			c.Reconnect(r.Conn())
		}
	}
}

// connects records that a replica connects to the origin. What that has removed may be held back.
func (h *rolloutHistory) connects() {
	_, has := h.has["cds"]["c"]
	h.connected, h.held = time.Now(), h.held || !has
}

// next returns a change of a name to content that it never had.
func (h *rolloutHistory) next(name string) string {
	h.rev++
	return fmt.Sprintf("%s@%d", name, h.rev)
}

// change has the origin change what it has, at once.
func (h *rolloutHistory) change(changes ...string) {
	for _, text := range changes {
		c := h.w.parse(text)
		if c.remove {
			h.held = h.held || time.Since(h.connected) < 30*time.Second
			delete(h.has[c.short], c.name)
			continue
		}
		h.has[c.short][c.name] = c.rev
		if _, had := h.began[text]; !had {
			h.began[text] = time.Now()
		}
	}
	h.cuts = append(h.cuts, h.had(waitingTypes...))
	h.w.change(changes...)
}

// had returns what the origin has of types.
func (h *rolloutHistory) had(shorts ...string) string {
	var all []string
	for _, short := range shorts {
		for _, name := range slices.Sorted(maps.Keys(h.has[short])) {
			all = append(all, fmt.Sprintf("%s %s@%d", short, name, h.has[short][name]))
		}
	}
	return strings.Join(all, ", ")
}

// sees returns what a client has of types.
func (h *rolloutHistory) sees(c *randomClient, shorts ...string) string {
	var all []string
	state := c.State()
	for _, short := range shorts {
		for _, name := range state.Names(typeURLs[short]) {
			all = append(all, fmt.Sprintf("%s %s@%s", short, name, h.w.revs[state.Digest(typeURLs[short], name)]))
		}
	}
	return strings.Join(all, ", ")
}

// step has happen what a step says; what is not possible does not happen.
func (h *rolloutHistory) step(s rolloutStep) {
	switch cluster := []string{"a", "b"}[s.name]; s.what {
	case "cluster":
		h.change(h.next("cds " + cluster))
	case "listener":
		h.change(h.next("lds " + []string{"l", "m"}[s.name]))
	case "route":
		h.change(h.next("rds routes"))
	case "endpoints":
		h.change(h.next("eds " + cluster))
		h.endpoints(cluster)
	case "swap": // of several types at once
		h.change(h.next("cds "+cluster), h.next("lds l"), h.next("rds routes"), h.next("eds "+cluster))
	case "back":
		h.back(s)
	case "bad":
		h.spoil([]string{"cds " + cluster, "lds l"}[s.client%2])
	case "toggle":
		if _, has := h.has["cds"]["c"]; has {
			h.change("cds -c", "eds -c")
		} else {
			h.change(h.next("cds c"), h.next("eds c"))
		}
	case "origin":
		h.w.origin.Stop()
		h.w.sleep(s.pause)
		h.w.origin.Restart()
		h.connects()
	case "restart":
		h.replicas[s.replica].Stop()
		h.up(s.replica)
	case "down":
		h.replicas[s.replica].Stop()
		h.change(h.next("cds "+cluster), h.next("lds m"))
		h.w.sleep(s.pause)
		h.up(s.replica)
	case "move":
		c := h.clients[len(h.clients)-1-s.client]
		c.at = 1 - c.at
		c.Reconnect(h.replicas[c.at].Conn())
	case "promote", "all", "abort", "resume", "undo", "freeze", "thaw":
		h.command(s.what, s.replica)
	}
}

// back has the origin have something again that it had before.
func (h *rolloutHistory) back(s rolloutStep) {
	var had []string
	for text := range h.began {
		if c := h.w.parse(text); (c.short == "cds" || c.short == "lds") && c.name != "c" && h.has[c.short][c.name] != c.rev {
			had = append(had, text)
		}
	}
	if slices.Sort(had); len(had) > 0 {
		h.change(had[(3*s.client+s.name)%len(had)])
	}
}

// spoil has the origin give a name content that canaries refuse.
func (h *rolloutHistory) spoil(name string) {
	text := h.next(name)
	c := h.w.parse(text)
	h.mu.Lock()
	h.bad[relaytest.DigestOf(h.w.message(c.short, c.name, c.rev))] = true
	h.mu.Unlock()
	h.change(text)
}

// command has an operator command a replica, which may refuse it.
func (h *rolloutHistory) command(what string, replica int) {
	r := h.replicas[replica]
	switch what {
	case "freeze", "thaw":
		post(&h.scene, r.running, what, admin.FreezeScope{})
		r.frozen = what == "freeze"
	case "promote", "all":
		h.promoted, h.tainted = time.Now(), h.tainted || len(h.bad) > 0
		post(&h.scene, r.running, "rollout/promote", admin.RolloutScope{All: what == "all"})
	default:
		post(&h.scene, r.running, "rollout/"+what, admin.RolloutScope{})
	}
	synctest.Wait()
}
