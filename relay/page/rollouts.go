package page

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/rollout"
)

// How many characters the page shows of a text that a client or the check made up: 20 refusals of 2 KiB each, sent to every
// follower every two seconds, would be most of the page. The client's own page has the NACK in full.
const (
	maxRefusalWords = 300
	maxReasonWords  = 600
	maxNodePart     = 100 // of an id that is searched for
)

// A rolloutPanel shows the rollout of an origin.
type rolloutPanel struct {
	Origin  string
	State   string // in two or three words
	Class   string // refused, stale, frozen or rolling; empty if nothing is on its way
	For     string // for how long it has been in that state, or in that stage; empty if unknown
	Meaning string // which clients are served what
	Reason  string // why it was halted; empty unless it was
	Facts   []fact

	Bar     bar
	Counted bool // the counts of Cohorts are those of the edition

	Refusals []refusal
	Hints    []hint
	Outcomes string // what became of the editions so far; empty if there were none
}

// A fact is a detail of a rollout.
type fact struct{ Label, Value, Note, Class string }

// A refusal is one of the edition, in the client's words.
type refusal struct {
	Node, TypeURL, Words string
	NodePart             string // of a Node's id, to search for it
	Stage                string // the label of the client's cohort
}

// A hint is a command, and what it does.
type hint struct{ Command, Does string }

// rollouts returns how the rollouts stand; nil if they are off.
func (p *Pages) rollouts() []*rollout.Status {
	if p.cfg.Rollouts == nil {
		return nil
	}
	return p.cfg.Rollouts()
}

// newRolloutPanels returns a panel for each origin, those that were halted first.
func newRolloutPanels(all []*rollout.Status, now time.Time) (panels []rolloutPanel) {
	for _, s := range all {
		panels = append(panels, newRolloutPanel(s, now))
	}
	rank := []string{"refused", "stale", "frozen", "rolling", ""}
	slices.SortStableFunc(panels, func(a, b rolloutPanel) int { return slices.Index(rank, a.Class) - slices.Index(rank, b.Class) })
	return panels
}

func newRolloutPanel(s *rollout.Status, now time.Time) rolloutPanel {
	p := rolloutPanel{
		Origin: s.Origin, Facts: factsOf(s, now), Bar: newBar(s), Hints: hintsOf(s), Outcomes: outcomesOf(s.Outcomes),
		Counted: s.Phase == rollout.Rolling || s.Phase == rollout.Halted,
	}
	if !s.Since.IsZero() {
		p.For = ago(s.Since, now)
	}
	p.State, p.Class, p.Meaning = stateOf(s)
	if s.Frozen {
		p.State, p.Meaning = p.State+", frozen", p.Meaning+" The origin is frozen: nothing changes until it is thawed."
		if p.Class != "refused" {
			p.Class = "frozen"
		}
	}
	if s.Halted != nil {
		p.Reason = humanize.Cut(s.Halted.Reason, maxReasonWords)
		if !s.Halted.At.IsZero() {
			p.For = ago(s.Halted.At, now)
		}
	}
	for _, r := range s.Refusals {
		p.Refusals = append(p.Refusals, refusal{
			Node: humanize.Cut(r.Node, 48), NodePart: firstRunes(r.Node, maxNodePart), TypeURL: r.TypeURL,
			Words: humanize.Cut(r.Detail, maxRefusalWords), Stage: labelOf(r.Cohort, len(s.Cohorts)),
		})
	}
	return p
}

// firstRunes returns the first characters of a text, at most so many.
func firstRunes(text string, most int) string {
	runes := []rune(text)
	return string(runes[:min(len(runes), most)])
}

// stateOf returns the state of a rollout, its class, and what it means for clients.
func stateOf(s *rollout.Status) (state, class, meaning string) {
	stages := max(len(s.Cohorts)-1, 0)
	switch s.Phase {
	case rollout.Gathering:
		meaning = "The origin has changed. The changes are collected into an edition, which no client is served yet."
		if len(s.Cohorts) > 0 && s.Cohorts[0].Served != "" {
			meaning = fmt.Sprintf("The origin has changed what edition %s changes. The changes are collected into the next edition; "+
				"until then the first stage keeps edition %[1]s, and all others are served the last good.", s.Edition)
		}
		return "collecting changes", "rolling", meaning
	case rollout.Held:
		if s.Large {
			return "held", "stale", fmt.Sprintf("Edition %s removes a large part of a type. No client is served it yet.", s.Edition)
		}
		return "waiting to start", "rolling", fmt.Sprintf("Edition %s is ready. No client is served it yet.", s.Edition)
	case rollout.Rolling:
		reached := "Clients of the first stage are"
		if s.Stage > 1 {
			reached = fmt.Sprintf("Clients of the first %d stages are", s.Stage)
		}
		return fmt.Sprintf("stage %d of %d", s.Stage, stages), "rolling", fmt.Sprintf("%s served edition %s, all others the last good.", reached, s.Edition)
	case rollout.Halted:
		return "halted", "refused", fmt.Sprintf("Edition %s was rejected. No client is served it: all are served the last good, and endpoints go on changing. "+
			"A correction at the origin starts a new rollout by itself.", s.Edition)
	}
	meaning = "All clients are served what the origin has."
	if s.Cold {
		meaning += " The relay started without a snapshot of the last good, so what the origin had then went to all clients at once."
	}
	return "up to date", "", meaning
}

