package page

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/rollout"
)

// Maximum lengths of texts of clients and of the check, in characters. Without them, 20 rejections of 2 KiB would be most
// of the page, which each follower receives every two seconds. The page of a client has the full text of its NACK.
const (
	maxDetail   = 300
	maxReason   = 600
	maxNodePart = 100 // of a node id in the link to a search
)

// A rolloutPanel shows the rollout of an origin.
type rolloutPanel struct {
	Origin  string
	State   string // state in two or three words
	Class   string // CSS class: rejected, stale, frozen or rolling; empty without a rollout
	For     string // age of the state or the stage; empty if unknown
	Meaning string // the state in sentences, with the resources that clients receive
	Reason  string // reason of the halt; empty without one
	Facts   []fact

	Bar     bar
	Counted bool // the counts of Bar.Cohorts are about the edition

	Rejections []rejection
	Parts      []partRow // the open parts, if there are several; the panel shows the first one
	Hints      []hint
	Outcomes   string // numbers of earlier editions by outcome; empty without one
}

// A partRow is an open part of a rollout.
type partRow struct {
	Name, State, Edition string
	Resources            int
	Reason               string // of the halt; empty without one
	Rejected             bool
}

// newPartRows returns the open parts of a rollout, if there are several.
func newPartRows(s *rollout.Status) (rows []partRow) {
	for _, of := range s.Parts {
		if of.Phase == rollout.Current {
			continue
		}
		state, _, _ := describeState(of)
		row := partRow{
			Name: humanize.Cut(of.Part, maxNodePart), State: state, Edition: of.Edition,
			Resources: max(of.Resources, of.Waiting), Rejected: of.Halted != nil,
		}
		if of.Halted != nil {
			row.Reason = humanize.Cut(of.Halted.Reason, maxDetail)
		}
		rows = append(rows, row)
	}
	if len(rows) < 2 {
		return nil
	}
	return rows
}

// A fact is a detail of a rollout.
type fact struct{ Label, Value, Note, Class string }

// A rejection is a NACK of the edition.
type rejection struct {
	Node, TypeURL, Detail string
	NodePart              string // start of the node id, for the link to a search
	Stage                 string // the label of the client's cohort
}

// A hint is a command and its effect.
type hint struct{ Command, Effect string }

// rollouts returns the state of the rollouts; nil if TENDER_ROLLOUT is off.
func (p *Pages) rollouts() []*rollout.Status {
	if p.cfg.Rollouts == nil {
		return nil
	}
	return p.cfg.Rollouts()
}

// newRolloutPanels returns a panel for each origin, the most urgent first.
func newRolloutPanels(all []*rollout.Status, now time.Time) (panels []rolloutPanel) {
	for _, s := range all {
		panels = append(panels, newRolloutPanel(s, now))
	}
	rank := []string{"rejected", "stale", "frozen", "rolling", ""}
	slices.SortStableFunc(panels, func(a, b rolloutPanel) int {
		return slices.Index(rank, a.Class) - slices.Index(rank, b.Class)
	})
	return panels
}

// newRolloutPanel returns the panel of one origin.
func newRolloutPanel(s *rollout.Status, now time.Time) rolloutPanel {
	p := rolloutPanel{
		Origin: s.Origin, Facts: newFacts(s, now), Bar: newBar(s), Hints: newHints(s), Outcomes: describeOutcomes(s.Outcomes),
		Counted: s.Phase == rollout.Rolling || s.Phase == rollout.Halted, Parts: newPartRows(s),
	}
	if !s.Since.IsZero() {
		p.For = ago(s.Since, now)
	}
	p.State, p.Class, p.Meaning = describeState(s)
	if s.Frozen {
		p.State += ", frozen"
		p.Meaning += " The origin is frozen: no change is distributed until it is thawed."
		if p.Class != "rejected" {
			p.Class = "frozen"
		}
	}
	if s.Halted != nil {
		p.Reason = humanize.Cut(s.Halted.Reason, maxReason)
		if !s.Halted.At.IsZero() {
			p.For = ago(s.Halted.At, now)
		}
	}
	for _, r := range s.Rejections {
		p.Rejections = append(p.Rejections, rejection{
			Node: humanize.Cut(r.Node, 48), NodePart: firstRunes(r.Node, maxNodePart), TypeURL: r.TypeURL,
			Detail: humanize.Cut(r.Detail, maxDetail), Stage: cohortLabel(r.Cohort, len(s.Cohorts)),
		})
	}
	return p
}

