package rollout

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream"
)

// Limits of the time in which a [Judge] answers.
const (
	// JudgeLimit is the time after which an edition proceeds without the answer of the judge. A judge should answer before.
	JudgeLimit = time.Minute

	judgeGrace = 5 * time.Second // for a judge that answers at the limit
)

// A Judge gives an edition to a local Envoy, before any client is served it. While the judge runs, the view of the judge
// ([Config.JudgeView]) has the edition, in all node groups. Judge returns soon after ctx has ended.
type Judge func(ctx context.Context, edition []Subject) Judgement

// A Subject is what an edition changes in one node group.
type Subject struct {
	Group string   // the key of the node group
	Types []string // type URLs of the changed resources that wait for stages, sorted

	// Changes are the changes of these types in the view of the judge.
	Changes []downstream.Change
}

// A Judgement is the answer of a judge about an edition.
type Judgement struct {
	Done      bool   // false until the judge has answered
	Rejected  string // why the edition is rejected; empty if it is not
	NotJudged string // what was not judged, and why; empty if all was
	Accepted  string // what accepted the edition; empty if nothing did
}

// judging runs the judge for one edition at a time. The goroutine of Run owns it.
type judging struct {
	judge   Judge // nil without a judge
	log     *slog.Logger
	results chan judgeResult
	ended   <-chan struct{}    // closed when Run returns
	running Edition            // the edition that is being judged; zero without one
	cancel  context.CancelFunc // ends the judge of running
	Judgement

	goroutines sync.WaitGroup
}

// A judgeResult is the answer of a judge about an edition.
type judgeResult struct {
	edition Edition
	Judgement
}

// reset drops the judgement, because another edition was cut.
func (j *judging) reset() {
	j.stop()
	j.Judgement = Judgement{}
}

// stop ends the judge.
func (j *judging) stop() {
	if j.running != 0 {
		j.cancel()
		j.running = 0
	}
}

// follow starts the judge once m is judging its edition, and ends it when m does no longer. id is that of the edition in the
// log.
func (j *judging) follow(ctx context.Context, m State, id string, subjects func() []Subject) {
	switch {
	case j.running == 0 && m.Judging && !j.Done:
		ctx, j.cancel = context.WithCancel(ctx)
		j.running = m.Edition
		edition, changed := m.Edition, subjects()
		j.goroutines.Go(func() { // ends soon after ctx
			answer := j.judge(ctx, changed)
			answer.Done = true
			select {
			case j.results <- judgeResult{edition, answer}:
			case <-j.ended:
			}
		})
	case j.running != 0 && !m.Judging:
		late := m.Unobserved && m.Edition == j.running // otherwise the edition ended, or an operator has promoted it
		if j.stop(); late {
			j.answer(Judgement{Done: true, NotJudged: fmt.Sprintf("no answer in %v", JudgeLimit+judgeGrace)}, id)
		}
	}
}

// record records an answer, unless the edition is no longer judged. id is that of the edition in the log.
func (j *judging) record(r judgeResult, id string) {
	if r.edition == j.running {
		j.stop()
		j.answer(r.Judgement, id)
	}
}

// answer records an answer about the current edition.
func (j *judging) answer(is Judgement, id string) {
	j.Judgement = is
	if is.NotJudged != "" && is.Rejected == "" {
		j.log.Warn("local Envoy did not judge the edition; rollout continues",
			slog.String("edition", id), slog.String("reason", is.NotJudged))
	}
}

// detail returns the state of the judge about the edition of m, for operators.
func (j *judging) detail(m State) string {
	switch {
	case m.Judging && !j.Done:
		return "judging"
	case j.Rejected != "":
		return "no: " + j.Rejected
	case j.NotJudged != "":
		return "not judged: " + j.NotJudged
	default:
		return j.Accepted
	}
}

// subjects returns what the edition that the judge is served changes, by node group, sorted.
func (c *Controller) subjects() (all []Subject) {
	byGroup := make(map[string]*Subject)
	for key, changes := range c.tracker.changesOf(c.cfg.judge()) {
		for _, change := range changes {
			typeURL, _, _ := cache.SplitCollection(change.Key)
			if !c.cfg.Waits(typeURL) {
				continue
			}
			s := byGroup[key.Group]
			if s == nil {
				s = &Subject{Group: key.Group}
				byGroup[key.Group] = s
			}
			s.Types, s.Changes = append(s.Types, typeURL), append(s.Changes, change)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(byGroup)) {
		s := byGroup[group]
		slices.Sort(s.Types)
		s.Types = slices.Compact(s.Types)
		all = append(all, *s)
	}
	return all
}

// changesOf returns the changes of the edition that a cohort is served, by part.
func (t *tracker) changesOf(cohort int) map[PartKey][]downstream.Change {
	all := make(map[PartKey][]downstream.Change)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.parts {
		all[p.Key] = p.changes[cohort]
	}
	return all
}
