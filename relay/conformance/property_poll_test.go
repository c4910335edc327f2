package conformance_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestD4_PollsConverge checks polling clients while the origin changes and restarts at random (D.4, rules 1, 2, 3
// and 5). They end with the resources of the origin, and a version stands for one set.
// A client is not sent a set that it has, except once after the set changed back. A client never loses a cluster
// that the origin always had: Envoy drops clusters that a set lacks.
func TestD4_PollsConverge(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{2, 5, 15, 23, 26, 27} { // each of these has found a bug
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) { pollsConverge(t, o, rand.New(rand.NewPCG(seed, 27))) })
		})
	}
}

// Names in a pollScene: d must not be cached, b has an alias, and x belongs to a glob. The origin always has a and
// d.
var (
	pollDir = map[string]string{"clusters": "xdstp://one/envoy.config.cluster.v3.Cluster/dir/",
		"routes": "xdstp://one/envoy.config.route.v3.RouteConfiguration/dir/"}
	pollNames         = []string{"a", "b", "c", "d", "x"}
	pollSubscriptions = [][]string{{"a", "b", "d"}, {"*"}, {"alias", "c", "d"}, {"a", "d", "dir/*"}, {"*", "d"},
		{"x", "d", "none"}}
)

// A pollScene is a set of polling clients and the sets that they received.
type pollScene struct {
	t     *testing.T
	relay *running
	mu    sync.Mutex        // guards the fields below, and the state of clients
	sets  map[string]string // sets by version

	history map[string][]int // by kind and name: revisions at the origin; 0 means absent
	reverts map[string]int   // by kind and name: how often the origin returned to an earlier revision
}

// A pollClient polls in a loop, as an Envoy does.
type pollClient struct {
	kind      string
	names     []string
	version   string
	resources map[string]relaytest.Digest // by name
	reverts   int                         // reverts of its resources at its last response
	ended     chan struct{}
}

func pollTypeURL(kind string) string {
	return map[string]string{"clusters": typeCDS, "routes": typeRDS}[kind]
}

// pollName returns the resource name of a short name: x and dir/* belong to the glob.
func pollName(kind, name string) string {
	name = strings.TrimPrefix(name, "dir/")
	if name == "x" || name == "*" {
		return pollDir[kind] + name
	}
	return name
}

// pollResource returns a revision of a resource. b has an alias, and d must not be cached.
func pollResource(t *testing.T, kind, name string, rev int) *discoverypb.Resource {
	r := &discoverypb.Resource{Name: pollName(kind, name), Version: fmt.Sprint("v", rev)}
	if kind == "clusters" {
		r.Resource = relaytest.Pack(relaytest.Cluster(r.Name, fmt.Sprint("service-", rev)))
	} else {
		r.Resource = relaytest.Pack(domainRoute(r.Name, fmt.Sprint("domain-", rev)))
	}
	switch name {
	case "b":
		r.Aliases = []string{"alias"}
	case "d":
		r.CacheControl = &discoverypb.Resource_CacheControl{DoNotCache: true}
	}
	return r
}

// pollsConverge runs one random sequence.
func pollsConverge(t *testing.T, o *relaytest.Origin, rng *rand.Rand) {
	o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing, b.EmptyVersions = rng.IntN(2) == 0, rng.IntN(3) == 0 })
	w := &pollScene{t: t, relay: start(t, o, "TENDER_LINGER=30s"),
		sets:    make(map[string]string),
		history: make(map[string][]int), reverts: make(map[string]int)}
	kinds := []string{"clusters", "routes"}
	revs := make(map[string]int)
	put := func(kind, name string) {
		revs[kind+name] = rng.IntN(4)
		w.changed(kind+name, 1+revs[kind+name])
		o.SetRaw(pollTypeURL(kind), pollResource(t, kind, name, revs[kind+name]))
	}
	for _, kind := range kinds {
		put(kind, "a")
		put(kind, "d")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients []*pollClient
	for range 60 {
		kind, name := kinds[rng.IntN(2)], pollNames[rng.IntN(len(pollNames))]
		switch rng.IntN(8) {
		case 0, 1:
			if len(clients) < 8 {
				clients = append(clients, w.startPolling(ctx, kind, pollSubscriptions[rng.IntN(len(pollSubscriptions))]))
			}
		case 2, 3, 4:
			put(kind, name)
		case 5:
			if name != "a" && name != "d" {
				delete(revs, kind+name)
				w.changed(kind+name, 0)
				o.Remove(pollTypeURL(kind), pollName(kind, name))
			}
		case 6:
			o.Stop()
			time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
			o.Restart()
		}
		if rng.IntN(2) == 0 {
			time.Sleep(time.Duration(rng.IntN(8000)) * time.Millisecond)
		}
	}
	sleep(time.Minute)
	cancel()
	for _, c := range clients {
		<-c.ended
		w.check(c, revs)
	}
}