// firstRunes returns the first n characters of a text.
func firstRunes(text string, n int) string {
	runes := []rune(text)
	return string(runes[:min(len(runes), n)])
}

// describeState returns the state of a rollout, its CSS class, and its meaning for clients.
func describeState(s *rollout.Status) (state, class, meaning string) {
	stages := max(len(s.Cohorts)-1, 0)
	switch s.Phase {
	case rollout.Gathering:
		meaning = "The origin has changed resources. The relay collects the changes for an edition. " +
			"No client receives them yet."
		if len(s.Cohorts) > 0 && s.Cohorts[0].Served != "" {
			meaning = fmt.Sprintf("The origin has changed resources of edition %s. The relay collects the changes for the next "+
				"edition. Until then, the first stage receives edition %[1]s, and all others the last good.", s.Edition)
		}
		return "gathering changes", "rolling", meaning
	case rollout.Held:
		if s.Large {
			meaning = fmt.Sprintf("Edition %s removes a large part of a type. No client receives it yet.", s.Edition)
			return "held", "stale", meaning
		}
		return "waiting to start", "rolling", fmt.Sprintf("Edition %s is ready. No client receives it yet.", s.Edition)
	case rollout.Rolling:
		reached := "the first stage"
		if s.Stage > 1 {
			reached = fmt.Sprintf("the first %d stages", s.Stage)
		}
		return fmt.Sprintf("stage %d of %d", s.Stage, stages), "rolling",
			fmt.Sprintf("Clients of %s receive edition %s, all others the last good.", reached, s.Edition)
	case rollout.Halted:
		return "halted", "rejected", fmt.Sprintf("Edition %s was rejected. All clients receive the last good of what it "+
			"changes, and other changes as usual. A correction at the origin starts a new rollout.", s.Edition)
	}
	meaning = "All clients receive the origin's current resources."
	if s.Cold {
		meaning += " The relay started without a snapshot of the last good, " +
			"so all clients received the resources of that time at once."
	}
	return "up to date", "", meaning
}

