package conformance_test

import (
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
	"github.com/xdstender/tender/relay/relaytest/transcript"
)

// randomStage is the duration of the stages canary* and second* of a rolloutHistory.
const randomStage = time.Minute

// TestI_RandomRollouts runs two replicas with staged rollouts through random sequences of changes, operator
// commands, restarts, and clients that move between the replicas. It checks:
//
//   - I1: a change reaches a client only after the earlier stages have ended, unless an operator promoted it.
//     Content that canaries reject reaches no other client, also after a restart (I10), and despite unrelated
//     changes (I11).
//   - I2, I6: when all responses are answered, a client's waiting types have a state that the origin had.
//   - I4: endpoint changes are sent at once, unless the replica is frozen (I13).
//   - I5: a client that has a cluster has its endpoints.
//   - I8: clients of one stage and replica have the same resources.
//   - I9: a change that no operator holds back reaches all clients in time.
func TestI_RandomRollouts(t *testing.T) {
	checkRandom(t, 3, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawRolloutStep), 5, 20).Draw(rt, "steps")
		runScene(t, rt, func(sc *scene) {
			h := &rolloutHistory{scene: sc, bad: make(map[relaytest.Digest]bool)}
			h.run(steps)
		})
	})
}

// A rolloutStep is an event and the pause after it.
type rolloutStep struct {
	what    string
	replica int
	client  int // index of a client that moves
	name    int
	pause   time.Duration
}

func (s rolloutStep) String() string {
	return fmt.Sprintf("%s(%d,%d,%d)+%v", s.what, s.replica, s.client, s.name, s.pause)
}

func drawRolloutStep(t *rapid.T) rolloutStep {
	return rolloutStep{
		what: rapid.SampledFrom([]string{
			"cluster", "cluster", "listener", "listener", "route", "endpoints", "endpoints", "swap", "back", "bad", "bad",
			"toggle",
			"origin", "restart", "restart", "down", "move", "move", "move", "promote", "all", "abort", "resume", "undo",
			"freeze", "thaw", "pass",
		}).Draw(t, "what"),
		replica: rapid.IntRange(0, 1).Draw(t, "replica"),
		client:  rapid.IntRange(0, 2).Draw(t, "client"),
		name:    rapid.IntRange(0, 1).Draw(t, "name"),
		pause: rapid.SampledFrom([]time.Duration{time.Second, 3 * time.Second, 20 * time.Second, 65 * time.Second,
			5 * time.Minute}).Draw(t, "pause"),
	}
}

// A rolloutHistory is an origin, two replicas and nine clients: in each stage one per replica that stays, and one
// that moves.
type rolloutHistory struct {
	*scene
	w        *world
	replicas [2]*rolloutReplica
	clients  []*randomClient

	originRevs map[string]map[string]int // revisions at the origin, by type and name
	states     []string                  // states of the waiting types, oldest first
	firstSeen  map[string]time.Time      // first time of a resource at the origin, by change such as "cds a@2"
	promotedAt time.Time                 // last promotion by an operator
	rev        int
	tainted    bool // an operator may have promoted rejected content

	connectedAt time.Time // last connection of a replica to the origin

	mu  sync.Mutex
	bad map[relaytest.Digest]bool // guarded by mu; content that canaries reject
}

// A rolloutReplica is one of the relays, with its own snapshots.
type rolloutReplica struct {
	*running
	env    []string
	frozen bool
}

// A randomClient is a client that is connected to one of the replicas.
type randomClient struct {
	*rolloutClient
	stage int
	at    int
}

// waitingTypes are the types whose changes are rolled out in stages.
var waitingTypes = []string{"cds", "lds", "rds"}

// run plays steps, and checks the rules after each.
func (h *rolloutHistory) run(steps []rolloutStep) {
	h.begin()
	for _, s := range steps {
		h.step(s)
		h.pause(s.pause)
	}
	h.finish()
}

// begin starts the replicas, and waits until all clients have the initial resources as the last good state.
func (h *rolloutHistory) begin() {
	origin := relaytest.NewOrigin(h.scene, relaytest.OriginOptions{Memory: true})
	h.w = &world{t: h.scene, origin: origin, n: transcript.NewNotation(h.scene)}
	h.originRevs = map[string]map[string]int{"cds": {}, "eds": {}, "lds": {}, "rds": {}}
	h.firstSeen = make(map[string]time.Time)
	h.change(h.next("cds a"), h.next("cds b"), h.next("cds c"), h.next("eds a"), h.next("eds b"), h.next("eds c"),
		h.next("lds l"), h.next("lds m"), h.next("rds routes"))
	for i := range h.replicas {
		stages := fmt.Sprintf("TENDER_ROLLOUT=id=canary* %v, id=second* %[1]v", randomStage)
		h.replicas[i] = &rolloutReplica{env: []string{
			stages, "TENDER_DELTA_VERSIONS=content", operated, fmt.Sprint("TENDER_NODE_ID=tender/", i),
			"TENDER_SNAPSHOT_DIR=" + filepath.Join(h.TempDir(), "snapshots"),
		}}
		h.startReplica(i)
	}
	for stage, name := range []string{"canary", "second", "other"} {
		for at := range 3 {
			h.join(fmt.Sprintf("%s-%d", name, at), stage, at%2, relaytest.Variant((at+stage)%2), stage == 0 && at < 2)
		}
	}
	slices.SortStableFunc(h.clients,
		func(a, b *randomClient) int { return strings.Compare(a.node[len(a.node)-1:], b.node[len(b.node)-1:]) })
	h.w.sleep(time.Minute)
	for _, c := range h.clients {
		if got, want := h.clientState(c, waitingTypes...), h.states[0]; got != want {
			h.Fatalf("%s starts with %s, want %s", c.node, got, want)
		}
	}
	h.promotedAt = time.Now()
}

