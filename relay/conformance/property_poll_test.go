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
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestD4_PollsConverge: whatever the origin does, and while it comes and goes, those who
// poll end with what it has, two sets have one version only if they are one, nobody is
// sent what he has, but once where it reverted, and of clusters, which an Envoy drops if a set lacks them, nobody who
// has them is told a set without those that the origin always had (D.4, 1, 2, 3 and 5).
func TestD4_PollsConverge(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{2, 5, 15, 23, 26, 27} { // each of which has found a fault
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) { pollsConverge(t, o, rand.New(rand.NewPCG(seed, 27))) })
		})
	}
}

// Names of pollScene: the content of d may not be kept, b has an alias, and the last one
// belongs to a glob. Of a and d there always is something.
var (
	pollDir   = map[string]string{"clusters": "xdstp://one/envoy.config.cluster.v3.Cluster/dir/", "routes": "xdstp://one/envoy.config.route.v3.RouteConfiguration/dir/"}
	pollNames = []string{"a", "b", "c", "d", "x"}
	pollAsks  = [][]string{{"a", "b", "d"}, {"*"}, {"alias", "c", "d"}, {"a", "d", "dir/*"}, {"*", "d"}, {"x", "d", "none"}}
)

// A pollScene is the clients that poll, and all that they were told.
type pollScene struct {
	t     *testing.T
	relay *running
	mu    sync.Mutex        // guards what follows, and what clients hold
	told  map[string]string // sets by version

	history map[string][]int // by kind and name: the revisions that the origin had, 0 if there was none
	reverts map[string]int   // by kind and name: how often the origin returned to one of them
}

// A pollClient is one that polls for ever, as an Envoy does.
type pollClient struct {
	kind    string
	asks    []string
	version string
	has     map[string]relaytest.Digest // by name
	reverts int                         // how often what it asked for had reverted when it was answered last
	ended   chan struct{}
}

func pollTypeURL(kind string) string {
	return map[string]string{"clusters": typeCDS, "routes": typeRDS}[kind]
}

// pollName returns the name of what is called x or dir/* here.
func pollName(kind, name string) string {
	name = strings.TrimPrefix(name, "dir/")
	if name == "x" || name == "*" {
		return pollDir[kind] + name
	}
	return name
}

func pollResource(t *testing.T, kind, name string, rev int) *discoverypb.Resource {
	r := &discoverypb.Resource{Name: pollName(kind, name), Version: fmt.Sprint("v", rev)}
	if kind == "clusters" {
		r.Resource = xdstpPack(t, relaytest.Cluster(r.Name, fmt.Sprint("service-", rev)))
	} else {
		r.Resource = xdstpPack(t, domainRoute(r.Name, fmt.Sprint("domain-", rev)))
	}
	switch name {
	case "b":
		r.Aliases = []string{"alias"}
	case "d":
		r.CacheControl = &discoverypb.Resource_CacheControl{DoNotCache: true}
	}
	return r
}

func pollsConverge(t *testing.T, o *relaytest.Origin, rng *rand.Rand) {
	o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing, b.EmptyVersions = rng.IntN(2) == 0, rng.IntN(3) == 0 })
	w := &pollScene{t: t, relay: start(t, o, "TENDER_LINGER=30s", "TENDER_WILDCARD_LINGER=30s"), told: make(map[string]string),
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
				clients = append(clients, w.poll(ctx, kind, pollAsks[rng.IntN(len(pollAsks))]))
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
	time.Sleep(time.Minute)
	synctest.Wait()
	cancel()
	for _, c := range clients {
		<-c.ended
		w.check(c, revs)
	}
}

// poll has a new client poll until ctx ends.
func (w *pollScene) poll(ctx context.Context, kind string, asks []string) *pollClient {
	c := &pollClient{kind: kind, has: make(map[string]relaytest.Digest), ended: make(chan struct{})}
	for _, name := range asks {
		if name != "*" {
			name = pollName(kind, name)
		}
		c.asks = append(c.asks, name)
	}
	rest := restPoller(w.t, w.relay, false)
	go func() { // awaited by the scene
		defer close(c.ended)
		for ctx.Err() == nil {
			reply, err := rest.send(ctx, http.MethodPost, "/v3/discovery:"+kind, restBody(w.t, c.version, c.asks...), restHold("2000")...)
			switch {
			case err != nil:
			case reply.status == http.StatusOK:
				w.take(c, reply)
			case reply.status != http.StatusNotModified:
				time.Sleep(time.Second)
			}
		}
	}()
	return c
}

// changed notes that the origin is about to have another revision of something.
func (w *pollScene) changed(kindAndName string, rev int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	had := w.history[kindAndName]
	if had == nil {
		had = []int{0}
	}
	if had[len(had)-1] != rev && slices.Contains(had, rev) {
		w.reverts[kindAndName]++
	}
	w.history[kindAndName] = append(had, rev)
}

// reverted returns how often the origin returned to what it had before, of what a client asked for.
func (w *pollScene) reverted(c *pollClient) (n int) {
	for _, name := range pollNames {
		if c.wants(name) {
			n += w.reverts[c.kind+name]
		}
	}
	return n
}

// wants reports whether the client asked for a resource, by whatever name.
func (c *pollClient) wants(name string) bool {
	return slices.Contains(c.asks, pollName(c.kind, name)) || slices.Contains(c.asks, "*") ||
		name == "b" && slices.Contains(c.asks, "alias") || name == "x" && slices.Contains(c.asks, pollDir[c.kind]+"*")
}

// take has a client take a response.
func (w *pollScene) take(c *pollClient, reply restReply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	resp := reply.response()
	set, had := make(map[string]relaytest.Digest), c.has
	for _, r := range resp.GetResources() {
		set[resourceName(w.t, r)] = relaytest.DigestOf(r)
	}
	for _, name := range []string{"a", "d"} {
		if _, lost := had[name]; lost && set[name] == (relaytest.Digest{}) && c.kind == "clusters" {
			w.t.Errorf("%s %q: %s was lost", c.kind, c.asks, name)
		}
	}
	text := fmt.Sprint(set) // in the order of names
	if before, ok := w.told[c.kind+resp.GetVersionInfo()]; ok && before != text {
		w.t.Errorf("%s %q: version %s is that of %s, and of %s", c.kind, c.asks, resp.GetVersionInfo(), before, text)
	}
	// A set that reverted is sent once more (B.3).
	reverts := w.reverted(c)
	if c.version == resp.GetVersionInfo() && c.reverts == reverts {
		w.t.Errorf("%s %q: told version %s again, and nothing had reverted: %s", c.kind, c.asks, c.version, text)
	}
	c.reverts = reverts
	w.told[c.kind+resp.GetVersionInfo()] = text
	c.version, c.has = resp.GetVersionInfo(), set
}

// check fails the test unless a client has all that it asked for and that there is, and
// nothing else.
func (w *pollScene) check(c *pollClient, revs map[string]int) {
	want := make(map[string]relaytest.Digest)
	for _, name := range pollNames {
		rev, is := revs[c.kind+name]
		r := pollResource(w.t, c.kind, name, rev)
		if is && c.wants(name) {
			want[r.Name] = relaytest.DigestOf(r.Resource)
		}
	}
	if fmt.Sprint(c.has) != fmt.Sprint(want) {
		w.t.Errorf("%s %q: ended with %v, want %v", c.kind, c.asks, c.has, want)
	}
}
