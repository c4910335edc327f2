package relay

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/peers"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
)

// TestB42_StateOfAPeerMustMatch: a relay takes snapshots of its origins and groups from a peer, whose ID differs. It refuses
// those of another origin and old ones, and takes the others of the bundle.
func TestB42_StateOfAPeerMustMatch(t *testing.T) {
	settingsWith := func(env ...string) *settings {
		cfg, err := LoadConfig(append(env, "TENDER_ORIGIN=a:1", "TENDER_NODE_ID=own"))
		check.OK(t, err)
		return settingsOf(&cfg, "1")
	}
	own := settingsWith()
	g := &groups{settings: own, log: slog.New(slog.DiscardHandler), headers: snapshotHeaders{settings: own, ofPeers: true}}
	g.headers.rolledBack = func(string) bool { return false }
	now := time.Now()
	of := func(age time.Duration, env ...string) *cache.Snapshot {
		s := settingsWith(append(env, "TENDER_NODE_ID=peer")...)
		key, node := nodegroup.Sort(proto.CloneOf(s.node), proto.CloneOf(s.node), s.groupBy)
		headers := snapshotHeaders{settings: s}
		snap := &cache.Snapshot{Header: headers.of(0, key, node)}
		snap.Created = now.Add(-age)
		return snap
	}
	for name, tt := range map[string]struct {
		all  []*cache.Snapshot
		want string // of the error; empty if a view is restored
		age  time.Duration
	}{
		"the same":                  {[]*cache.Snapshot{of(time.Hour)}, "", time.Hour},
		"of the future":             {[]*cache.Snapshot{of(-time.Hour)}, "", 0},
		"too old":                   {[]*cache.Snapshot{of(25 * time.Hour)}, "snapshot is too old", 0},
		"of another origin":         {[]*cache.Snapshot{of(0, "TENDER_ORIGIN=b:1")}, "the targets of the origin default are a:1", 0},
		"of another cluster":        {[]*cache.Snapshot{of(0, "TENDER_NODE_CLUSTER=other")}, "another Node", 0},
		"with other versions":       {[]*cache.Snapshot{of(0, "TENDER_DELTA_VERSIONS=content")}, "DELTA_VERSIONS=content", 0},
		"one of them of the origin": {[]*cache.Snapshot{of(0, "TENDER_ORIGIN=b:1"), of(time.Minute)}, "", time.Minute},
		"without any":               {nil, "it has no configuration", 0},
	} {
		t.Run(name, func(t *testing.T) {
			var body bytes.Buffer
			check.OK(t, (&snapshot.Bundle{Snapshots: tt.all}).Encode(&body))
			state, err := g.readState(peers.Giver{}, &body, now)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %v, want %q", err, tt.want)
				}
				return
			}
			if err != nil || len(state.groups) != 1 || now.Sub(state.of).Round(time.Second) > tt.age+time.Second || now.Sub(state.of) < tt.age-time.Second {
				t.Errorf("state %+v, error %v, want one group of %v ago", state, err, tt.age)
			}
		})
	}
}

// TestB56_ABusyLoopDoesNotKeepTheStateFromAPeer: a peer gets the state although the loops of some views do not answer, in time. Of
// these, it gets what clients are served, and of the others also what waits.
func TestB56_ABusyLoopDoesNotKeepTheStateFromAPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, err := LoadConfig([]string{"TENDER_ORIGIN=a:1"})
		check.OK(t, err)
		in := settingsOf(&cfg, "1")
		g := newGroups(in, nil, nil, nil, "i", slog.New(slog.DiscardHandler))
		g.origins = make(origins, 1)
		views := make(map[string]*busyView)
		for i := range 20 { // asked in order
			name := fmt.Sprintf("%02d", i)
			v := newBusyView(t)
			views[name] = v
			g.given[snapshotKey{"default", name}] = &viewSnapshot{
				header: g.headers.of(0, name, in.node), viewCapture: v.viewCapture,
			}
			g.byKey[name] = &group{key: name, controls: []*upstream.Control{v.control}}
			if i >= 3 {
				go func() { (<-v.control.Calls())(listOnly{list: v.list}) }() // ends with the call
			}
		}
		close(g.started)
		began := time.Now()
		var body bytes.Buffer
		check.OK(t, g.giveState(t.Context(), false, &body))
		if took := time.Since(began); took > giveWait {
			t.Errorf("a peer waited for %v, want at most %v", took, giveWait)
		}
		bundle, err := snapshot.DecodeBundle(&body, 1<<20)
		check.OK(t, err)
		check.Equal(t, "views", len(bundle.Snapshots), len(views))
		for _, snap := range bundle.Snapshots {
			views[snap.Group].check(t, snap, snap.Group >= "03")
		}
	})
}

// A listOnly is a loop that has a list, and does nothing else.
type listOnly struct {
	upstream.Controlled
	list *pending.List
}

// List implements upstream.Controlled.
func (l listOnly) List() *pending.List { return l.list }
