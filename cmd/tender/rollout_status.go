package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"time"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/rollout"
)

// rolloutEvery is the polling interval of tender rollout status --wait.
const rolloutEvery = time.Second

// A rolloutReader reads the state of rollouts from a relay.
type rolloutReader struct {
	client interface { // an adminClient, except in tests
		get(ctx context.Context, path string, into any) error
	}
	origin  string        // empty for all
	timeout time.Duration // of wait; zero means no timeout
	steps   io.Writer     // wait writes a line for each change of state
}

// read requests the state of all rollouts, or of the rollout of r.origin.
func (r *rolloutReader) read(ctx context.Context) (answer admin.Rollouts, err error) {
	err = r.client.get(ctx, "/api/v1/rollouts?"+url.Values{"origin": {r.origin}}.Encode(), &answer)
	return answer, err
}

// wait polls until all rollouts have ended, and returns their last state. It returns an error if a rollout is halted,
// after r.timeout, and at the end of ctx. It returns an error of the first request. It writes later errors to r.steps
// and continues, because the relay may be restarting.
func (r *rolloutReader) wait(ctx context.Context) (answer admin.Rollouts, err error) {
	var over <-chan time.Time
	if r.timeout > 0 {
		over = time.After(r.timeout)
	}
	ticks := time.NewTicker(rolloutEvery)
	defer ticks.Stop()
	if answer, err = r.read(ctx); err != nil {
		return answer, err
	}
	seen := make(map[string]*rolloutWait)
	for problem := ""; ; {
		if ended, err := r.look(seen, answer.Rollouts); ended {
			return answer, err
		}
		select {
		case <-ticks.C:
		case <-over:
			return answer, fmt.Errorf("the rollout has not ended after %v", r.timeout)
		case <-ctx.Done():
			return answer, context.Cause(ctx)
		}
		now, err := r.read(ctx)
		switch {
		case err == nil:
			answer, problem = now, ""
		case err.Error() != problem:
			problem = err.Error()
			if _, err := fmt.Fprintf(r.steps, "%s  %s\n", time.Now().Format(time.TimeOnly), cli.Printable(problem)); err != nil {
				return answer, err
			}
		}
	}
}

// A rolloutWait is the progress of wait for the rollout of one origin.
type rolloutWait struct {
	line  string           // the last reported state, without times
	begin rollout.Outcomes // counters at the start of the wait, or after a restart of the relay
	since time.Time        // of the newest change at the start of the wait
	done  bool             // the changes were promoted, or no rollout was open
}

// newRolloutWait returns the progress at the start of a wait.
func newRolloutWait(s *rollout.Status) *rolloutWait {
	w := &rolloutWait{begin: s.Outcomes}
	for _, p := range s.Parts {
		if p.Oldest.After(w.since) {
			w.since = p.Oldest
		}
	}
	return w
}

// ended reports whether all changes of the start of the wait have been promoted.
func (w *rolloutWait) ended(s *rollout.Status) bool {
	waits := func(p *rollout.Status) bool { return p.Phase != rollout.Current && !p.Oldest.After(w.since) }
	return s.Phase == rollout.Current || s.Outcomes.Promoted > w.begin.Promoted && !slices.ContainsFunc(s.Parts, waits)
}

// look updates seen, by origin, from a response, and writes each changed state to r.steps. ended reports whether the
// wait is over; err is not nil if a rollout is halted.
func (r *rolloutReader) look(seen map[string]*rolloutWait, all []*rollout.Status) (ended bool, err error) {
	ended = true
	for _, s := range all {
		w := seen[s.Origin]
		if w == nil {
			w = newRolloutWait(s)
			seen[s.Origin] = w
		}
		if s.Outcomes.Promoted < w.begin.Promoted || s.Outcomes.Halted < w.begin.Halted {
			w.begin = s.Outcomes // the relay has restarted
		}
		if line := describeRollout(s, time.Time{}); line != w.line {
			w.line = line
			if err := printStep(r.steps, s, time.Now()); err != nil {
				return true, err
			}
		}
		if s.Phase == rollout.Halted || s.Outcomes.Halted > w.begin.Halted {
			return true, fmt.Errorf("origin %s: the rollout is halted", cli.Printable(s.Origin))
		}
		w.done = w.done || w.ended(s)
		ended = ended && w.done
	}
	return ended, nil
}

// printStep writes the state of a rollout as one line that begins with the time.
func printStep(w io.Writer, s *rollout.Status, now time.Time) error {
	_, err := fmt.Fprintf(w, "%s  %s  %s\n", now.Format(time.TimeOnly), cli.Printable(s.Origin), cli.Printable(describeRollout(s, now)))
	return err
}