// factsOf returns the details of a rollout.
func factsOf(s *rollout.Status, now time.Time) (facts []fact) {
	add := func(is bool, f fact) {
		if is {
			facts = append(facts, f)
		}
	}
	past := s.Phase == rollout.Current
	label, note := "Edition", plural(s.Resources, "resource")
	if past {
		label = "Last edition"
	}
	if !s.Changed.IsZero() {
		note += ", changed " + ago(s.Changed, now) + " ago"
	}
	add(s.Edition != "" && s.Phase != rollout.Gathering, fact{Label: label, Value: s.Edition, Note: note})
	if s.Phase == rollout.Rolling && s.Stage > 0 && s.Stage < len(s.Cohorts) {
		add(true, fact{Label: "Stage", Value: fmt.Sprintf("%d of %d", s.Stage, len(s.Cohorts)-1), Note: s.Cohorts[s.Stage-1].Name})
	}
	add(!s.Until.IsZero(), fact{Label: "Time left", Value: brief(s.Until.Sub(now).Seconds())})
	add(s.WaitsFor != "", fact{Label: "Waits for", Value: s.WaitsFor})
	withheld := fact{Label: "Withheld", Value: plural(s.Waiting, "resource")}
	if !s.Oldest.IsZero() {
		withheld.Note = "oldest change " + ago(s.Oldest, now) + " ago"
	}
	add(s.Waiting > 0, withheld)
	add(s.Check != "" && !past, checkOf(s, now))
	add(s.Unobserved && !past, fact{Label: "Evidence", Value: "none in a stage", Note: "no connected client that counts accepted the edition", Class: "late"})
	return facts
}

// checkOf returns what the check has answered.
func checkOf(s *rollout.Status, now time.Time) fact {
	f := fact{Label: "Check", Value: humanize.Cut(s.Check, maxRefusalWords)}
	switch {
	case !s.Failing.IsZero():
		f.Note, f.Class = "no answer for "+ago(s.Failing, now), "late"
	case !s.Checked.IsZero():
		f.Note = "asked " + ago(s.Checked, now) + " ago"
	}
	return f
}

// hintsOf returns the commands that apply to a rollout, what is most likely wanted first.
func hintsOf(s *rollout.Status) (hints []hint) {
	add := func(command, does string) {
		hints = append(hints, hint{"tender " + command + " --origin " + s.Origin, does})
	}
	if s.Frozen {
		add("thaw", "distributes changes again")
	}
	if s.Phase != rollout.Current {
		add("rollout diff", "shows what the edition changes")
	}
	switch s.Phase {
	case rollout.Gathering:
		add("rollout abort", "rejects what has changed before any client is served it")
	case rollout.Held:
		add("rollout promote", "starts the first stage now: the change is meant")
		add("rollout abort", "rejects the edition")
	case rollout.Rolling:
		next := "serves the edition to the next stage now"
		if s.Stage >= len(s.Cohorts)-1 {
			next = "serves the edition to all clients now"
		}
		add("rollout promote", next)
		add("rollout abort", "rejects the edition: its clients are served the last good again")
	case rollout.Halted:
		add("rollout resume", "serves the same changes again, from the first stage on")
	}
	switch s.Phase {
	case rollout.Current:
	case rollout.Halted:
		add("rollout promote --all", "serves all clients what the origin has now, with what was rejected")
	default:
		add("rollout promote --all", "serves all clients what the origin has now, without stages")
	}
	if s.Undoable {
		add("rollout undo", "serves all clients what they were served before the last promotion")
	}
	return hints
}

// outcomesOf returns what became of editions; empty if there were none.
func outcomesOf(o rollout.Outcomes) string {
	var parts []string
	for _, of := range []struct {
		n    int64
		what string
	}{{o.Promoted, "promoted"}, {o.Halted, "halted"}, {o.Superseded, "superseded"}, {o.Reverted, "reverted"}, {o.Undone, "undone"}} {
		if of.n > 0 {
			parts = append(parts, number(float64(of.n))+" "+of.what)
		}
	}
	return strings.Join(parts, ", ")
}

// rolloutAlerts returns the alerts of rollouts.
func rolloutAlerts(all []*rollout.Status, now time.Time) (alerts []alert) {
	for _, s := range all {
		switch {
		case s.Phase == rollout.Halted:
			a := alert{Class: "refused", Href: "#rollouts", Text: fmt.Sprintf("The rollout of origin %s is halted", s.Origin), Note: "all clients are served the last good"}
			if s.Halted != nil && !s.Halted.At.IsZero() {
				a.Text += ", for " + ago(s.Halted.At, now)
			}
			alerts = append(alerts, a)
		case s.Phase == rollout.Held && s.Large:
			alerts = append(alerts, alert{
				Class: "stale", Badge: "held", Href: "#rollouts", Text: fmt.Sprintf("Edition %s of origin %s is held: it removes a large part of a type", s.Edition, s.Origin),
				Note: "if that is meant:", Command: "tender rollout promote --origin " + s.Origin,
			})
		}
		if !s.Failing.IsZero() && (s.Phase == rollout.Held || s.Phase == rollout.Rolling) {
			alerts = append(alerts, alert{
				Class: "stale", Badge: "check", Href: "#rollouts", Text: fmt.Sprintf("The check of the rollout of origin %s has given no answer for %s", s.Origin, ago(s.Failing, now)),
				Note: "the edition does not proceed",
			})
		}
	}
	return alerts
}
