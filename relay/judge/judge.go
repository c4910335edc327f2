package judge

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/rollout"
)

// Intervals of a judge.
const (
	answerEvery = 100 * time.Millisecond // between looks at the answers of an Envoy
	quietTime   = time.Second            // for which nothing may be unanswered: an Envoy requests routes after listeners
)

// A Server serves the Envoy of a judge. Only one goroutine calls it.
type Server interface {
	// Group returns the Node of a node group, and those of [schema.Roots] that clients of the group subscribe to.
	Group(key string) (node *corepb.Node, wildcards []string)

	// Show closes the stream of the Envoy. Streams that it opens afterwards are served the last good of the group, or the edition.
	Show(s rollout.Subject, edition bool)

	// Answer returns the answers since Show.
	Answer(wildcards []string) Answer

	// Hide closes the stream of the Envoy and refuses further ones.
	Hide()
}

// An Answer is what an Envoy has answered on its stream.
type Answer struct {
	Settled  bool              // it subscribes to the wildcards, and has answered all that it was sent
	Rejected map[string]string // error details of NACKs, by type URL
}

// A Judge judges the editions of a relay, one at a time. Its methods may be called from any goroutine.
type Judge struct {
	version string
	socket  string
	static  []string
	server  Server
	start   func(bootstrap []byte) (Process, error)
	turn    chan struct{} // holds a token while an edition is judged
}

// New returns a judge whose Envoys a server serves at a socket in dir. static are names of static clusters of clients.
func New(p *Program, dir, socket string, static []string, server Server) *Judge {
	return &Judge{
		version: p.Version, socket: socket, static: static, server: server, turn: make(chan struct{}, 1),
		start: func(bootstrap []byte) (Process, error) { return p.Start(dir, bootstrap) },
	}
}

// Judge implements [rollout.Judge]. It judges the node groups one after the other, within rollout.JudgeLimit.
func (j *Judge) Judge(ctx context.Context, edition []rollout.Subject) rollout.Judgement {
	ctx, cancel := context.WithTimeout(ctx, rollout.JudgeLimit)
	defer cancel()
	select {
	case j.turn <- struct{}{}:
	case <-ctx.Done():
		return rollout.Judgement{NotJudged: "the editions of other origins took all of the time"}
	}
	defer func() { <-j.turn }()
	var all summary
	for i, s := range edition {
		if ctx.Err() != nil {
			all.failed = append(all.failed, fmt.Sprintf("%d of %d node groups: the time was over", len(edition)-i, len(edition)))
			break
		}
		node, wildcards := j.server.Group(s.Group)
		if len(wildcards) == 0 {
			all.skipped++
			continue
		}
		o := j.judgeGroup(ctx, trial{s, node, wildcards})
		if o.rejected != "" {
			return rollout.Judgement{Rejected: j.describe(s.Group, o.rejected), NACKs: o.nacks}
		}
		all.add(s.Group, o)
	}
	return all.judgement(j.version)
}

// describe returns a reason with the name of the judge.
func (j *Judge) describe(group, reason string) string {
	return fmt.Sprintf("local Envoy %s (TENDER_CHECK_ENVOY), node group %s: %s", j.version, humanize.Quote(group), reason)
}

// A summary sums up the outcomes of node groups.
type summary struct {
	accepted, skipped int
	failed            []string // what was not judged
}

// add adds the outcome of a group that was not rejected.
func (s *summary) add(group string, o outcome) {
	if o.accepted {
		s.accepted++
	}
	if o.notJudged != "" {
		s.failed = append(s.failed, fmt.Sprintf("node group %s: %s", humanize.Quote(group), o.notJudged))
	}
}

// judgement returns the judgement about an edition that was not rejected.
func (s *summary) judgement(version string) rollout.Judgement {
	var all rollout.Judgement
	if s.accepted > 0 {
		all.Accepted = "accepted by Envoy " + version
	}
	if s.accepted == 0 && len(s.failed) == 0 {
		s.failed = []string{"in no changed node group, clients subscribe to all clusters or all listeners"}
	}
	all.NotJudged = strings.Join(s.failed, "; ")
	return all
}

// A trial is a node group in which an edition is judged.
type trial struct {
	rollout.Subject
	node      *corepb.Node
	wildcards []string
}

// An outcome is the result of a trial.
type outcome struct {
	rejected  string
	nacks     map[string]string // that are the reason, by type URL
	notJudged string            // what was not judged, and why
	accepted  bool
	crashed   string // how the Envoy crashed with the edition
}

