package upstream

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/tier"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A report includes a response only if the look at the clients began after the loop had noted it.
func TestB49_AReportIncludesWhatWasNotedBeforeTheLook(t *testing.T) {
	var r reporting
	applied := func(nonce string, marks uint64) { r.applied = nonce; r.note(marks) }
	want := func(when string, mark uint64, nonce string, ok bool) {
		t.Helper()
		got, gotOK := r.includedIn(&clientsLook{mark: mark})
		check.Equal(t, when, got, nonce)
		check.Equal(t, when+": complete", gotOK, ok)
	}
	want("at first", 1, "", true)
	applied("1", 0)
	want("noted before the look", 1, "1", true)
	applied("2", 1)
	applied("3", 1)
	want("noted during the look", 1, "1", true)
	r.note(2) // nothing new
	want("after a new look has begun", 1, "1", true)
	want("the new look", 2, "3", true)
	applied("4", 3)
	want("an old look", 2, "", false)
	want("the newest look", 3, "3", true)
	want("the next look", 4, "4", true)
}

// reportsIn returns the requests with reports that a stream has queued.
func reportsIn(t *testing.T, l *adsStream) (all []*tier.Report) {
	t.Helper()
	for len(l.out) > 0 {
		encoded, err := proto.Marshal(<-l.out)
		check.OK(t, err)
		r := wire.Request{Delta: true, Limits: wire.Limits{MaxReportBytes: tier.MaxBytes}}
		check.OK(t, r.Decode(encoded))
		report, err := tier.Decode(r.Report)
		check.OK(t, err)
		all = append(all, report)
	}
	return all
}

// A stream carries a changed report at most every 2 s, an unchanged one every 15 s, and none once nobody looks any more. A
// second stream reports that it has no clients.
func TestB49_ReportsAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBranch()
		v := &streams{trunk: b}
		for r := main; r <= auxiliary; r++ {
			l := &b.byRole[r]
			l.stream = &stream{branch: b, role: r, out: make(chan proto.Message, sendQueue), nodeSent: true}
			l.open, l.reporting.accepted = true, true
		}
		control := NewControl(false, nil)
		look := func(clients int) {
			var found tier.Report
			for range clients {
				found.All.Add(tier.Client{Sync: tier.InSync})
			}
			control.EndLook(control.BeginLook(), found, time.Now())
		}
		var first, second []*tier.Report
		run := func(d time.Duration, clients func(second int) int) {
			for i := range int(d / time.Second) {
				if clients != nil {
					look(clients(i))
				}
				v.reportClients(&control.below, time.Now())
				first = append(first, reportsIn(t, &b.byRole[main])...)
				second = append(second, reportsIn(t, &b.byRole[auxiliary])...)
				time.Sleep(time.Second)
			}
		}
		run(10*time.Second, func(i int) int { return i })
		check.Equal(t, "reports of changes", len(first), 5)
		check.Equal(t, "reports without clients", len(second), 1)
		check.Equal(t, "clients", first[4].All.Clients()+second[0].All.Clients(), 8)
		time.Sleep(time.Hour)
		first, second = nil, nil
		run(time.Minute, func(int) int { return 9 })
		check.Equal(t, "unchanged reports", len(first), 4)
		time.Sleep(time.Minute)
		first = nil
		run(time.Hour, nil)
		check.Equal(t, "reports without a look", len(first), 0)
		if accepts := control.AcceptsReports(); !accepts {
			t.Error("no stream accepts reports, want true")
		}
	})
}

// The request with a report has nothing else, in both variants.
func TestB49_AReportIsARequestOfItsOwn(t *testing.T) {
	for _, sotw := range []bool{false, true} {
		l := &adsStream{stream: &stream{out: make(chan proto.Message, 1)}}
		if sotw {
			l.sotw = newSotwState()
		}
		l.report(noClients, "7", time.Now())
		request := <-l.out
		if _, is := request.(*discoverypb.DiscoveryRequest); is != sotw {
			t.Errorf("sotw %v: request is a %T", sotw, request)
		}
		known := proto.Clone(request)
		known.ProtoReflect().SetUnknown(nil)
		check.Equal(t, "size without the report", proto.Size(known), 0)
	}
}

// TestB55_TheTrunkIsHeard: each main stream asks for halts and keeps the last message, and that of the trunk counts. So a branch
// that becomes the trunk needs no new stream to be heard. A trunk that has heard nothing yet ends nothing.
func TestB55_TheTrunkIsHeard(t *testing.T) {
	_, w := cache.New(cache.Config{})
	v := benchMirror(t, w)
	v.cfg.Chain = struct{ Chain }{}
	var heard []string
	v.control.NotifyHalts(func(target string, told []byte) {
		if told == nil {
			told = []byte("nothing")
		}
		if target != v.cfg.Targets[0] {
			told = append([]byte(target+": "), told...)
		}
		heard = append(heard, string(told))
	})
	expect := func(when string, want ...string) {
		t.Helper()
		check.Equal(t, when, strings.Join(heard, " "), strings.Join(want, " "))
		heard = nil
	}
	newStream := func(of *branch, r role) *adsStream {
		l := &of.byRole[r]
		l.stream = benchStream(v, r)
		l.branch, l.open, l.target = of, true, v.cfg.Targets[0]
		return l
	}
	tell := func(l *adsStream, text string) {
		v.handleEvent(event{stream: l.stream, halts: []byte(text)}, time.Now())
	}
	header := func(l *adsStream, tells bool) {
		v.handleEvent(event{stream: l.stream, header: true, tells: tells}, time.Now())
	}
	first := newStream(v.trunk, main)
	v.isolated = []*branch{newBranch()}
	second := newStream(v.isolated[0], main)
	for r, asks := range map[role]bool{main: true, auxiliary: false} {
		md, _ := metadata.FromOutgoingContext(v.askForHalts(t.Context(), r))
		check.Equal(t, fmt.Sprint("asks on stream ", r), len(md[wire.HaltsHeader]) > 0, asks)
	}
	swap := func() { // the trunk has ended, and is not used
		from, to := v.trunk, v.isolated[0]
		from.byRole[main].open, to.byRole[main].open = false, true
		clear(from.subs)
		v.sub(to, wire.ClusterType).wildcardRole = main
		v.stepBranches(time.Now())
		if v.trunk != to {
			t.Fatal("the branch is not the trunk")
		}
	}
	header(first, true)
	header(second, true)
	expect("headers")
	tell(first, "one")
	expect("the trunk is told", "one")
	buffer := []byte("two")
	v.handleEvent(event{stream: second.stream, halts: buffer}, time.Now())
	copy(buffer, "xxx") // it belongs to the stream
	expect("a branch is told")
	swap()
	expect("the branch is the trunk", "two")
	tell(first, "three")
	expect("the former trunk is told")
	swap()
	expect("the first trunk again", "three")
	second.heard, second.told = false, nil // with a new stream
	swap()
	expect("a trunk that has heard nothing")
	header(second, false)
	expect("it tells nothing", "nothing")
	first.target = "other" // the view has changed its target meanwhile
	swap()
	expect("the stream of another target", "other: three")
	second.open = false
	v.trunk, v.isolated[0] = v.isolated[0], v.trunk
	v.hearTrunk()
	expect("a closed stream")
}
