package relaytest_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestLedgerJudges: what a client may be told, and what it may not.
func TestLedgerJudges(t *testing.T) {
	l := relaytest.NewLedger()
	say := func(content string) { l.Put(nil, relaytest.Cluster("a", content)) }
	say("1")
	say("2")
	l.Remove(nil, relaytest.ClusterType, "a")
	say("4")
	tests := []struct {
		what  string
		steps string // contents that are told, - for gone, | for another stream
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
	}
	for _, tt := range tests {
		r, wrong := l.Reader(), ""
		for step := range strings.FieldsSeq(tt.steps) {
			switch step {
			case "|":
				r.Opened()
			case "-":
				wrong = r.Gone(relaytest.ClusterType, "a")
			default:
				value, err := proto.MarshalOptions{Deterministic: true}.Marshal(relaytest.Cluster("a", step))
				if err != nil {
					t.Fatal(err)
				}
				wrong = r.Told(relaytest.ClusterType, "a", value)
			}
		}
		if (wrong == "") != (tt.wrong == "") || !strings.Contains(wrong, tt.wrong) {
			t.Errorf("%s (%s): got %q, want %q", tt.what, tt.steps, wrong, tt.wrong)
		}
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
	opts := l.Reader().Options(relaytest.LightOptions{}, func(what string) { t.Error(what) })
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