// describeRollout returns the state of a rollout as one line, without the remaining time if now is zero.
func describeRollout(s *rollout.Status, now time.Time) string {
	text := rolloutState(s)
	if s.Phase == rollout.Halted && s.Halted != nil {
		text += ": " + s.Halted.Reason
	}
	if left := s.Until.Sub(now); !now.IsZero() && !s.Until.IsZero() && left > 0 {
		text += ", another " + humanize.Seconds(left.Seconds())
	}
	if s.WaitsFor != "" {
		text += ", waits for " + s.WaitsFor
	}
	return text
}

// rolloutState returns the phase of a rollout, with its edition and stage.
func rolloutState(s *rollout.Status) string {
	switch s.Phase {
	case rollout.Current:
		return "current"
	case rollout.Gathering:
		return "gathering changes for an edition"
	case rollout.Held:
		if s.Await == rollout.AwaitEnvoy {
			return fmt.Sprintf("edition %s is at the local Envoy", s.Edition)
		}
		return fmt.Sprintf("edition %s is HELD before stage 1", s.Edition)
	case rollout.Rolling:
		name := ""
		if s.Stage > 0 && s.Stage <= len(s.Cohorts) {
			name = " (" + s.Cohorts[s.Stage-1].Name + ")"
		}
		return fmt.Sprintf("edition %s is at stage %d of %d%s", s.Edition, s.Stage, len(s.Cohorts)-1, name)
	default:
		return fmt.Sprintf("edition %s is HALTED", s.Edition)
	}
}

// printRollouts writes the state, halts above, cohorts, rejections and applicable commands of each rollout.
func printRollouts(w io.Writer, answer admin.Rollouts, now time.Time) error {
	all, t := answer.Rollouts, &table{cli.Table{Wide: true}}
	for i, s := range all {
		if i > 0 {
			t.Row()
		}
		t.rollout(s, now)
		t.haltsAbove(answer.HaltedAbove[s.Origin], now)
		t.Row()
		t.cohorts(s)
		t.rejectionsOfRollout(s)
		t.parts(s)
		t.rolloutCommands(s, len(all) > 1)
	}
	return t.Print(w)
}

// rollout adds the state of a rollout, and the number and age of its changes.
func (t *table) rollout(s *rollout.Status, now time.Time) {
	state := rolloutState(s)
	if s.Phase == rollout.Current {
		state = "current: all clients receive the origin's current resources"
		if s.WaitsFor != "" { // the origin may have more resources
			state = "current: all clients receive the resources that the origin has sent"
		}
	}
	t.Row(fmt.Sprintf("origin %s: %s", s.Origin, state))
	t.part(s)
	switch left := s.Until.Sub(now); {
	case s.Halted != nil:
		t.Row("  halted", fmt.Sprintf("%s ago: %s", ago(s.Halted.At, now), s.Halted.Reason))
	case !s.Until.IsZero():
		t.Row("  since", fmt.Sprintf("%s ago; the next step is due in %s", ago(s.Since, now), humanize.Seconds(left.Seconds())))
	case !s.Since.IsZero():
		t.Row("  since", ago(s.Since, now)+" ago")
	}
	if s.WaitsFor != "" {
		t.Row("  waits for", s.WaitsFor)
	}
	if s.Resources > 0 && s.Phase > rollout.Gathering {
		text := fmt.Sprintf("%s, the newest change %s ago", resources(s.Resources), ago(s.Changed, now))
		if s.Large {
			text += "; it REMOVES a large part of a type"
		}
		t.Row("  edition", text)
	}
	for _, p := range s.Peers {
		t.Row("  peer", fmt.Sprintf("%s has not answered for %s: %s", p.Address, ago(p.Since, now), p.Error))
	}
	if s.Waiting > 0 {
		t.Row("  pending", fmt.Sprintf("%s, the oldest for %s", resources(s.Waiting), ago(s.Oldest, now)))
	}
	t.doubts(s, now)
}

// part adds the name of the part to which the rows belong, the number of open ones, and what the maximum of these delays.
func (t *table) part(s *rollout.Status) {
	switch open := len(openParts(s)); {
	case open > 1:
		t.Row("  part", fmt.Sprintf("%s, of %d open", cmp.Or(s.Part, "the next"), open))
	case open == 1 && s.Part != "":
		t.Row("  part", s.Part)
	}
	if s.Full != "" {
		t.Row("  parts", s.Full)
	}
}