// newFacts returns the details of a rollout that apply to its state.
func newFacts(s *rollout.Status, now time.Time) (facts []fact) {
	addIf := func(cond bool, f fact) {
		if cond {
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
	addIf(s.Part != "" && !past, fact{Label: "Part", Value: humanize.Cut(s.Part, maxNodePart)})
	addIf(s.Edition != "" && s.Phase != rollout.Gathering, fact{Label: label, Value: s.Edition, Note: note})
	if s.Phase == rollout.Rolling && s.Stage > 0 && s.Stage < len(s.Cohorts) {
		facts = append(facts, fact{
			Label: "Stage", Value: fmt.Sprintf("%d of %d", s.Stage, len(s.Cohorts)-1), Note: s.Cohorts[s.Stage-1].Name,
		})
	}
	addIf(!s.Until.IsZero(), fact{Label: "Time left", Value: brief(s.Until.Sub(now).Seconds())})
	addIf(s.WaitsFor != "", fact{Label: "Waiting for", Value: s.WaitsFor})
	addIf(s.Full != "", fact{Label: "Parts", Value: humanize.Cut(s.Full, maxDetail)})
	pending := fact{Label: "Pending", Value: plural(s.Waiting, "resource")}
	if !s.Oldest.IsZero() {
		pending.Note = "oldest change " + ago(s.Oldest, now) + " ago"
	}
	addIf(s.Waiting > 0, pending)
	if past {
		return facts
	}
	return append(facts, verdictFacts(s, now)...)
}

// verdictFacts returns what is known of whether an edition is good.
func verdictFacts(s *rollout.Status, now time.Time) (facts []fact) {
	if s.Check != "" {
		facts = append(facts, checkFact(s, now))
	}
	if s.Envoy != "" {
		facts = append(facts, fact{Label: "Local Envoy", Value: humanize.Cut(s.Envoy, maxDetail)})
	}
	if s.Unobserved {
		facts = append(facts, fact{
			Label: "Evidence", Value: "none in a stage", Class: "lagging",
			Note: "no client whose answer counts, or no local Envoy, accepted the edition",
		})
	}
	return facts
}

// checkFact returns the last result of the check.
func checkFact(s *rollout.Status, now time.Time) fact {
	f := fact{Label: "Check", Value: humanize.Cut(s.Check, maxDetail)}
	switch {
	case !s.Failing.IsZero():
		f.Note, f.Class = "failing for "+ago(s.Failing, now), "lagging"
	case !s.Checked.IsZero():
		f.Note = "requested " + ago(s.Checked, now) + " ago"
	}
	return f
}

// partFlag returns the flag that selects the part of a panel, if several are open.
func partFlag(s *rollout.Status) string {
	if len(newPartRows(s)) == 0 || s.Part == "" {
		return ""
	}
	return " --part " + s.Part
}

// newHints returns the commands that apply to a rollout, the most likely first.
func newHints(s *rollout.Status) (hints []hint) {
	add := func(command, effect string) {
		hints = append(hints, hint{"tender " + command + " --origin " + s.Origin, effect})
	}
	if s.Frozen {
		add("thaw", "distributes changes again")
	}
	part := partFlag(s)
	if s.Phase != rollout.Current {
		add("rollout diff", "shows what the edition changes")
	}
	switch s.Phase {
	case rollout.Gathering:
		add("rollout abort", "rejects the changes before a client receives them")
	case rollout.Held:
		add("rollout promote"+part, "starts the first stage now, if the change is intended")
		add("rollout abort"+part, "rejects the edition")
	case rollout.Rolling:
		next := "serves the edition to the next stage now"
		if s.Stage >= len(s.Cohorts)-1 {
			next = "serves the edition to all clients now"
		}
		add("rollout promote"+part, next)
		add("rollout abort"+part, "rejects the edition and serves the last good to its clients")
	case rollout.Halted:
		add("rollout resume"+part, "serves the same changes again, from the first stage")
	}
	switch s.Phase {
	case rollout.Current:
	case rollout.Halted:
		add("rollout promote --all", "serves all clients the current resources, including the rejected changes")
	default:
		add("rollout promote --all", "serves all clients the current resources, without stages")
	}
	if s.Undoable {
		add("rollout undo", "reverts the newest promotion to all clients")
	}
	return hints
}

// describeOutcomes returns the numbers of editions by outcome; empty without one.
func describeOutcomes(o rollout.Outcomes) string {
	var parts []string
	for _, outcome := range []struct {
		n    int64
		name string
	}{
		{o.Promoted, "promoted"}, {o.Halted, "halted"}, {o.Superseded, "superseded"},
		{o.Reverted, "reverted"}, {o.Undone, "undone"},
	} {
		if outcome.n > 0 {
			parts = append(parts, number(float64(outcome.n))+" "+outcome.name)
		}
	}
	return strings.Join(parts, ", ")
}

// rolloutAlerts returns the alerts of rollouts.
func rolloutAlerts(all []*rollout.Status, now time.Time) (alerts []alert) {
	for _, s := range all {
		switch {
		case s.Phase == rollout.Halted:
			a := alert{
				Class: "rejected", Href: "#rollouts", Text: fmt.Sprintf("The rollout of origin %s is halted", s.Origin),
				Note: "all clients receive the last good",
			}
			if s.Halted != nil && !s.Halted.At.IsZero() {
				a.Text += ", for " + ago(s.Halted.At, now)
			}
			alerts = append(alerts, a)
		case s.Phase == rollout.Held && s.Large:
			alerts = append(alerts, alert{
				Class: "stale", Badge: "held", Href: "#rollouts",
				Text: fmt.Sprintf("Edition %s of origin %s is held: it removes a large part of a type", s.Edition, s.Origin),
				Note: "if that is intended:", Command: "tender rollout promote --origin " + s.Origin,
			})
		}
		if !s.Failing.IsZero() && (s.Phase == rollout.Held || s.Phase == rollout.Rolling) {
			alerts = append(alerts, alert{
				Class: "stale", Badge: "check", Href: "#rollouts", Note: "the rollout is waiting",
				Text: fmt.Sprintf("The check of the rollout of origin %s has failed for %s", s.Origin, ago(s.Failing, now)),
			})
		}
	}
	return alerts
}
