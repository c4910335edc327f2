package relay

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream/reconcile"
)

// TestB56_BusyLoopsShareAWait: the questions of a round wait for captureWait together, and a loop that has not answered one is not
// asked another.
func TestB56_BusyLoopsShareAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		var asked atomic.Int32
		questions := make([]question[int], 10)
		round := func() (took time.Duration, answers int) {
			wait, began := captureWait, time.Now()
			for i := range questions {
				answer := func() int {
					asked.Add(1)
					<-busy
					return i
				}
				if i == len(questions)-1 {
					answer = func() int { return i } // its loop is not busy
				}
				if got, ok := questions[i].ask(t.Context(), &wait, answer); ok {
					check.Equal(t, "answer", got, i)
					answers++
				}
			}
			synctest.Wait()
			return time.Since(began), answers
		}
		took, answers := round()
		if took > captureWait || answers != 1 || asked.Load() != 9 {
			t.Errorf("took %v, %d answers, %d busy loops asked; want at most %v, 1 and 9", took, answers, asked.Load(), captureWait)
		}
		took, answers = round()
		if took != 0 || answers != 1 || asked.Load() != 9 {
			t.Errorf("then took %v, %d answers, %d busy loops asked; want 0s, 1 and 9", took, answers, asked.Load())
		}
		close(busy)
		synctest.Wait()
		took, answers = round()
		if took != 0 || answers != 10 || asked.Load() != 18 {
			t.Errorf("at last took %v, %d answers, %d loops asked; want 0s, 10 and 18", took, answers, asked.Load())
		}
	})
}

// A silentOrigin answers only while it is not busy. It has dropped the removal of a cluster.
type silentOrigin struct {
	origin
	busy *chan struct{}
}

func (o silentOrigin) Operate(context.Context, reconcile.Command) []reconcile.Hold {
	if busy := *o.busy; busy != nil {
		<-busy
	}
	return []reconcile.Hold{{TypeURL: wire.ClusterType, Names: []string{"c"}, Reason: reconcile.Dropped}}
}

// TestB42_ABusyLoopKeepsItsDecisions: while a loop does not answer, also at the end of the process, the relay writes the other
// decisions of operators, and the removals that were dropped when the loop answered.
func TestB42_ABusyLoopKeepsItsDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newTestSnapshots(t)
		var busy chan struct{}
		g := &groups{settings: s.settings, snapshots: s, origins: origins{silentOrigin{busy: &busy}}}
		g.decisions = &decisions{mu: &g.mu, snapshots: s, log: s.log, freezeChanged: func(int) {}, directories: make(map[int]directorySnapshot)}
		g.decisions.load([]string{s.settings.origins[0].Name}, time.Now())
		g.saveNewDecision(t.Context(), true)
		busy = make(chan struct{})
		for _, want := range []time.Duration{captureWait / 2, 0} {
			g.decisions.setFrozen(0, &activeFreeze{})
			began := time.Now()
			g.saveDecisions(context.WithoutCancel(t.Context()))
			check.Equal(t, "time to save", time.Since(began), want)
		}
		read, err := s.dir.Decisions()
		check.OK(t, err)
		if len(read.Freezes) != 1 || len(read.Dropped) != 1 || !slices.Equal(read.Dropped[0].Names, []string{"c"}) {
			t.Errorf("decisions %+v, want a freeze and the dropped cluster c", read)
		}
		close(busy)
	})
}
