package ledger_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/ledger"
)

// encoded returns a message as a client receives it.
func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// lastIllegal returns why the last step of a client is illegal, or "": "1" is cluster "a" with this content, "-" its
// removal, "|" another stream.
func lastIllegal(t *testing.T, l *ledger.Ledger, steps string) (wrong string) {
	t.Helper()
	r := l.Reader(relaytest.SotW)
	for step := range strings.FieldsSeq(steps) {
		switch step {
		case "|":
			r.Opened()
		case "-":
			wrong = r.Removed(relaytest.ClusterType, "a")
		default:
			wrong = r.Received(relaytest.ClusterType, "a", encoded(t, relaytest.Cluster("a", step)))
		}
	}
	return wrong
}

// TestLedgerChecksResponses checks which contents and removals are legal.
func TestLedgerChecksResponses(t *testing.T) {
	l := ledger.New()
	put := func(content string) { l.Put(nil, relaytest.Cluster("a", content)) }
	put("1")
	put("2")
	l.Remove(nil, relaytest.ClusterType, "a")
	put("4")
	for _, tt := range []struct {
		name  string
		steps string
		wrong string // of the last step
	}{
		{"current content", "4", ""},
		{"earlier contents, by a relay that lags", "1 2 - 4", ""},
		{"removed and restored at once", "2 4", ""},
		{"unknown content", "3", "never had"},
		{"older content", "2 1", "generation 1 after 2"},
		{"older content on another stream", "2 | 1", ""},
		{"same content", "2 2", ""},
		{"removed after its removal", "1 -", ""},
		{"removed, but present", "4 -", "removed at generation 4"},
		{"removed twice", "2 - | 1 -", ""},
		{"removed twice, but restored", "2 - 4 | 4 -", "removed at generation 4"},
	} {
		if wrong := lastIllegal(t, l, tt.steps); (wrong == "") != (tt.wrong == "") || !strings.Contains(wrong, tt.wrong) {
			t.Errorf("%s (%s): got %q, want %q", tt.name, tt.steps, wrong, tt.wrong)
		}
	}
}

// TestLedgerChecksRepeats checks that content that a Delta client reported is legal for some types only.
func TestLedgerChecksRepeats(t *testing.T) {
	l := ledger.New()
	cluster, endpoints := relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:1")
	l.Put(nil, cluster, endpoints)
	r := l.Reader(relaytest.Delta)
	receive := func(typeURL string, m proto.Message) string { return r.Received(typeURL, "a", encoded(t, m)) }
	for range 2 {
		if wrong := receive(relaytest.EndpointType, endpoints); wrong != "" {
			t.Error(wrong)
		}
	}
	if wrong := receive(relaytest.ClusterType, cluster); wrong != "" {
		t.Error(wrong)
	}
	r.Opened()
	wrong := receive(relaytest.ClusterType, cluster)
	if !strings.Contains(wrong, "which the client reported") {
		t.Errorf("reported content: got %q", wrong)
	}
	l.Behind(true)
	l.Behind(false)
	r.Opened()
	if wrong := receive(relaytest.ClusterType, cluster); wrong != "" {
		t.Errorf("reported content after a lag: got %q", wrong)
	}
	other := relaytest.Cluster("a", "other")
	l.Put(nil, other)
	for range 2 {
		r.Opened()
		wrong = receive(relaytest.ClusterType, other)
	}
	if !strings.Contains(wrong, "which the client reported") {
		t.Errorf("reported content that is newer than the lag: got %q", wrong)
	}
	l.Repeats()
	r.Opened()
	if wrong := receive(relaytest.ClusterType, other); wrong != "" {
		t.Errorf("reported content after Repeats: got %q", wrong)
	}
}

