package relay

import (
	"context"
	"slices"
	"testing"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A droppingOrigin returns one dropped removal to each command, unless ctx is canceled.
type droppingOrigin struct{ origin }

func (droppingOrigin) Operate(ctx context.Context, _ reconcile.Command) []reconcile.Hold {
	if ctx.Err() != nil {
		return nil
	}
	return []reconcile.Hold{{TypeURL: wire.ClusterType, Names: []string{"c"}, Reason: reconcile.Dropped}}
}

// TestH09_InterruptedSave checks that an interrupted save, for example when the relay stops, does not write and does
// not affect the next save.
func TestH09_InterruptedSave(t *testing.T) {
	t.Parallel()
	cfg, err := LoadConfig([]string{
		"TENDER_ORIGIN=127.0.0.1:1", "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=127.0.0.1:0",
		"TENDER_SNAPSHOT_DIR=" + t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := r.groups
	g.origins[0] = droppingOrigin{g.origins[0]}
	want := func(when string) {
		t.Helper()
		read, err := g.snapshots.dir.Decisions()
		if err != nil || len(read.Dropped) != 1 || !slices.Equal(read.Dropped[0].Names, []string{"c"}) {
			t.Errorf("%s: dropped removals %+v, %v, want cluster c", when, read.Dropped, err)
		}
	}
	g.saveNewDecision(t.Context(), true)
	want("after the drop")
	r.StopNow()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	g.saveDecisions(canceled)
	want("after an interrupted save")
	g.saveDecisions(t.Context())
	want("after the next save")
	// Run closes the resources that New opened. It ends at once.
	if err := r.Run(canceled); err != nil {
		t.Error(err)
	}
}
