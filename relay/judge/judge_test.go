package judge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3" // to decode Any in bootstraps
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/rollout"
)

// A behavior is what a fake Envoy does with what it is served.
type behavior struct {
	after    time.Duration     // when it answers
	rejected map[string]string // with NACKs
	hangs    bool              // it does not answer
	exit     *Exit             // it ends
}

// A fakeEnvoy is the process of an Envoy, and the server of it.
type fakeEnvoy struct {
	t    *testing.T
	good behavior            // what each process does with the last good
	with map[string]behavior // what each process does with the edition, by group
	only map[string]bool     // groups that have wildcards; nil for all

	startError error
	started    int
	running    int

	shown   []string // what was served to processes
	current behavior
	since   time.Time
	process *fakeProcess
}

// A fakeProcess implements Process.
type fakeProcess struct {
	of    *fakeEnvoy
	ended chan struct{}
	exit  Exit
}

func (p *fakeProcess) Ended() <-chan struct{} { return p.ended }
func (p *fakeProcess) Exit() Exit             { return p.exit }

func (p *fakeProcess) End() {
	p.finish(Exit{Text: "signal: terminated"})
	p.of.running--
}

// finish ends the process, unless it has ended.
func (p *fakeProcess) finish(exit Exit) {
	select {
	case <-p.ended:
	default:
		p.exit = exit
		close(p.ended)
	}
}

// start implements Judge.start.
func (f *fakeEnvoy) start([]byte) (Process, error) {
	if f.startError != nil {
		return nil, f.startError
	}
	f.started++
	if f.running++; f.running > 1 {
		f.t.Errorf("%d processes run at once", f.running)
	}
	f.process = &fakeProcess{of: f, ended: make(chan struct{})}
	f.begin()
	return f.process, nil
}

func (f *fakeEnvoy) Group(key string) (*corepb.Node, []string) {
	if f.only != nil && !f.only[key] {
		return nil, nil
	}
	return &corepb.Node{Id: key}, schema.Roots
}

func (f *fakeEnvoy) Show(s rollout.Subject, edition bool) {
	f.current = f.good
	what := "last good"
	if edition {
		f.current, what = f.with[s.Group], "edition"
	}
	f.shown = append(f.shown, s.Group+" "+what)
	if edition {
		f.begin()
	}
}

// begin makes the process behave as it does with what it is shown.
func (f *fakeEnvoy) begin() {
	f.since = time.Now()
	if p, exit := f.process, f.current.exit; exit != nil {
		time.AfterFunc(f.current.after, func() { p.finish(*exit) })
	}
}

func (f *fakeEnvoy) Answer([]string) Answer {
	if f.current.hangs || f.current.exit != nil || time.Since(f.since) < f.current.after {
		return Answer{}
	}
	return Answer{Settled: true, Rejected: f.current.rejected}
}

func (f *fakeEnvoy) Hide() { f.shown = append(f.shown, "nothing") }

// judge returns the judge of the Envoy.
func (f *fakeEnvoy) judge() *Judge {
	return &Judge{version: "1.2.3", server: f, start: f.start, turn: make(chan struct{}, 1)}
}

// subjects returns an edition that changes cluster web and listener new in some groups.
func subjects(groups ...string) (all []rollout.Subject) {
	for _, group := range groups {
		all = append(all, rollout.Subject{
			Group: group, Types: []string{wire.ClusterType, wire.ListenerType},
			Changes: []downstream.Change{{Key: wire.ClusterType, Names: []string{"web"}}, {Key: wire.ListenerType, Names: []string{"new"}}},
		})
	}
	return all
}

var (
	segfault = &Exit{Text: "signal: segmentation fault", Crashed: true, Output: "Caught Segmentation fault"}
	failure  = &Exit{Text: "exit status 1", Output: "no memory"}
	killed   = &Exit{Text: "signal: killed"}
)