// TestLedgerChecksExpiry checks that a resource may not be lost before its TTL has passed.
func TestLedgerChecksExpiry(t *testing.T) {
	l := ledger.New()
	lose := func(ttl time.Duration, after func(*ledger.Reader)) string {
		l.PutWithTTL(nil, relaytest.Cluster("a", ttl.String()), ttl)
		r := l.Reader(relaytest.Delta)
		if wrong := r.Received(relaytest.ClusterType, "a", encoded(t, relaytest.Cluster("a", ttl.String()))); wrong != "" {
			t.Error(wrong)
		}
		after(r)
		return r.Removed(relaytest.ClusterType, "a")
	}
	nothing := func(*ledger.Reader) {}
	if wrong := lose(0, nothing); wrong != "" {
		t.Errorf("removed after its TTL: got %q", wrong)
	}
	if wrong := lose(time.Hour, nothing); !strings.Contains(wrong, "removed at generation") {
		t.Errorf("removed before its TTL: got %q", wrong)
	}
	if wrong := lose(2*time.Hour, func(*ledger.Reader) { l.Expire() }); wrong != "" {
		t.Errorf("removed after the clock was set: got %q", wrong)
	}
	if wrong := lose(3*time.Hour, nothing); !strings.Contains(wrong, "removed at generation") {
		t.Errorf("removed before its TTL, after the clock was set: got %q", wrong)
	}
	if wrong := lose(4*time.Hour, (*ledger.Reader).Opened); wrong != "" {
		t.Errorf("removed by another server, after an older content expired: got %q", wrong)
	}
}

// TestLedgerCollections checks that a client with a subscription to a collection must have its members.
func TestLedgerCollections(t *testing.T) {
	const dir = "xdstp://a/envoy.config.cluster.v3.Cluster/dir/"
	l := ledger.New()
	l.Put(nil, relaytest.Cluster(dir+"x"), relaytest.Cluster("other"))
	wants := []relaytest.Subscription{{TypeURL: relaytest.ClusterType, Names: []string{dir + "*"}}}
	if got := l.Differs(relaytest.State{}, relaytest.Delta, wants); !strings.Contains(got, dir+"x") {
		t.Errorf("without the member: got %q", got)
	}
	has := relaytest.State{relaytest.ClusterType: {dir + "x": {Digest: relaytest.DigestOf(relaytest.Cluster(dir + "x"))}}}
	if got := l.Differs(has, relaytest.Delta, wants); got != "" {
		t.Errorf("with the member: got %q", got)
	}
}

