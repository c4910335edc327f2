package upstream_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

const (
	clusters  = relaytest.ClusterType
	endpoints = relaytest.EndpointType
	listeners = relaytest.ListenerType
)

// A rig is a mirror of an origin, seen from both ends: what clients would want
// and see is the view, what the origin sees is in its record.
type rig struct {
	*relaytest.Origin
	t     testing.TB
	w     *cache.Writer
	view  *cache.View
	watch *cache.Watch
	log   *logged

	control *upstream.Control
	session *upstream.Session
	stop    func() // ends the mirror; may be called again
}

// inBubble runs a test of a mirror and an origin on virtual time. The bubble
// itself fails the test if any goroutine outlives the mirror.
func inBubble(t *testing.T, b relaytest.Behaviour, cfg upstream.Config, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Behaviour: b})
		test(t, viewSync(t, o, cfg))
	})
}

// mirror keeps a view like an origin until the test ends.
func viewSync(t testing.TB, o *relaytest.Origin, cfg upstream.Config) *rig {
	t.Helper()
	return restored(t, o, cfg, nil)
}

// restored is mirror for a view that begins with a snapshot, if there is one.
func restored(t testing.TB, o *relaytest.Origin, cfg upstream.Config, s *cache.Snapshot) *rig {
	t.Helper()
	return decided(t, o, cfg, s, upstream.NewControl(false, nil))
}

// decided is restored with what operators had decided before.
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
		session.Sync(ctx, &corepb.Node{Id: "relay"}, w, log, r.control)
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

// audit holds what a test made of a view to the view's own invariants (B.43).
func audit(t testing.TB, view *cache.View) {
	t.Helper()
	for fault := range view.Audit(func() bool { return true }) {
		t.Errorf("audit of the view: %+v", fault)
	}
}

// put has the origin hold resources, each written name@version.
func (r *rig) put(typeURL string, resources ...string) {
	r.Apply(func(tx *relaytest.Tx) { putIn(tx, typeURL, resources...) })
}

func putIn(tx *relaytest.Tx, typeURL string, resources ...string) {
	for _, text := range resources {
		name, version, _ := strings.Cut(text, "@")
		tx.Set(typeURL, name, relaytest.Opaque(typeURL, name, []byte(version)), version)
	}
}

// pass lets d pass, and then everything come to rest.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d) // virtual
	synctest.Wait()
}

// soon is enough for a batch of names, and less than any other time.
const soon = 20 * time.Millisecond

// members shows what wildcard clients see, as name@version.
func (r *rig) members(typeURL string) string {
	t := r.view.Generation().Type(typeURL)
	return show(&t.Wildcard)
}

// named shows what the view holds of what was asked for by name; a name that the
// origin says does not exist as !name.
func (r *rig) named(typeURL string) string {
	t := r.view.Generation().Type(typeURL)
	return show(&t.ByName)
}

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

// present is members or named without what is absent.
func present(shown string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(shown), func(s string) bool { return s[0] == '!' }), " ")
}

// follow has the origin hold resources, and clients subscribe to all of them, until the set is confirmed.
func (r *rig) follow(typeURL string, resources ...string) {
	r.put(typeURL, resources...)
	r.watch.SubscribeAll(typeURL)
	r.pass(confirmed)
}

// membersAfter lets d pass, and fails the test if wildcard clients do not see what is wanted.
func (r *rig) membersAfter(d time.Duration, what, typeURL, want string) {
	r.t.Helper()
	r.pass(d)
	r.expect(what, r.members(typeURL), want)
}

// namedAfter is membersAfter for what was asked for by name.
func (r *rig) namedAfter(d time.Duration, what, typeURL, want string) {
	r.t.Helper()
	r.pass(d)
	r.expect(what, r.named(typeURL), want)
}

// clustersAfter lets d pass, and fails the test unless the view has so many clusters.
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

// conversation shows the requests of the n-th stream, one in brackets each: the
// type's short name, +name for subscribe, -name for unsubscribe, name=version for
// what is held, ack or nack with the nonce, node if there is one.
func (r *rig) conversation(n int) string {
	streams := r.State().Streams
	if n >= len(streams) {
		return fmt.Sprintf("no stream %d", n)
	}
	var out []string
	for _, req := range streams[n].Requests {
		if req.SotW != nil {
			out = append(out, showList(req.SotW))
		} else {
			out = append(out, showRequest(req.Message))
		}
	}
	return strings.Join(out, " ")
}

// showList shows a request of SotW: the type's short name, node if there is one, the
// names, the version, and ack or nack with the nonce.
func showList(m *discoverypb.DiscoveryRequest) string {
	typeURL := m.GetTypeUrl()
	words := []string{typeURL[strings.LastIndexByte(typeURL, '.')+1:]}
	if m.GetNode() != nil {
		words = append(words, "node")
	}
	words = append(words, m.GetResourceNames()...)
	if v := m.GetVersionInfo(); v != "" {
		words = append(words, "version="+v)
	}
	switch {
	case m.GetErrorDetail() != nil:
		words = append(words, "nack", m.GetResponseNonce())
	case m.GetResponseNonce() != "":
		words = append(words, "ack", m.GetResponseNonce())
	}
	return "[" + strings.Join(words, " ") + "]"
}

func showRequest(m *discoverypb.DeltaDiscoveryRequest) string {
	typeURL := m.GetTypeUrl()
	words := []string{typeURL[strings.LastIndexByte(typeURL, '.')+1:]}
	if m.GetNode() != nil {
		words = append(words, "node")
	}
	for _, name := range slices.Sorted(slices.Values(m.GetResourceNamesSubscribe())) {
		words = append(words, "+"+name)
	}
	for _, name := range slices.Sorted(slices.Values(m.GetResourceNamesUnsubscribe())) {
		words = append(words, "-"+name)
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetInitialResourceVersions())) {
		words = append(words, name+"="+m.GetInitialResourceVersions()[name])
	}
	switch {
	case m.GetErrorDetail() != nil:
		words = append(words, "nack", m.GetResponseNonce())
	case m.GetResponseNonce() != "":
		words = append(words, "ack", m.GetResponseNonce())
	}
	return "[" + strings.Join(words, " ") + "]"
}

// streams returns how many streams there were, ended ones included.
func (r *rig) streams() int { return len(r.State().Streams) }

// logged counts log lines. Its methods may be called from any goroutine.
type logged struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logged) WithGroup(string) slog.Handler            { return l }

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

// count returns how many lines hold a text.
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
