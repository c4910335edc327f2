package upstream_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/resolver"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/transcript"
	"github.com/xdstender/tender/upstream"
)

const (
	clusters  = relaytest.ClusterType
	endpoints = relaytest.EndpointType
	listeners = relaytest.ListenerType
)

// hosts are names with several addresses.
var hosts = relaytest.NewNames()

// TestMain runs each property with 15 random inputs, times -rounds.
func TestMain(m *testing.M) {
	resolver.Register(hosts)
	check.MainOfRapid(m, 15)
}

// A rig is a view that is kept in sync with an origin. Tests read the resources that clients receive from the view, and
// the requests that the origin receives from its record.
type rig struct {
	*relaytest.Origin
	t     testing.TB
	w     *cache.Writer
	view  *cache.View
	watch *cache.Watch
	log   *logged

	control *upstream.Control
	session *upstream.Session
	stop    func() // ends the sync and audits the view; may be called again
}

// inBubble runs a test with a rig in a synctest bubble. The bubble fails the test if a goroutine outlives the sync.
func inBubble(t *testing.T, b relaytest.Behaviour, cfg upstream.Config, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Behaviour: b})
		test(t, viewSync(t, o, cfg))
	})
}

// viewSync keeps a view in sync with an origin until the test ends.
func viewSync(t testing.TB, o *relaytest.Origin, cfg upstream.Config) *rig {
	t.Helper()
	return restored(t, o, cfg, nil)
}

// restored is viewSync for a view that is restored from a snapshot. The snapshot may be nil.
func restored(t testing.TB, o *relaytest.Origin, cfg upstream.Config, s *cache.Snapshot) *rig {
	t.Helper()
	return decided(t, o, cfg, s, upstream.NewControl(false, nil))
}

// decided is restored with earlier decisions of operators.
func decided(t testing.TB, o *relaytest.Origin, cfg upstream.Config, s *cache.Snapshot, control *upstream.Control) *rig {
	t.Helper()
	r := &rig{Origin: o, t: t, log: &logged{}, control: control}
	log := slog.New(r.log)
	cfg.Logger = log
	if cfg.Targets == nil {
		cfg.Targets = []string{o.Target()}
	}
	if cfg.DialOptions == nil {
		cfg.DialOptions = o.DialOptions()
	}
	session, err := upstream.New(cfg)
	check.OK(t, err)
	view, w := cache.New(cache.Config{})
	if s != nil {
		w.Restore(s, time.Now())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // awaited by stop
		defer close(ended)
		session.Sync(ctx, &corepb.Node{Id: "relay"}, pending.New(w, nil), log, r.control)
	}()
	r.w, r.view, r.watch, r.session = w, view, view.Watch(), session
	r.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		if err := session.Close(); err != nil {
			t.Errorf("close session: %v", err)
		}
		audit(t, view)
	})
	t.Cleanup(r.stop)
	return r
}

// audit checks the invariants of a view (B.43).
func audit(t testing.TB, view *cache.View) {
	t.Helper()
	for fault := range view.Audit(func() bool { return true }) {
		t.Errorf("view violates an invariant: %+v", fault)
	}
}

// put sets resources of the origin, each written name@version.
func (r *rig) put(typeURL string, resources ...string) {
	r.Apply(func(tx *relaytest.Tx) { putIn(tx, typeURL, resources...) })
}

// putIn sets resources in a transaction, each written name@version. The content of a resource is its version.
func putIn(tx *relaytest.Tx, typeURL string, resources ...string) {
	for _, text := range resources {
		name, version, _ := strings.Cut(text, "@")
		tx.Set(typeURL, name, relaytest.Opaque(typeURL, name, []byte(version)), version)
	}
}

// pass waits for d, and then until all goroutines are idle.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d) // virtual
	synctest.Wait()
}

// soon is longer than batchWait, and shorter than every other delay. longAfter is longer than every delay of the relay:
// a wildcard lingers for 18 minutes at most, and a removal is held for ten.
const (
	soon      = 20 * time.Millisecond
	longAfter = 30 * time.Minute
)

// members returns the resources that wildcard clients receive, as name@version.
func (r *rig) members(typeURL string) string {
	t := r.view.Generation().Type(typeURL)
	return show(&t.Wildcard)
}

// named returns the resources that clients subscribe to by name, as name@version. A nonexistent name is !name.
func (r *rig) named(typeURL string) string {
	t := r.view.Generation().Type(typeURL)
	return show(&t.ByName)
}

// show returns the entries of a set in the format of named, sorted.
func show(s *cache.Set) string {
	var out []string
	for e := range s.Since(0) {
		if e.Present() {
			out = append(out, e.Name.String()+"@"+e.Resource.OriginVersion)
		} else if e.Prior == nil || s.Count() == 0 {
			out = append(out, "!"+e.Name.String())
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// present returns the result of members or named without nonexistent names.
func present(shown string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(shown), func(s string) bool { return s[0] == '!' }), " ")
}

// follow sets resources of the origin, subscribes by wildcard, and waits until the set is confirmed.
func (r *rig) follow(typeURL string, resources ...string) {
	r.put(typeURL, resources...)
	r.watch.SubscribeAll(typeURL)
	r.pass(confirmed)
}

// membersAfter waits for d, and fails the test if wildcard clients do not receive want.
func (r *rig) membersAfter(d time.Duration, what, typeURL, want string) {
	r.t.Helper()
	r.pass(d)
	r.expect(what, r.members(typeURL), want)
}

// namedAfter waits for d, and fails the test if the resources subscribed to by name are not want.
func (r *rig) namedAfter(d time.Duration, what, typeURL, want string) {
	r.t.Helper()
	r.pass(d)
	r.expect(what, r.named(typeURL), want)
}

// clustersAfter waits for d, and fails the test if the wildcard set does not have want clusters.
func (r *rig) clustersAfter(d time.Duration, when string, want int) {
	r.t.Helper()
	r.pass(d)
	r.wantClusters(when, want)
}

// expect fails the test if got is not want.
func (r *rig) expect(what, got, want string) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s:\n got %s\nwant %s\n%v", what, got, want, r.State())
	}
}

// conversation returns the requests of the n-th stream, each in brackets, as transcripts write them.
func (r *rig) conversation(n int) string {
	streams := r.State().Streams
	if n >= len(streams) {
		return fmt.Sprintf("no stream %d", n)
	}
	var out []string
	for _, req := range streams[n].Requests {
		out = append(out, described(req))
	}
	return strings.Join(out, " ")
}

// described returns a request in the format of conversation.
func described(r relaytest.Request) string {
	return "[" + strings.TrimSpace(transcript.ShortName(r.TypeURL())+" "+transcript.DescribeRequest(r)) + "]"
}

// received returns a request that a manual stream received in the format of conversation.
func received(m *discoverypb.DeltaDiscoveryRequest) string {
	return described(relaytest.Request{Message: m})
}

// streams returns the number of streams that were opened, including ended ones.
func (r *rig) streams() int { return len(r.State().Streams) }

// logged is a log handler that counts log lines. Its methods may be called from any goroutine.
type logged struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

// Enabled implements slog.Handler.
func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler. It ignores the attributes.
func (l *logged) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler. It ignores the group.
func (l *logged) WithGroup(string) slog.Handler { return l }

// Handle implements slog.Handler. A line is the level, the message and the attributes of the record.
func (l *logged) Handle(_ context.Context, rec slog.Record) error {
	line := rec.Level.String() + " " + rec.Message
	rec.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return nil
}

// count returns the number of log lines that contain a text.
func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