// doubts adds the last results of the check and of the local Envoy, and reasons why the served resources are not verified.
func (t *table) doubts(s *rollout.Status, now time.Time) {
	if s.Check != "" {
		t.Row("  check", fmt.Sprintf("%s (requested %s ago)", s.Check, ago(s.Checked, now)))
	}
	if s.Envoy != "" {
		t.Row("  local Envoy", s.Envoy)
	}
	if !s.Failing.IsZero() {
		t.Row("  ", "the check has not answered for "+ago(s.Failing, now))
	}
	if s.Unobserved {
		t.Row("  unobserved", "no client of a stage that counts, or no local Envoy, accepted the edition")
	}
	if s.Cold {
		t.Row("  cold", "the relay started without a snapshot; the resources of that time were not rolled out")
	}
}

// resources returns a number of resources as text.
func resources(n int) string {
	if n == 1 {
		return "1 resource"
	}
	return fmt.Sprintf("%d resources", n)
}

// cohorts adds a row with the client counts of each cohort.
func (t *table) cohorts(s *rollout.Status) {
	t.Row("COHORT", "CLIENTS", "SERVED", "SUBSCRIBED", "ACCEPTED", "REJECTED")
	for _, c := range s.Cohorts {
		if c.Served == "" {
			t.Row(c.Name, c.Clients, "the last good", "-", "-", "-")
			continue
		}
		t.Row(c.Name, c.Clients, c.Served, c.Subscribed, c.Accepted, c.Rejected)
	}
}

// openParts returns the parts of a rollout that are open.
func openParts(s *rollout.Status) []*rollout.Status {
	return slices.DeleteFunc(slices.Clone(s.Parts), func(p *rollout.Status) bool { return p.Phase == rollout.Current })
}

// parts adds a row for each open part of a rollout, if there are several. The rows above are of the first one.
func (t *table) parts(s *rollout.Status) {
	open := openParts(s)
	if len(open) < 2 {
		return
	}
	t.Row()
	t.Row("PART", "STATE", "RESOURCES")
	for _, p := range open {
		t.Row(cmp.Or(p.Part, "-"), describeRollout(p, time.Time{}), max(p.Resources, p.Waiting))
	}
}

// rejectionsOfRollout adds a row for each NACK of the edition, with its error detail.
func (t *table) rejectionsOfRollout(s *rollout.Status) {
	if len(s.Rejections) == 0 {
		return
	}
	t.Row()
	t.Row("REJECTED BY", "PEER", "COHORT", "TYPE")
	for _, r := range s.Rejections {
		cohort := "-"
		if r.Cohort >= 0 && r.Cohort < len(s.Cohorts) {
			cohort = s.Cohorts[r.Cohort].Name
		}
		t.Row(cmp.Or(r.Node, "-"), cmp.Or(r.Peer, "-"), cohort, cli.ShortType(r.TypeURL))
		t.Note("%s", cmp.Or(r.Detail, "no error detail"))
	}
}

// partFlag returns the flag that selects the part of the rows, if several are open.
func partFlag(s *rollout.Status) string {
	if len(openParts(s)) < 2 || s.Part == "" {
		return ""
	}
	return " --part " + s.Part
}

// rolloutCommands adds the commands that apply to the state of a rollout. several adds --origin to them.
func (t *table) rolloutCommands(s *rollout.Status, several bool) {
	of := ""
	if several {
		of = " --origin " + s.Origin
	}
	part := partFlag(s)
	var lines [][2]string
	add := func(command, does string) { lines = append(lines, [2]string{"  tender " + command + of, does}) }
	if s.Frozen {
		add("thaw", "distribute changes again")
	}
	next := "serve the edition to the next stage now"
	if s.Phase == rollout.Rolling && s.Stage == len(s.Cohorts)-1 {
		next = "serve the edition to all clients now"
	}
	switch s.Phase {
	case rollout.Gathering:
		add("rollout diff", "see what has changed")
		add("rollout abort", "reject it: all clients keep the last good")
	case rollout.Held, rollout.Rolling:
		add("rollout diff", "see what the edition changes")
		add("rollout promote"+part, next)
		add("rollout abort"+part, "reject the edition: all clients are served the last good")
	case rollout.Halted:
		add("rollout diff", "see what the rejected edition changes")
		add("rollout resume"+part, "try it again from stage 1; a fix at the origin starts a rollout by itself")
	}
	if s.Waiting > 0 {
		add("rollout promote --all", "serve the latest state of the origin to all clients at once")
	}
	if s.Undoable {
		add("rollout undo", "revert the newest promotion to all clients")
	}
	if len(lines) == 0 {
		return
	}
	t.Row()
	t.Row("Commands that apply:")
	for _, l := range lines {
		t.Row(l[0], l[1])
	}
}
