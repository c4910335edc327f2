package relaytest_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
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

// judged returns what a ledger finds wrong in the last step of a client: "1" is cluster "a" with this content, "-" its
// removal, "|" another stream.
func judged(t *testing.T, l *relaytest.Ledger, steps string) (wrong string) {
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

// TestLedgerJudges: what a client may be told, and what it may not.
func TestLedgerJudges(t *testing.T) {
	l := relaytest.NewLedger()
	say := func(content string) { l.Put(nil, relaytest.Cluster("a", content)) }
	say("1")
	say("2")
	l.Remove(nil, relaytest.ClusterType, "a")
	say("4")
	for _, tt := range []struct {
		what  string
		steps string
		wrong string // of the last step
	}{
		{"what there is", "4", ""},
		{"what there was, by a relay that lags", "1 2 - 4", ""},
		{"gone and back at once", "2 4", ""},
		{"never said", "3", "never said"},
		{"back in time", "2 1", "generation 1 after 2"},
		{"back in time, on another stream", "2 | 1", ""},
		{"the same again", "2 2", ""},
		{"gone after its removal", "1 -", ""},
		{"gone, though it is there", "4 -", "taken away at generation 4"},
		{"gone twice", "2 - | 1 -", ""},
		{"gone again, though it was not removed again", "2 - 4 | 4 -", "taken away at generation 4"},
	} {
		if wrong := judged(t, l, tt.steps); (wrong == "") != (tt.wrong == "") || !strings.Contains(wrong, tt.wrong) {
			t.Errorf("%s (%s): got %q, want %q", tt.what, tt.steps, wrong, tt.wrong)
		}
	}
}

// TestLedgerJudgesRepeats: who speaks Delta has said what it has, and is told it again of some
// types alone.
func TestLedgerJudgesRepeats(t *testing.T) {
	l := relaytest.NewLedger()
	cluster, endpoints := relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:1")
	l.Put(nil, cluster, endpoints)
	r := l.Reader(relaytest.Delta)
	told := func(typeURL string, m proto.Message) string { return r.Received(typeURL, "a", encoded(t, m)) }
	for range 2 {
		if wrong := told(relaytest.EndpointType, endpoints); wrong != "" {
			t.Error(wrong)
		}
	}
	if wrong := told(relaytest.ClusterType, cluster); wrong != "" {
		t.Error(wrong)
	}
	r.Opened()
	wrong := told(relaytest.ClusterType, cluster)
	if !strings.Contains(wrong, "which it has") {
		t.Errorf("told again what it has: got %q", wrong)
	}
	l.Behind(true)
	l.Behind(false)
	r.Opened()
	if wrong := told(relaytest.ClusterType, cluster); wrong != "" {
		t.Errorf("told again what it has, which may have come back: got %q", wrong)
	}
	other := relaytest.Cluster("a", "other")
	l.Put(nil, other)
	for range 2 {
		r.Opened()
		wrong = told(relaytest.ClusterType, other)
	}
	if !strings.Contains(wrong, "which it has") {
		t.Errorf("told again what came after that: got %q", wrong)
	}
	l.Repeats()
	r.Opened()
	if wrong := told(relaytest.ClusterType, other); wrong != "" {
		t.Errorf("told again what it has, since versions prove nothing: got %q", wrong)
	}
}

// TestLedgerJudgesExpiry: what lives for some time is not lost before, nor by who has
// what lives for longer.
func TestLedgerJudgesExpiry(t *testing.T) {
	l := relaytest.NewLedger()
	lose := func(ttl time.Duration, after func(*relaytest.Reader)) string {
		l.PutWithTTL(nil, relaytest.Cluster("a", ttl.String()), ttl)
		r := l.Reader(relaytest.Delta)
		if wrong := r.Received(relaytest.ClusterType, "a", encoded(t, relaytest.Cluster("a", ttl.String()))); wrong != "" {
			t.Error(wrong)
		}
		after(r)
		return r.Removed(relaytest.ClusterType, "a")
	}
	stays := func(*relaytest.Reader) {}
	if wrong := lose(0, stays); wrong != "" {
		t.Errorf("gone at its time: got %q", wrong)
	}
	if wrong := lose(time.Hour, stays); !strings.Contains(wrong, "taken away") {
		t.Errorf("gone before its time: got %q", wrong)
	}
	if wrong := lose(2*time.Hour, func(*relaytest.Reader) { l.Expire() }); wrong != "" {
		t.Errorf("gone before its time, by a clock that was set: got %q", wrong)
	}
	if wrong := lose(3*time.Hour, stays); !strings.Contains(wrong, "taken away") {
		t.Errorf("gone before its time, after a clock was set: got %q", wrong)
	}
	if wrong := lose(4*time.Hour, (*relaytest.Reader).Opened); wrong != "" {
		t.Errorf("gone by a server that knows what was before, whose time is over: got %q", wrong)
	}
}

// TestLedgerCollections: who asks for a collection has to have what is in it.
func TestLedgerCollections(t *testing.T) {
	const dir = "xdstp://a/envoy.config.cluster.v3.Cluster/dir/"
	l := relaytest.NewLedger()
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

// TestRoaming: a client whose server ends goes on to the next, says what it has, and is told
// the rest.
func TestRoaming(t *testing.T) {
	first, second, l := relaytest.NewOrigin(t, relaytest.OriginOptions{}), relaytest.NewOrigin(t, relaytest.OriginOptions{}), relaytest.NewLedger()
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
			t.Fatal("the client does not agree")
		}
	}
	agree()
	first.Stop()
	l.Put(all[1:], relaytest.Cluster("b", "other"))
	l.Remove(all[1:], relaytest.ClusterType, "a")
	agree()
	if got := c.Counts(); got.Resources != 3 || got.Removed != 1 {
		t.Errorf("got %+v, want two resources, and of the second server one more and one removal", got)
	}
	c.Pause()
	l.Put(all[1:], relaytest.Cluster("b", "another"))
	second.WaitFor(t.Context(), "the change", func(s *relaytest.OriginState) bool { return s.Last().Type(relaytest.ClusterType).Sent == 2 })
	if l.Differs(c.State(), relaytest.Delta, []relaytest.Subscription{wants}) == "" {
		t.Error("a client that is paused took a response")
	}
	c.Resume()
	agree()
}