// startPolling starts a client that polls until ctx ends.
func (w *pollScene) startPolling(ctx context.Context, kind string, names []string) *pollClient {
	c := &pollClient{kind: kind, resources: make(map[string]relaytest.Digest), ended: make(chan struct{})}
	for _, name := range names {
		if name != "*" {
			name = pollName(kind, name)
		}
		c.names = append(c.names, name)
	}
	rest := restPoller(w.t, w.relay, false)
	go func() { // pollsConverge waits for its end
		defer close(c.ended)
		for ctx.Err() == nil {
			reply, err := rest.send(ctx, http.MethodPost, "/v3/discovery:"+kind, restBody(w.t, c.version, c.names...),
				restHold("10000")...)
			switch {
			case err != nil:
			case reply.status == http.StatusOK:
				w.apply(c, reply)
			case reply.status != http.StatusNotModified:
				time.Sleep(time.Second)
			}
		}
	}()
	return c
}

// changed records the next revision of a resource before the origin sends it; 0 means removed.
func (w *pollScene) changed(kindAndName string, rev int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	revs := w.history[kindAndName]
	if revs == nil {
		revs = []int{0}
	}
	if revs[len(revs)-1] != rev && slices.Contains(revs, rev) {
		w.reverts[kindAndName]++
	}
	w.history[kindAndName] = append(revs, rev)
}

// reverted returns how often resources of a client returned to an earlier revision.
func (w *pollScene) reverted(c *pollClient) (n int) {
	for _, name := range pollNames {
		if c.subscribes(name) {
			n += w.reverts[c.kind+name]
		}
	}
	return n
}

// subscribes reports whether the client subscribes to a resource, by name, alias, glob or wildcard.
func (c *pollClient) subscribes(name string) bool {
	return slices.Contains(c.names, pollName(c.kind, name)) || slices.Contains(c.names, "*") ||
		name == "b" && slices.Contains(c.names, "alias") || name == "x" && slices.Contains(c.names, pollDir[c.kind]+"*")
}

// apply applies a response to a client, and checks it.
func (w *pollScene) apply(c *pollClient, reply restReply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	resp := reply.response()
	set, last := make(map[string]relaytest.Digest), c.resources
	for _, r := range resp.GetResources() {
		set[resourceName(w.t, r)] = relaytest.DigestOf(r)
	}
	for _, name := range []string{"a", "d"} {
		if _, lost := last[name]; lost && set[name] == (relaytest.Digest{}) && c.kind == "clusters" {
			w.t.Errorf("%s %q: %s was lost", c.kind, c.names, name)
		}
	}
	text := fmt.Sprint(set) // sorted by name
	if before, ok := w.sets[c.kind+resp.GetVersionInfo()]; ok && before != text {
		w.t.Errorf("%s %q: version %s stands for both %s and %s", c.kind, c.names, resp.GetVersionInfo(), before, text)
	}
	// A set that changed back is sent once more (B.3).
	reverts := w.reverted(c)
	if c.version == resp.GetVersionInfo() && c.reverts == reverts {
		w.t.Errorf("%s %q: got version %s again without a revert: %s", c.kind, c.names, c.version, text)
	}
	c.reverts = reverts
	w.sets[c.kind+resp.GetVersionInfo()] = text
	c.version, c.resources = resp.GetVersionInfo(), set
}

// check fails the test unless the client has exactly the origin's resources that it subscribes to.
func (w *pollScene) check(c *pollClient, revs map[string]int) {
	want := make(map[string]relaytest.Digest)
	for _, name := range pollNames {
		rev, present := revs[c.kind+name]
		r := pollResource(w.t, c.kind, name, rev)
		if present && c.subscribes(name) {
			want[r.Name] = relaytest.DigestOf(r.Resource)
		}
	}
	if fmt.Sprint(c.resources) != fmt.Sprint(want) {
		w.t.Errorf("%s %q: ended with %v, want %v", c.kind, c.names, c.resources, want)
	}
}