// TestB52_Judge: what an edition is judged to be, for what an Envoy does with it and with the last good.
func TestB52_Judge(t *testing.T) {
	bad := map[string]string{wire.ListenerType: "bad listener"}
	listener := func(detail string) map[string]string {
		return map[string]string{wire.ListenerType: "listener(s) " + detail}
	}
	old := listener("old: bad")
	for name, tt := range map[string]struct {
		envoy                         fakeEnvoy
		rejected, notJudged, accepted string // parts of the judgement; empty if it has none
		started                       int
	}{
		"accepts": {fakeEnvoy{}, "", "", "accepted by Envoy 1.2.3", 1},
		"rejects": {fakeEnvoy{with: map[string]behavior{"a": {rejected: bad}}},
			`local Envoy 1.2.3 (TENDER_CHECK_ENVOY), node group "a": rejected ` + wire.ListenerType + ": bad listener", "", "", 1},
		"rejects a type that did not change": {fakeEnvoy{
			with: map[string]behavior{"a": {rejected: map[string]string{wire.SecretType: "bad"}}}}, "", "", "accepted by Envoy 1.2.3", 1},
		"also rejects the last good": {
			fakeEnvoy{good: behavior{rejected: bad}, with: map[string]behavior{"a": {rejected: bad}}},
			"", "it also rejects the last good: " + wire.ListenerType + ": bad listener", "accepted by Envoy 1.2.3", 1},
		"rejects all types of the last good": {
			fakeEnvoy{good: behavior{rejected: map[string]string{wire.ClusterType: "x", wire.ListenerType: "y"}}},
			"", "it also rejects the last good: " + wire.ClusterType + ": x", "", 1},
		"rejects another type of the last good": {
			fakeEnvoy{good: behavior{rejected: map[string]string{wire.ClusterType: "x"}}, with: map[string]behavior{"a": {rejected: bad}}},
			"rejected " + wire.ListenerType + ": bad listener", "", "", 1},
		"rejects more than of the last good": {
			fakeEnvoy{good: behavior{rejected: old}, with: map[string]behavior{"a": {rejected: listener("old: bad, new: bad")}}},
			"rejected " + wire.ListenerType + ": listener(s) old: bad, new: bad", "", "", 1},
		"rejects the change of what it rejected before": {
			fakeEnvoy{good: behavior{rejected: listener("new: bad")}, with: map[string]behavior{"a": {rejected: listener("new: bad")}}},
			"", "it also rejects the last good: " + wire.ListenerType + ": listener(s) new: bad", "accepted by Envoy 1.2.3", 1},
		"rejects all types of the last good, and more": {
			fakeEnvoy{
				good: behavior{rejected: map[string]string{wire.ClusterType: "x", wire.ListenerType: "y"}},
				with: map[string]behavior{"a": {rejected: listener("new: bad")}},
			},
			"rejected " + wire.ListenerType + ": listener(s) new: bad", "", "", 1},
		"rejects a changed name of another type": {
			fakeEnvoy{good: behavior{rejected: old}, with: map[string]behavior{"a": {rejected: listener("old: cluster web is bad")}}},
			"", "it also rejects the last good: ", "accepted by Envoy 1.2.3", 1},
		"crashes with the edition, and rejects the last good": {
			fakeEnvoy{
				good: behavior{rejected: map[string]string{wire.ClusterType: "x", wire.ListenerType: "y"}},
				with: map[string]behavior{"a": {exit: segfault}},
			},
			"crashed twice with the edition", "", "", 2},
		"crashes with the edition": {fakeEnvoy{with: map[string]behavior{"a": {exit: segfault}}},
			"crashed twice with the edition, and not with the last good: signal: segmentation fault: Caught Segmentation fault", "", "", 2},
		"crashes with the last good": {fakeEnvoy{good: behavior{exit: segfault}},
			"", "it ended with the last good: signal: segmentation fault", "", 1},
		"fails with the edition": {fakeEnvoy{with: map[string]behavior{"a": {exit: failure}}},
			"", "it ended with the edition: exit status 1: no memory", "", 1},
		"is killed with the edition": {fakeEnvoy{with: map[string]behavior{"a": {exit: killed}}},
			"", "it ended with the edition: signal: killed", "", 1},
		"hangs with the last good": {fakeEnvoy{good: behavior{hangs: true}},
			"", "it did not answer in time with the last good", "", 1},
		"hangs with the edition": {fakeEnvoy{with: map[string]behavior{"a": {hangs: true}}},
			"", "it did not answer in time with the edition", "", 1},
		"does not start": {fakeEnvoy{startError: errors.New("no namespaces")}, "", "no namespaces", "", 0},
		"has no wildcard": {fakeEnvoy{only: map[string]bool{}},
			"", "in no changed node group, clients subscribe to all clusters or all listeners", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &tt.envoy
				f.t = t
				began := time.Now()
				got := f.judge().Judge(t.Context(), subjects("a"))
				for what, parts := range map[string][2]string{
					"Rejected": {got.Rejected, tt.rejected}, "NotJudged": {got.NotJudged, tt.notJudged}, "Accepted": {got.Accepted, tt.accepted},
				} {
					if is, want := parts[0], parts[1]; !strings.Contains(is, want) || (is == "") != (want == "") {
						t.Errorf("%s is %q, want %q", what, is, want)
					}
				}
				if f.started != tt.started || f.running != 0 {
					t.Errorf("%d processes were started and %d run, want %d and none", f.started, f.running, tt.started)
				}
				want := map[string]string{}
				if _, detail, nacked := strings.Cut(tt.rejected, "rejected "+wire.ListenerType+": "); nacked {
					want[wire.ListenerType] = detail
				}
				if !maps.Equal(got.NACKs, want) {
					t.Errorf("NACKs %q, want %q", got.NACKs, want)
				}
				if took := time.Since(began); took > rollout.JudgeLimit {
					t.Errorf("the judge took %v, longer than %v", took, rollout.JudgeLimit)
				}
			})
		})
	}
}

