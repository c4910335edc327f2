package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A world is the setup of the soak. It has two Delta origins, a SotW origin of listeners, a directory of scoped
// routes, two relays, and clients of two node groups.
type world struct {
	t         *testing.T
	ctx       context.Context // ends when the soak has taken too long
	random    *rand.Rand      // the only source of randomness of the schedule
	deck      []fault         // faults that draw returns next
	origins   []*relaytest.Origin
	links     links // proxies between relays and origins, in the order of origins
	groups    []*group
	commons   *commons
	directory *directory
	staging   *staging
	process   *process
	inside    *inside
	edges     links    // proxies between some clients and the relays, in the order of relays
	n         int      // number of streams, without those of canaries
	clients   []client // empty between depart and come

	replicas  int        // number of replica faults so far
	visitors  int        // number of visit calls so far
	baselines []baseline // in the order of relays
	later     []func()   // called at the end of the round, after all clients agree
	seen      sightings
	failing   atomic.Value // string: names of the faults of the round
	wrong     atomic.Int64 // number of violations that clients reported
}

// newWorld starts the origins and relays, without clients.
func newWorld(t *testing.T, seed uint64, clients int) *world {
	ctx, cancel := context.WithTimeoutCause(t.Context(), *soakFor+spare, fmt.Errorf("the soak has lasted for %v, which is too long", *soakFor+spare))
	t.Cleanup(cancel)
	hangs := time.AfterFunc(*soakFor+spare+within, func() { panic("the soak hangs") })
	t.Cleanup(func() { hangs.Stop() })
	w := &world{t: t, ctx: ctx, random: rand.New(rand.NewPCG(seed, 0)), n: clients}
	for i := range 3 {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Behaviour: relaytest.Behaviour{SotW: i == 2}})
		w.origins = append(w.origins, o)
		w.links = append(w.links, proxy.New(t, o.Addr()))
	}
	for _, name := range []string{"blue", "green"} {
		w.groups = append(w.groups, newGroup(name, w.origins))
	}
	w.commons = newCommons(w.groups, w.origins)
	w.directory = newDirectory(t, w.groups)
	env := []string{
		"TENDER_ORIGIN=" + w.links[0].Addr() + "," + w.links[1].Addr(),
		"TENDER_ORIGINS=lists=" + w.links[2].Addr() + ";files=file://" + w.directory.path,
		"TENDER_ROUTES=type:lds=lists;type:srds=files",
		"TENDER_NODE_GROUP_BY=cluster",
		"TENDER_DRAIN=2s",
		"TENDER_COLD_WAIT=2s",
		"TENDER_ACK_WAIT=1s",
		"TENDER_MASS_DELETE_HOLD=" + massHeldFor.String(),
		"TENDER_SEND_TIMEOUT=2s",
		fmt.Sprintf("TENDER_MAX_NAMES=%d", maxNames),
	}
	w.staging = newStaging(w, seed)
	w.process = newProcess(t, slices.Concat(env, w.staging.environ(w, 0)), func() {
		for _, g := range w.groups {
			g.ledger.Expire()
		}
	})
	w.inside = newInside(t, slices.Concat(env, w.staging.environ(w, 1)))
	for _, address := range []string{w.process.address, w.inside.address} {
		w.edges = append(w.edges, proxy.New(t, address))
	}
	t.Cleanup(w.repeat(fleetingEvery, func() {
		for _, g := range w.groups {
			g.beat()
		}
	}))
	return w
}

// relays returns the relays in the order that staging.relays and baselines use.
func (w *world) relays() []server { return []server{w.process, w.inside} }

// come starts all clients.
func (w *world) come() {
	for i := range w.n {
		w.clients = append(w.clients, w.stream(i))
	}
	for i := range max(2, w.n/50) {
		w.clients = append(w.clients, w.poller(i))
	}
	w.clients = append(w.clients, w.canaries()...)
}

// depart stops all clients.
func (w *world) depart() {
	for _, c := range w.clients {
		c.stop()
	}
	w.clients = nil
}

// complain fails the test because a client received something wrong. Only the first 20 violations are printed.
func (w *world) complain(who, what string) {
	if w.wrong.Add(1) <= 20 {
		w.t.Errorf("%s received wrong content, in a round with the faults %v: %s", who, w.failing.Load(), what)
	}
}

// changes returns the number of changes of all groups so far.
func (w *world) changes() (n int) {
	for _, g := range w.groups {
		n += g.ledger.Changes()
	}
	return n
}

// dialers returns functions that connect to the relays, with edge through the proxies. The flow-control windows are
// fixed, so that the bulk resource fills the window of a client that does not read.
func (w *world) dialers(edge bool) (dial []func() (*grpc.ClientConn, error)) {
	addresses := []string{w.process.address, w.inside.address}
	if edge {
		addresses = []string{w.edges[0].Addr(), w.edges[1].Addr()}
	}
	for _, address := range addresses {
		dial = append(dial, func() (*grpc.ClientConn, error) {
			return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10))
		})
	}
	return dial
}

// Sightings count events that the tally of faults does not show. They are safe for concurrent use.
type sightings struct {
	mu sync.Mutex
	n  map[string]int // guarded by mu
}

// add adds n events of a kind.
func (s *sightings) add(what string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil {
		s.n = make(map[string]int)
	}
	s.n[what] += n
}

func (s *sightings) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(s.n)) {
		fmt.Fprintf(&b, "%s: %d\n", what, s.n[what])
	}
	return b.String()
}
