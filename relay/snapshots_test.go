package relay

import (
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/generations"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// TestB42_ChangedViewsAreWritten checks that a snapshot is written when the view or its target has changed, and removed
// when the group is removed.
func TestB42_ChangedViewsAreWritten(t *testing.T) {
	cfg, err := LoadConfig([]string{"TENDER_ORIGIN=a:1,b:1", "TENDER_SNAPSHOT_DIR=" + t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	in := settingsOf(&cfg, "1")
	node := in.node
	s, err := openSnapshots(in, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, w := cache.New(cache.Config{})
	s.track(0, "g", node, viewCapture{list: pending.New(w, nil)}, false)
	set := func(version string) {
		r, err := wire.NewResource(wire.ClusterType, "c", version, []byte(version))
		if err != nil {
			t.Fatal(err)
		}
		w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{r}})
		w.SetPhase(wire.ClusterType, cache.Confirmed)
	}
	for _, step := range []struct {
		name    string
		do      func()
		written int64
	}{
		{"the first", func() { set("1"); w.SetTarget("a:1") }, 1},
		{"nothing new", func() {}, 1},
		{"a change", func() { set("2") }, 2},
		{"the same from another address", func() { w.SetTarget("b:1") }, 3},
		{"nothing new from there", func() {}, 3},
	} {
		step.do()
		s.write()
		if got := s.dir.Stats().Written; got != step.written {
			t.Errorf("%s: %d snapshots were written, want %d", step.name, got, step.written)
		}
	}
	if got := s.dir.Load(time.Now(), time.Hour); len(got) != 1 || got[0].Target != "b:1" {
		t.Errorf("loaded %+v, want one from b:1", got)
	}
	s.drop(0, "g", "", false)
	s.write()
	if files, err := filepath.Glob(filepath.Join(string(cfg.SnapshotDir), "*.snapshot")); err != nil || len(files) != 0 {
		t.Errorf("the group was removed: %v, remaining files %v", files, err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// A busyView is a view with a change that waits for an operator. Nobody serves its control.
type busyView struct {
	viewCapture
	served string // version of the cluster that clients are served
}

// newBusyView returns a view whose generations are kept.
func newBusyView(t *testing.T) *busyView {
	t.Helper()
	view, w := cache.New(cache.Config{})
	v := &busyView{viewCapture{
		list: pending.New(w, nil), control: upstream.NewControl(false, nil),
		line: generations.New(1<<20).Open(generations.Key{}, view, 0, nil),
	}, "1"}
	v.state(t, "1")
	w.SetPhase(wire.ClusterType, cache.Confirmed)
	v.list.Freeze()
	v.state(t, "2")
	return v
}

// state states a version of the cluster of the view.
func (v *busyView) state(t *testing.T, version string) {
	t.Helper()
	r, err := wire.NewResource(wire.ClusterType, "c", version, []byte{0x0a, 1, 'c', 0xe2, 0x01, 1, version[0]}) // with alt_stat_name
	check.OK(t, err)
	v.list.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{r}})
}

// check fails the test unless a snapshot has what the view serves, and the change that waits if waits is set.
func (v *busyView) check(t *testing.T, snap *cache.Snapshot, waits bool) {
	t.Helper()
	if snap == nil || len(snap.Types) != 1 || len(snap.Types[0].Wildcard.Entries) != 1 ||
		snap.Types[0].Wildcard.Entries[0].Resource.OriginVersion != v.served || len(snap.Types[0].Waiting) > 0 != waits {
		t.Errorf("snapshot %+v, want version %s, and that a change waits: %t", snap, v.served, waits)
	}
}

// newTestSnapshots returns the snapshots of a relay with one origin, and the Node of a group.
func newTestSnapshots(t *testing.T) (*snapshots, *corepb.Node) {
	t.Helper()
	cfg, err := LoadConfig([]string{"TENDER_ORIGIN=a:1", "TENDER_SNAPSHOT_DIR=" + t.TempDir()})
	check.OK(t, err)
	in := settingsOf(&cfg, "1")
	s, err := openSnapshots(in, slog.New(slog.DiscardHandler))
	check.OK(t, err)
	t.Cleanup(func() { check.OK(t, s.close()) })
	return s, in.node
}

// TestB56_ABusyLoopKeepsTheFile: while the loop of a view does not answer, the relay keeps the last snapshot of the view. It
// writes the others.
func TestB56_ABusyLoopKeepsTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, node := newTestSnapshots(t)
		idle, busy := newBusyView(t), newBusyView(t)
		idle.control = nil // nothing waits in it
		s.track(0, "busy", node, viewCapture{list: busy.list, line: busy.line}, false)
		s.write()
		s.track(0, "busy", node, busy.viewCapture, true)
		s.track(0, "idle", node, idle.viewCapture, false)
		s.write()
		if !s.failed || s.dir.Stats().Written != 2 {
			t.Errorf("failed: %t, %d snapshots written; want a failure and the other view's", s.failed, s.dir.Stats().Written)
		}
		if all := s.dir.Load(time.Now(), time.Hour); len(all) != 2 {
			t.Errorf("%d snapshots on disk, want that of each view", len(all))
		}
		busy.list.Close()
		busy.control.End()
		s.write()
		for _, snap := range s.dir.Load(time.Now(), time.Hour) {
			busy.check(t, snap, snap.Group == "busy")
		}
	})
}

