package rollout

import (
	"fmt"
	"iter"
	"log/slog"
	"testing"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/pending"
)

// newIdleController returns a controller with two stages and one section. Its Run is not called.
func newIdleController(t *testing.T) (*Controller, *Section, *part) {
	c := NewController(ControllerConfig{
		Config: Config{Stages: parseStages(t, "id=canary 10m, 25% 10m")}, Logger: slog.New(slog.DiscardHandler),
		Observed: func() iter.Seq[downstream.Observed] { return func(func(downstream.Observed) bool) {} },
	}, nil)
	s, p := c.NewSection(SectionKey{Group: "group"}), c.newPart()
	c.tracker.sections = append(c.tracker.sections, s)
	c.addPart(p)
	return c, s, p
}

// cut cuts an edition that changes listeners.
func (s *Section) cut(p *part, at time.Time, names ...string) Edition {
	digests := make(map[string]wire.Digest)
	for _, name := range names {
		digests[name] = wire.Digest{1}
	}
	e := p.machine.Cut(at, at, false)
	s.set(p, e, &pending.Edition{Changes: map[string]map[string]wire.Digest{listeners: digests}})
	return e
}

// TestUndoWhileHaltedRejectsPromotedEdition verifies that the record has the undone edition as the active rejection,
// and not the edition that was rejected before Undo.
func TestUndoWhileHaltedRejectsPromotedEdition(t *testing.T) {
	c, s, p := newIdleController(t)
	at := time.Unix(1e9, 0)
	promoted := s.cut(p, at, "a")
	p.machine.PromoteAll(at)
	halted := s.cut(p, at, "b")
	p.machine.reject(at.Add(time.Second), "a canary rejected it")
	c.recordWithdrawn(at.Add(time.Second), p, map[Edition]int{halted: 1})
	if err := p.machine.Undo(at.Add(time.Minute), "undo by alice"); err != nil {
		t.Fatal(err)
	}
	if !c.recordWithdrawn(at.Add(time.Minute), p, map[Edition]int{promoted: 3}) {
		t.Error("recordWithdrawn after Undo returns false, want true")
	}
	active := c.rejections.activeRejection(p)
	if active == nil || active.Reason != "undo by alice" || active.Cohorts != 3 ||
		len(active.Changes[s.Key][listeners]) != 1 {
		t.Errorf("the active rejection is %+v, want the undone edition", active)
	}
	all := c.rejections.withdrawn
	if len(all) != 2 || all[0].Ended.IsZero() || all[0].Reason != "a canary rejected it" {
		t.Errorf("%d withdrawn editions, the first is %+v; want two, and the end of the first rejection",
			len(all), all[0])
	}
}

// TestWithdrawnEditionsAreBounded verifies that the record has each resource once if an origin supersedes an edition
// every few seconds.
func TestWithdrawnEditionsAreBounded(t *testing.T) {
	c, s, p := newIdleController(t)
	at := time.Unix(1e9, 0)
	names := []string{"only in the first"}
	for i := range 100 {
		at = at.Add(5 * time.Second)
		e := s.cut(p, at, names...)
		names = []string{"a", "b", fmt.Sprint("c", i%3)}
		c.recordWithdrawn(at, p, map[Edition]int{e: 1 + i%2})
	}
	resources := 0
	for _, r := range c.rejections.withdrawn {
		for _, changes := range r.Changes {
			for _, names := range changes {
				resources += len(names)
			}
		}
	}
	if len(c.rejections.withdrawn) > 12 || resources > 12 {
		t.Errorf("%d editions with %d resources are recorded after 100 editions of five names, want at most 12",
			len(c.rejections.withdrawn), resources)
	}
	if _, ok := c.rejections.withdrawn[0].Changes[s.Key][listeners]["only in the first"]; !ok {
		t.Error("the record lacks a resource that only the first edition changed")
	}
}