// TestLedgerJudgesLag: while an origin may lag, clients may go back to what there was when it began to,
// and no further.
func TestLedgerJudgesLag(t *testing.T) {
	l := relaytest.NewLedger()
	judge := func(steps string, right bool, when string) {
		t.Helper()
		if wrong := judged(t, l, steps); (wrong == "") != right {
			t.Errorf("%s, %s: got %q, want it to be right: %t", steps, when, wrong, right)
		}
	}
	l.Put(nil, relaytest.Cluster("a", "1"), relaytest.Cluster("a", "2"))
	l.Behind(true)
	l.Put(nil, relaytest.Cluster("a", "3"))
	judge("3 2", true, "as when it began to lag")
	judge("3 1", false, "further back")
	judge("3 -", false, "though it was there all the time")
	l.Behind(false)
	judge("3 2", false, "once no origin lags")
	l.Remove(nil, relaytest.ClusterType, "a")
	l.Behind(true)
	l.Put(nil, relaytest.Cluster("a", "5"))
	judge("5 -", true, "as when an origin began to lag")
	l.Behind(false)
	judge("5 -", false, "once no origin lags")
}

// TestLedgerJudgesStages: a client of a stage may be taken back, and the others may lose what another relay does not show yet. What
// was there all the time, nobody may lose.
func TestLedgerJudgesStages(t *testing.T) {
	l := relaytest.NewLedger()
	l.Put(nil, relaytest.Cluster("a", "1"), relaytest.Cluster("a", "2"))
	l.Staged(func(typeURL string) bool { return typeURL == relaytest.ClusterType })
	told := func(r *relaytest.Reader, content string) string {
		return r.Received(relaytest.ClusterType, "a", encoded(t, relaytest.Cluster("a", content)))
	}
	judge := func(early bool, steps func(*relaytest.Reader) string, wrong string) {
		t.Helper()
		r := l.Reader(relaytest.Delta)
		if early {
			r.InStage()
		}
		if got := steps(r); (got == "") != (wrong == "") || !strings.Contains(got, wrong) {
			t.Errorf("of a stage: %t: got %q, want %q", early, got, wrong)
		}
	}
	back := func(r *relaytest.Reader) string { told(r, "2"); return told(r, "1") }
	again := func(r *relaytest.Reader) string { told(r, "2"); r.Opened(); return told(r, "2") }
	loses := func(r *relaytest.Reader) string { told(r, "2"); return r.Removed(relaytest.ClusterType, "a") }
	elsewhere := func(r *relaytest.Reader) string {
		told(r, "4")
		r.Opened()
		return r.Removed(relaytest.ClusterType, "a")
	}
	judge(true, back, "")
	judge(false, back, "generation 1 after 2")
	judge(true, again, "")
	judge(false, again, "which it has")
	judge(true, loses, "taken away")
	l.Remove(nil, relaytest.ClusterType, "a")
	l.Put(nil, relaytest.Cluster("a", "4"))
	judge(true, func(r *relaytest.Reader) string { told(r, "4"); return r.Removed(relaytest.ClusterType, "a") }, "")
	judge(false, func(r *relaytest.Reader) string { told(r, "4"); return r.Removed(relaytest.ClusterType, "a") }, "taken away at generation 4")
	judge(false, elsewhere, "")
}