// TestB56_AnEvictedViewOutlivesABusyLoop: while the loop of an evicted view does not end, a returning client gets what it was
// served, after a short time. The snapshot of the view with what waits is written once the loop has ended.
func TestB56_AnEvictedViewOutlivesABusyLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, node := newTestSnapshots(t)
		v := newBusyView(t)
		s.track(0, "g", node, v.viewCapture, false)
		s.drop(0, "g", "", true)
		restore := func() *cache.Snapshot {
			_, w := cache.New(cache.Config{})
			return s.restore(0, "g", node, w)
		}
		began := time.Now()
		ended := make(chan struct{})
		go func() { // awaited below
			defer close(ended)
			s.write() // takes longer than restore
		}()
		v.check(t, restore(), false)
		if took := time.Since(began); took > recallWait {
			t.Errorf("the client, and all others that join, waited for %v, want at most %v", took, recallWait)
		}
		<-ended
		v.check(t, restore(), false)
		v.control.End()
		v.list.Close()
		v.check(t, restore(), true)
		if s.write(); len(s.removed) != 0 {
			t.Errorf("%d removed views are kept in memory, want none after their snapshots were written", len(s.removed))
		}
		h := s.headers.of(0, "g", node)
		v.check(t, s.dir.Recall(&h, time.Now(), time.Hour), true)
	})
}

// TestB42_MatchingSnapshots checks that a snapshot matches if the settings that affect the resources are equal. An
// upgrade of the relay does not cause a cold start.
func TestB42_MatchingSnapshots(t *testing.T) {
	client := &corepb.Node{
		Id: "client", Cluster: "c", UserAgentName: "envoy", Locality: &corepb.Locality{Region: "r"},
		UserAgentVersionType: &corepb.Node_UserAgentVersion{UserAgentVersion: "1.34.2"},
		ClientFeatures:       nodegroup.ContentFeatures,
	}
	base := []string{"TENDER_ORIGIN=a:1,b:1", "TENDER_ORIGINS=x=c:1", "TENDER_ROUTES=type:lds=x", "TENDER_NODE_ID=n"}
	of := func(version string, env ...string) *snapshotHeaders {
		cfg, err := LoadConfig(append(env, base...)) // the first of several entries counts
		if err != nil {
			t.Fatal(err)
		}
		return &snapshotHeaders{settings: settingsOf(&cfg, version)}
	}
	const grouping = "TENDER_NODE_GROUP_BY=user_agent_name,user_agent_version,locality.region,metadata.m"
	tests := []struct {
		name      string
		was, is   *snapshotHeaders
		origin    int
		shared    bool
		wantMatch bool
	}{
		{name: "the same", was: of("1"), is: of("1"), wantMatch: true},
		{name: "an upgrade", was: of("1"), is: of("2"), wantMatch: true},
		{name: "an upgrade, versions of clients in the key", was: of("1", grouping), is: of("2", grouping), wantMatch: true},
		{name: "shared names", was: of("1"), is: of("2"), shared: true, wantMatch: true},
		{name: "shared names, other groups", was: of("1"), is: of("1", grouping), shared: true, wantMatch: true},
		{name: "another origin's route", was: of("1"), is: of("1", "TENDER_ROUTES=type:rds=x"), wantMatch: true},
		{name: "other targets", was: of("1"), is: of("1", "TENDER_ORIGIN=a:1")},
		{name: "targets in another order", was: of("1"), is: of("1", "TENDER_ORIGIN=b:1,a:1")},
		{name: "other targets of another origin", was: of("1"), is: of("1", "TENDER_ORIGINS=x=d:1"), wantMatch: true},
		{name: "other targets of this origin", was: of("1"), is: of("1", "TENDER_ORIGINS=x=d:1"), origin: 1},
		{name: "an origin of another name", was: of("1"), is: of("1", "TENDER_ORIGINS=y=c:1", "TENDER_ROUTES=type:lds=y"),
			origin: 1},
		{name: "another id", was: of("1"), is: of("1", "TENDER_NODE_ID=m")},
		{name: "another id, shared names", was: of("1"), is: of("1", "TENDER_NODE_ID=m"), shared: true},
		{name: "other groups", was: of("1"), is: of("1", grouping)},
		{name: "other versions", was: of("1"), is: of("1", "TENDER_DELTA_VERSIONS=content")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			key, node := nodegroup.Sort(client, proto.CloneOf(tt.was.settings.node), tt.was.settings.groupBy)
			if tt.shared {
				key, node = sharedGroupOf(node.GetClientFeatures()), sharedNode(tt.was.settings.node, node.GetClientFeatures())
			}
			h := tt.was.of(tt.origin, key, node)
			got, err := tt.is.match(&h)
			if (err == nil) != tt.wantMatch {
				t.Fatalf("match = %v, want a match: %v", err, tt.wantMatch)
			}
			if err != nil {
				return
			}
			want := node
			if !tt.shared {
				_, want = nodegroup.Sort(client, proto.CloneOf(tt.is.settings.node), tt.is.settings.groupBy)
			} else {
				want = sharedNode(tt.is.settings.node, node.GetClientFeatures())
			}
			if !proto.Equal(got, want) {
				t.Errorf("match returned the Node %v, want %v", got, want)
			}
		})
	}
}