// join adds a client. If rejects is set, it NACKs bad content; only canaries that stay do, so that a NACK is
// always possible.
func (h *rolloutHistory) join(node string, stage, at int, v relaytest.Variant, rejects bool) {
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
	if !rejects {
		reject = nil
	}
	c := &rolloutClient{w: &rolloutWorld{world: h.w}, node: node}
	c.Client = h.replicas[at].Client(relaytest.ClientOptions{Variant: v, Node: relaytest.EnvoyNode(node), AutoAck: true,
		Reject: reject})
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.EndpointType, "a", "b", "c")
	c.Subscribe(relaytest.ListenerType)
	c.Subscribe(relaytest.RouteType, "routes")
	h.clients = append(h.clients, &randomClient{c, stage, at})
}

// startReplica starts a replica, and reconnects its clients.
func (h *rolloutHistory) startReplica(i int) {
	r := h.replicas[i]
	r.running = start(h.scene, h.w.origin, r.env...)
	h.connectedAt = time.Now()
	synctest.Wait()
	for _, c := range h.clients {
		if c.at == i {
			c.Reconnect(r.Conn())
		}
	}
}

// next returns a change of a name to new content.
func (h *rolloutHistory) next(name string) string {
	h.rev++
	return fmt.Sprintf("%s@%d", name, h.rev)
}

// change applies simultaneous changes at the origin.
func (h *rolloutHistory) change(changes ...string) {
	for _, text := range changes {
		c := h.w.n.Parse(text)
		if c.Remove {
			delete(h.originRevs[c.Short], c.Name)
			continue
		}
		h.originRevs[c.Short][c.Name] = c.Rev
		if _, seen := h.firstSeen[text]; !seen {
			h.firstSeen[text] = time.Now()
		}
	}
	h.states = append(h.states, h.originState(waitingTypes...))
	h.w.change(changes...)
}

// originState formats the origin's resources of types.
func (h *rolloutHistory) originState(shorts ...string) string {
	var all []string
	for _, short := range shorts {
		for _, name := range slices.Sorted(maps.Keys(h.originRevs[short])) {
			all = append(all, fmt.Sprintf("%s %s@%d", short, name, h.originRevs[short][name]))
		}
	}
	return strings.Join(all, ", ")
}

// clientState formats a client's resources of types.
func (h *rolloutHistory) clientState(c *randomClient, shorts ...string) string {
	var all []string
	state := c.State()
	for _, short := range shorts {
		for _, name := range state.Names(typeURLs[short]) {
			all = append(all, fmt.Sprintf("%s %s@%s", short, name, h.w.n.Revision(state.Digest(typeURLs[short], name))))
		}
	}
	return strings.Join(all, ", ")
}

// step plays a step; impossible steps have no effect.
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
		h.checkEndpoints(cluster)
	case "swap": // changes several types at once
		h.change(h.next("cds "+cluster), h.next("lds l"), h.next("rds routes"), h.next("eds "+cluster))
	case "back":
		h.revert(s)
	case "bad":
		h.spoil([]string{"cds " + cluster, "lds l"}[s.client%2])
	case "toggle":
		if _, present := h.originRevs["cds"]["c"]; present {
			h.change("cds -c", "eds -c")
		} else {
			h.change(h.next("cds c"), h.next("eds c"))
		}
	case "origin":
		h.w.origin.Stop()
		h.w.sleep(s.pause)
		h.w.origin.Restart()
		h.connectedAt = time.Now()
	case "restart":
		h.replicas[s.replica].Stop()
		h.startReplica(s.replica)
	case "down":
		h.replicas[s.replica].Stop()
		h.change(h.next("cds "+cluster), h.next("lds m"))
		h.w.sleep(s.pause)
		h.startReplica(s.replica)
	case "move":
		c := h.clients[len(h.clients)-1-s.client]
		c.at = 1 - c.at
		c.Reconnect(h.replicas[c.at].Conn())
	case "promote", "all", "abort", "resume", "undo", "freeze", "thaw":
		h.command(s.what, s.replica)
	}
}

// revert changes a resource back to earlier content.
func (h *rolloutHistory) revert(s rolloutStep) {
	var earlier []string
	for text := range h.firstSeen {
		if c := h.w.n.Parse(text); (c.Short == "cds" || c.Short == "lds") && c.Name != "c" &&
			h.originRevs[c.Short][c.Name] != c.Rev {
			earlier = append(earlier, text)
		}
	}
	if slices.Sort(earlier); len(earlier) > 0 {
		h.change(earlier[(3*s.client+s.name)%len(earlier)])
	}
}

// spoil changes a resource to content that canaries reject.
func (h *rolloutHistory) spoil(name string) {
	text := h.next(name)
	c := h.w.n.Parse(text)
	h.mu.Lock()
	h.bad[relaytest.DigestOf(h.w.n.Message(c.Short, c.Name, c.Rev))] = true
	h.mu.Unlock()
	h.change(text)
}

// command sends a command to a replica, which may reject it.
func (h *rolloutHistory) command(what string, replica int) {
	r := h.replicas[replica]
	switch what {
	case "freeze", "thaw":
		post(h.scene, r.running, what, admin.FreezeScope{})
		r.frozen = what == "freeze"
	case "promote", "all":
		h.promotedAt, h.tainted = time.Now(), h.tainted || len(h.bad) > 0
		post(h.scene, r.running, "rollout/promote", admin.RolloutScope{All: what == "all"})
	default:
		post(h.scene, r.running, "rollout/"+what, admin.RolloutScope{})
	}
	synctest.Wait()
}