// judgeGroup judges the edition in a node group. An Envoy that crashes with the edition is started again: if it runs with the last
// good and crashes with the edition once more, that is a rejection.
func (j *Judge) judgeGroup(ctx context.Context, t trial) outcome {
	defer j.server.Hide()
	if first := j.try(ctx, t); first.crashed == "" {
		return first
	}
	second := j.try(ctx, t)
	if second.crashed != "" {
		second.rejected = "crashed twice with the edition, and not with the last good: " + second.crashed
	}
	return second
}

// try starts an Envoy, and serves it the last good and then the edition.
func (j *Judge) try(ctx context.Context, t trial) outcome {
	j.server.Show(t.Subject, false)
	config, err := bootstrap(j.socket, t.node, t.wildcards, j.static)
	if err != nil {
		return outcome{notJudged: err.Error()}
	}
	process, err := j.start(config)
	if err != nil {
		return outcome{notJudged: err.Error()}
	}
	defer process.End()
	good, end := j.await(ctx, process, t.wildcards, nil)
	if end != running {
		return outcome{notJudged: end.text(process, "with the last good")}
	}
	j.server.Show(t.Subject, true)
	enough := func(a Answer) bool { return len(t.rejects(a, good)) > 0 }
	answer, end := j.await(ctx, process, t.wildcards, enough)
	nacks, alsoOfGood := t.rejects(answer, good), firstOf(good.Rejected, t.Types)
	switch {
	case len(nacks) > 0:
		return outcome{rejected: "rejected " + firstOf(nacks, t.Types), nacks: nacks}
	case end == ended && process.Exit().Crashed:
		return outcome{crashed: process.Exit().describe()}
	case end != running:
		return outcome{notJudged: end.text(process, "with the edition")}
	case alsoOfGood != "":
		judged := slices.ContainsFunc(t.Types, func(typeURL string) bool { _, ofGood := good.Rejected[typeURL]; return !ofGood })
		return outcome{accepted: judged, notJudged: "it also rejects the last good: " + alsoOfGood}
	}
	return outcome{accepted: true}
}

// rejects returns the NACKs that are about the edition: error details by type URL. If the last good had NACKs of the type, too,
// only those count that name a changed resource which these do not name.
func (t *trial) rejects(is, good Answer) map[string]string {
	nacks := make(map[string]string)
	for typeURL, detail := range is.Rejected {
		known, ofGood := good.Rejected[typeURL]
		if !slices.Contains(t.Types, typeURL) {
			continue
		}
		if !ofGood || isNewIn(rollout.Mentioned(detail, typeURL, t.Changes), rollout.Mentioned(known, typeURL, t.Changes)) {
			nacks[typeURL] = detail
		}
	}
	return nacks
}

// isNewIn reports whether some names have one that others do not have.
func isNewIn(names, others []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(others, name) })
}

// An end is why an await ended.
type end int

const (
	running end = iota // the Envoy has answered, and runs
	ended              // the Envoy has ended
	tooLate            // the time is over
)

// text returns an end for operators.
func (e end) text(p Process, when string) string {
	if e == tooLate {
		return "it did not answer in time " + when
	}
	return "it ended " + when + ": " + p.Exit().describe()
}

// await waits until the Envoy has had nothing unanswered for quietTime, or until its answers meet enough.
func (j *Judge) await(ctx context.Context, p Process, wildcards []string, enough func(Answer) bool) (a Answer, e end) {
	look := time.NewTicker(answerEvery)
	defer look.Stop()
	var settled time.Time // since when nothing is unanswered; zero if something is
	for {
		select {
		case <-look.C:
		case <-p.Ended():
			return j.server.Answer(wildcards), ended
		case <-ctx.Done():
			return a, tooLate
		}
		a = j.server.Answer(wildcards)
		switch {
		case enough != nil && enough(a):
			return a, running
		case !a.Settled:
			settled = time.Time{}
		case settled.IsZero():
			settled = time.Now()
		case time.Since(settled) >= quietTime:
			return a, running
		}
	}
}

// firstOf returns the first of the rejected types that is in types, with its error detail; empty without one.
func firstOf(rejected map[string]string, types []string) string {
	for _, typeURL := range slices.SortedFunc(maps.Keys(rejected), wire.CompareTypes) {
		if slices.Contains(types, typeURL) {
			return typeURL + ": " + rejected[typeURL]
		}
	}
	return ""
}