// TestB52_CrashCountsOnlyTwice: an Envoy that crashes once with an edition, and not the second time, has accepted it.
func TestB52_CrashCountsOnlyTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEnvoy{t: t, with: map[string]behavior{"a": {exit: segfault}}}
		j := f.judge()
		start := j.start
		j.start = func(b []byte) (Process, error) {
			if f.started == 1 {
				f.with = nil
			}
			return start(b)
		}
		if got := j.Judge(t.Context(), subjects("a")); got.Accepted == "" || got.Rejected+got.NotJudged != "" || f.started != 2 {
			t.Errorf("judgement %+v after %d processes", got, f.started)
		}
	})
}

// TestB52_GroupsInTurn: groups are judged one after the other, each first with the last good. Those for which no time is left are
// not judged, and a rejection ends the trials.
func TestB52_GroupsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEnvoy{t: t, only: map[string]bool{"a": true, "c": true, "d": true}, with: map[string]behavior{
			"c": {rejected: map[string]string{wire.ClusterType: "bad cluster"}},
		}}
		got := f.judge().Judge(t.Context(), subjects("a", "b", "c", "d"))
		want := []string{"a last good", "a edition", "nothing", "c last good", "c edition", "nothing"}
		if !slices.Equal(f.shown, want) || !strings.Contains(got.Rejected, `node group "c"`) {
			t.Errorf("judgement %+v after %q, want %q", got, f.shown, want)
		}
		var many []string
		for i := range 100 {
			many = append(many, fmt.Sprint("group-", i))
		}
		f = &fakeEnvoy{t: t, good: behavior{after: 5 * time.Second}}
		got = f.judge().Judge(t.Context(), subjects(many...))
		if got.Accepted == "" || got.Rejected != "" || !strings.Contains(got.NotJudged, "of 100 node groups: the time was over") {
			t.Errorf("judgement %+v", got)
		}
	})
}

// TestB52_OneEnvoyAtATime: editions of two origins are judged one after the other. The second one is not judged if the first
// takes all of its time, and a judge whose edition has ended ends its Envoy.
func TestB52_OneEnvoyAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEnvoy{t: t, good: behavior{hangs: true}}
		j := f.judge()
		first, second := make(chan rollout.Judgement), make(chan rollout.Judgement)
		go func() { first <- j.Judge(t.Context(), subjects("a")) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		go func() { second <- j.Judge(ctx, subjects("a")) }()
		if got := <-second; got.NotJudged != "the editions of other origins took all of the time" {
			t.Errorf("second: %+v", got)
		}
		if got := <-first; got.NotJudged == "" || f.started != 1 || f.running != 0 {
			t.Errorf("first: %+v after %d processes, of which %d run", got, f.started, f.running)
		}
	})
}

// TestB52_Bootstrap: Envoy's definitions accept the bootstrap, which has no admin endpoint and connects only to the relay.
func TestB52_Bootstrap(t *testing.T) {
	node := &corepb.Node{
		Id: "a", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"zone": structpb.NewStringValue("1")}},
		UserAgentName: "tender", ClientFeatures: []string{"x"},
	}
	text, err := bootstrap("/tmp/dir/xds.sock", node, []string{wire.ClusterType}, []string{"static"})
	if err != nil {
		t.Fatal(err)
	}
	var b bootstrappb.Bootstrap
	if err := protojson.Unmarshal(text, &b); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if n := b.GetNode(); n.GetId() != "a" || n.GetCluster() != ownCluster || n.GetUserAgentName() != "" || n.GetMetadata() == nil {
		t.Errorf("node %v", n)
	}
	d := b.GetDynamicResources()
	if b.GetAdmin() != nil || d.GetCdsConfig().GetAds() == nil || d.GetLdsConfig() != nil {
		t.Errorf("bootstrap %s", text)
	}
	var names []string
	for _, c := range b.GetStaticResources().GetClusters() {
		pipe := c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetPipe().GetPath()
		names = append(names, c.GetName()+" "+pipe)
	}
	if want := []string{ownCluster + " /tmp/dir/xds.sock", "static /tmp/dir/xds.sock"}; !slices.Equal(names, want) {
		t.Errorf("clusters %q, want %q", names, want)
	}
}
