package rollout

import (
	"fmt"
	"iter"
	"log/slog"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
)

// aController returns a controller with two stages and one part, which nothing runs.
func aController(t *testing.T) (*Controller, *Part) {
	c := NewController(ControllerConfig{
		Config: Config{Stages: stages(t, "id=canary 10m, 25% 10m")}, Logger: slog.New(slog.DiscardHandler),
		Observed: func() iter.Seq[downstream.Observed] { return func(func(downstream.Observed) bool) {} },
	}, nil)
	p := c.NewPart(PartKey{Group: "group"})
	c.parts = append(c.parts, p)
	return c, p
}

// cuts has an edition be cut that changes names.
func (p *Part) cuts(at time.Time, names ...string) Edition {
	digests := make(map[string]wire.Digest)
	for _, name := range names {
		digests[name] = wire.Digest{1}
	}
	e := p.c.machine.Cut(at, at, false)
	p.editions[e] = &cache.Edition{Changes: map[string]map[string]wire.Digest{listeners: digests}}
	return e
}

// TestUndoWhileHaltedRejectsWhatWasPromoted: a restarted relay is to know that, and not what was halted before.
func TestUndoWhileHaltedRejectsWhatWasPromoted(t *testing.T) {
	c, p := aController(t)
	at := time.Unix(1e9, 0)
	promoted := p.cuts(at, "a")
	c.machine.PromoteAll(at)
	halted := p.cuts(at, "b")
	c.machine.reject(at.Add(time.Second), "a canary refused it")
	c.rejections().recordWithdrawn(at.Add(time.Second), map[Edition]int{halted: 1})
	if err := c.machine.Undo(at.Add(time.Minute), "undo by alice"); err != nil {
		t.Fatal(err)
	}
	if !c.rejections().recordWithdrawn(at.Add(time.Minute), map[Edition]int{promoted: 3}) {
		t.Error("nothing has changed that is to be written")
	}
	is := c.rejections().activeRejection()
	if is == nil || is.Reason != "undo by alice" || is.Cohorts != 3 || len(is.Changes[p.Key][listeners]) != 1 {
		t.Errorf("rejected is %+v, want what was undone", is)
	}
	if len(c.withdrawn) != 2 || c.withdrawn[0].Ended.IsZero() || c.withdrawn[0].Reason != "a canary refused it" {
		t.Errorf("%d editions are withdrawn, the first is %+v; want two, and the rejection of the halted one ended", len(c.withdrawn), c.withdrawn[0])
	}
}

// TestEditionsThatCohortsLeftDoNotPileUp: of an origin that supersedes an edition every few seconds, each resource is
// remembered once.
func TestEditionsThatCohortsLeftDoNotPileUp(t *testing.T) {
	c, p := aController(t)
	at := time.Unix(1e9, 0)
	names := []string{"only in the first"}
	for i := range 100 {
		at = at.Add(5 * time.Second)
		e := p.cuts(at, names...)
		names = []string{"a", "b", fmt.Sprint("c", i%3)}
		c.rejections().recordWithdrawn(at, map[Edition]int{e: 1 + i%2})
	}
	resources := 0
	for _, r := range c.withdrawn {
		for _, changes := range r.Changes {
			for _, names := range changes {
				resources += len(names)
			}
		}
	}
	if len(c.withdrawn) > 12 || resources > 12 {
		t.Errorf("%d editions with %d resources are remembered of 100 that changed the same five", len(c.withdrawn), resources)
	}
	if _, is := c.withdrawn[0].Changes[p.Key][listeners]["only in the first"]; !is {
		t.Error("a resource is forgotten that no later edition changes")
	}
}