// TestRoaming checks that a client whose server stops connects to the next, reports its versions, and receives the
// changes.
func TestRoaming(t *testing.T) {
	first, second, l := relaytest.NewOrigin(t, relaytest.OriginOptions{}),
		relaytest.NewOrigin(t, relaytest.OriginOptions{}), ledger.New()
	all := []*relaytest.Content{first.Content, second.Content}
	l.Put(all, relaytest.Cluster("a"), relaytest.Cluster("b"))
	var dial []func() (*grpc.ClientConn, error)
	for _, o := range []*relaytest.Origin{first, second} {
		dial = append(dial, func() (*grpc.ClientConn, error) {
			return grpc.NewClient(o.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		})
	}
	opts := l.Reader(relaytest.Delta).Options(relaytest.LightOptions{}, func(what string) { t.Error(what) })
	wants := relaytest.Subscription{TypeURL: relaytest.ClusterType}
	c := relaytest.Roam(t, opts, 0, dial, wants)
	agree := func() {
		t.Helper()
		if !c.Await(t.Context(), func(s relaytest.State) bool {
			return l.Differs(s, relaytest.Delta, []relaytest.Subscription{wants}) == ""
		}) {
			t.Fatal("the client differs from the origin")
		}
	}
	agree()
	l.Put(all[1:], relaytest.Cluster("b", "other"))
	l.Remove(all[1:], relaytest.ClusterType, "a")
	first.Stop() // once both have changed, so that the second server sends them in one response
	agree()
	if got := c.Counts(); got.Resources != 3 || got.Removed != 1 {
		t.Errorf("got %+v, want two resources, and one resource and one removal of the second server", got)
	}
	c.Pause()
	l.Put(all[1:], relaytest.Cluster("b", "another"))
	second.WaitFor(t.Context(), "the change",
		func(s *relaytest.OriginState) bool { return s.Last().Type(relaytest.ClusterType).Sent == 2 })
	if l.Differs(c.State(), relaytest.Delta, []relaytest.Subscription{wants}) == "" {
		t.Error("a paused client received a response")
	}
	c.Resume()
	agree()
}

// TestLedgerChecksLag checks that, while an origin may lag, clients may receive the content at the start of the lag,
// but nothing older.
func TestLedgerChecksLag(t *testing.T) {
	l := ledger.New()
	check := func(steps string, legal bool, when string) {
		t.Helper()
		if wrong := lastIllegal(t, l, steps); (wrong == "") != legal {
			t.Errorf("%s, %s: got %q, want it to be legal: %t", steps, when, wrong, legal)
		}
	}
	l.Put(nil, relaytest.Cluster("a", "1"), relaytest.Cluster("a", "2"))
	l.Behind(true)
	l.Put(nil, relaytest.Cluster("a", "3"))
	check("3 2", true, "content at the start of the lag")
	check("3 1", false, "content before the lag")
	check("3 -", false, "present since before the lag")
	l.Behind(false)
	check("3 2", false, "after the lag")
	l.Remove(nil, relaytest.ClusterType, "a")
	l.Behind(true)
	l.Put(nil, relaytest.Cluster("a", "5"))
	check("5 -", true, "absent at the start of the lag")
	l.Behind(false)
	check("5 -", false, "after the lag")
}

// TestLedgerChecksFreezes checks that a client that comes to a frozen relay may lose a resource that was once absent.
func TestLedgerChecksFreezes(t *testing.T) {
	l := ledger.New()
	l.Put(nil, relaytest.Cluster("a", "1"))
	check := func(steps string, legal bool, what string) {
		t.Helper()
		if wrong := lastIllegal(t, l, steps); (wrong == "") != legal {
			t.Errorf("%s (%s): got %q, want legal: %t", what, steps, wrong, legal)
		}
	}
	l.Frozen(true)
	check("1 | -", false, "always present")
	l.Remove(nil, relaytest.ClusterType, "a")
	l.Put(nil, relaytest.Cluster("a", "3"))
	check("3 | -", true, "absent at some time")
	check("3 -", false, "received on the same stream")
	l.Frozen(false)
	check("3 | -", false, "after the thaw")
}

// TestLedgerChecksStages checks that a client in a stage may be sent an earlier state, and that other clients may lose
// resources that another relay does not serve yet. No client may lose a resource that was always present.
func TestLedgerChecksStages(t *testing.T) {
	l := ledger.New()
	l.Put(nil, relaytest.Cluster("a", "1"), relaytest.Cluster("a", "2"))
	l.Staged(func(typeURL string) bool { return typeURL == relaytest.ClusterType })
	receive := func(r *ledger.Reader, content string) string {
		return r.Received(relaytest.ClusterType, "a", encoded(t, relaytest.Cluster("a", content)))
	}
	check := func(inStage bool, steps func(*ledger.Reader) string, wrong string) {
		t.Helper()
		r := l.Reader(relaytest.Delta)
		if inStage {
			r.InStage()
		}
		if got := steps(r); (got == "") != (wrong == "") || !strings.Contains(got, wrong) {
			t.Errorf("in a stage: %t: got %q, want %q", inStage, got, wrong)
		}
	}
	back := func(r *ledger.Reader) string { receive(r, "2"); return receive(r, "1") }
	again := func(r *ledger.Reader) string { receive(r, "2"); r.Opened(); return receive(r, "2") }
	loses := func(r *ledger.Reader) string { receive(r, "2"); return r.Removed(relaytest.ClusterType, "a") }
	elsewhere := func(r *ledger.Reader) string {
		receive(r, "4")
		r.Opened()
		return r.Removed(relaytest.ClusterType, "a")
	}
	check(true, back, "")
	check(false, back, "generation 1 after 2")
	check(true, again, "")
	check(false, again, "which the client reported")
	check(true, loses, "removed at generation")
	l.Remove(nil, relaytest.ClusterType, "a")
	l.Put(nil, relaytest.Cluster("a", "4"))
	check(true, func(r *ledger.Reader) string { receive(r, "4"); return r.Removed(relaytest.ClusterType, "a") }, "")
	check(false, func(r *ledger.Reader) string { receive(r, "4"); return r.Removed(relaytest.ClusterType, "a") },
		"removed at generation 4")
	check(false, elsewhere, "")
}
