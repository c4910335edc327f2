package rollout

import (
	"context"
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

	// JudgeQueue is the time after which a part proceeds without a judgement if the judge is not served its edition, because
	// other parts are judged.
	JudgeQueue = 5 * time.Minute
)

// A Judge gives the edition of a part to a local Envoy, before any client is served it. While the judge runs, the view of the
// judge ([Config.JudgeView]) has the last good and the edition, in all node groups, and nothing of other parts. Judge returns soon after ctx has ended.
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
	Done      bool              // false until the judge has answered
	Rejected  string            // why the edition is rejected; empty if it is not
	NACKs     map[string]string // error details of the NACKs that are the reason, by type URL; nil if it is another one
	NotJudged string            // what was not judged, and why; empty if all was
	Accepted  string            // what accepted the edition; empty if nothing did
}

// judging runs the judge for the edition of one part at a time. The goroutine of Run owns it.
type judging struct {
	judge   Judge // nil without a judge
	results chan judgeResult
	ended   <-chan struct{}    // closed when Run returns
	part    *part              // the part whose edition the judge has; nil if the judge does not run
	edition Edition            // of the part
	cancel  context.CancelFunc // ends the judge
	trials  *Trials            // that of the edition, and those of other origins

	goroutines sync.WaitGroup
}

// A judgeResult is the answer of a judge about the edition of a part that it was started for.
type judgeResult struct {
	part *part
	Judgement
}

// stop ends the judge. It runs until its result arrives.
func (j *judging) stop() {
	if j.part != nil {
		j.cancel()
	}
}

// concerns reports whether the judge runs for the edition that the machine of a part waits for.
func (j *judging) concerns(p *part) bool {
	return j.part == p && j.edition == p.machine.edition && p.machine.judging()
}

// nextJudged makes the judge be served the edition of the next part that waits for it, unless it runs: of those, the part
// with the oldest pending change. Then a part whose changes do not end is not behind the others each time.
func (c *Controller) nextJudged(now time.Time) {
	if c.judging.part != nil || slices.ContainsFunc(c.parts, func(p *part) bool { return p.machine.judging() }) {
		return
	}
	var next *part
	for _, p := range c.parts {
		waits := p.machine.awaitsJudge()
		if waits && (next == nil || p.machine.pendingSince.Before(next.machine.pendingSince)) {
			next = p
		}
	}
	if next != nil {
		next.due = next.machine.StartJudging(now)
	}
}

// runJudge starts the judge once it is served the edition of a part, and ends it when the part does not wait for it any more:
// the edition ended, an operator has promoted it, or its time is over.
func (c *Controller) runJudge(ctx context.Context) {
	j := &c.judging
	if j.part != nil && !j.concerns(j.part) {
		j.stop()
	}
	for _, p := range c.parts {
		if why := p.machine.unanswered; why != "" && !p.judgement.Done {
			c.answer(p, Judgement{Done: true, NotJudged: why})
		}
		if j.part == nil && p.machine.judging() && !p.judgement.Done {
			c.startJudge(ctx, p)
		}
	}
}

// startJudge starts the judge for the edition of a part.
func (c *Controller) startJudge(ctx context.Context, p *part) {
	j := &c.judging
	ctx, j.cancel = context.WithCancel(ctx)
	j.part, j.edition = p, p.machine.edition
	j.trials.begin(c, c.changesOf(p, j.edition))
	changed := c.subjects(p)
	j.goroutines.Go(func() { // ends soon after ctx
		answer := j.judge(ctx, changed)
		answer.Done = true
		select {
		case j.results <- judgeResult{p, answer}:
		case <-j.ended:
		}
	})
}

// recordJudgement records an answer, unless its part does not wait for it any more. If the answer is about something else that
// the judge was served, it tries the edition once more: it then knows what it rejects of the last good.
func (c *Controller) recordJudgement(r judgeResult) {
	concernsOthers := c.judging.trials.end(c, r.Judgement)
	switch p := r.part; {
	case !c.judging.concerns(p) || p.judgement.Done:
	case concernsOthers:
		c.cfg.Logger.Warn("local Envoy rejects what is not of the edition; it tries the edition again",
			slog.String("part", p.edition.name), slog.String("edition", p.edition.id), slog.String("reason", r.Rejected))
	default:
		c.answer(p, r.Judgement)
	}
	c.judging.cancel()
	c.judging.part = nil
}

// answer records an answer about the current edition of a part.
func (c *Controller) answer(p *part, is Judgement) {
	p.judgement = is
	if is.NotJudged != "" && is.Rejected == "" {
		c.cfg.Logger.Warn("local Envoy did not judge the edition; rollout continues", slog.String("part", p.edition.name),
			slog.String("edition", p.edition.id), slog.String("reason", is.NotJudged))
	}
}

// detail returns a judgement about the edition of m, for operators.
func (j *Judgement) detail(m State) string {
	switch {
	case m.Queued:
		return "queued"
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

// subjects returns what the edition of a part that the judge is served changes, by node group, sorted.
func (c *Controller) subjects(p *part) (all []Subject) {
	byGroup := make(map[string]*Subject)
	for key, changes := range c.tracker.changesOf(p, c.cfg.judge()) {
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

// changesOf returns the changes of the edition of a part that a cohort is served, by section.
func (t *tracker) changesOf(p *part, cohort int) map[SectionKey][]downstream.Change {
	all := make(map[SectionKey][]downstream.Change)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.sections {
		if of := s.of[p]; of != nil {
			all[s.Key] = of.shown[cohort].changes
		}
	}
	return all
}
