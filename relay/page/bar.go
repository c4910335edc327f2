package page

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/xdstender/tender/relay/rollout"
)

// Widths in percent of the bar. The minimum widths keep a stage with few clients, or none, visible.
const (
	barGap          = 1.0
	minCohortWidth  = 4.0
	minRestWidth    = 9.0 // its label is longer
	minSegmentWidth = 0.8
)

// A bar shows the clients of an origin by cohort, in the order of the stages. The width of a cohort grows with its
// number of clients.
type bar struct {
	Label   string // text alternative
	Cohorts []barCohort
	Legend  []legendEntry
}

// A barCohort is one cohort in a bar.
type barCohort struct {
	rollout.Cohort
	Label      string // the number of its stage, or "rest"
	X          string // left edge, in percent
	Unanswered int    // clients that were served the edition and have not answered
	Segments   []segment
}

// Reached reports whether the cohort is served the edition, or was served it before its rejection.
func (c barCohort) Reached() bool { return c.Served != "" || c.Subscribed > 0 }

// A segment shows the clients of a cohort in one class.
type segment struct {
	Class    string
	X, Width string // in percent of the bar
	Title    string
}

// A legendEntry is a class of clients, with its number of clients over all cohorts.
type legendEntry struct {
	Class, Name string
	Clients     int
}

// Classes of clients in a bar, as indexes of classes.
const (
	accepted   = iota
	rejected   // sent a NACK for the edition
	unanswered // served the edition, no answer yet
	unaffected // served the edition, but not subscribed to a resource that it changes
	onLastGood
)

// classes are the CSS class and the name of each class of clients.
var classes = [...]struct{ css, name string }{
	accepted:   {"accepted", "accepted the edition"},
	rejected:   {"rejected", "rejected the edition"},
	unanswered: {"unanswered", "served the edition, not answered"},
	unaffected: {"unaffected", "served the edition, not affected"},
	onLastGood: {"lastgood", "served the last good"},
}

// classCounts are numbers of clients by class.
type classCounts [len(classes)]int

// newBar returns the bar of a rollout.
func newBar(s *rollout.Status) bar {
	b := bar{}
	clients := 0
	for _, c := range s.Cohorts {
		clients += c.Clients
	}
	var totals classCounts
	var labels []string
	room := 100 - minRestWidth - (barGap+minCohortWidth)*float64(len(s.Cohorts)-1)
	x := 0.0
	for i, c := range s.Cohorts {
		share := 1 / float64(len(s.Cohorts))
		if clients > 0 {
			share = float64(c.Clients) / float64(clients)
		}
		minWidth := minCohortWidth
		if i == len(s.Cohorts)-1 {
			minWidth = minRestWidth
		}
		width, counts := minWidth+room*share, countClasses(c, s.Phase)
		cohort := barCohort{
			Cohort: c, Label: cohortLabel(i, len(s.Cohorts)), X: percent(x),
			Unanswered: max(c.Subscribed-c.Accepted-c.Rejected, 0),
			Segments:   newSegments(c, counts, x, width),
		}
		b.Cohorts = append(b.Cohorts, cohort)
		labels = append(labels, describeCohort(cohort, counts))
		for class, n := range counts {
			totals[class] += n
		}
		x += width + barGap
	}
	b.Label = "Clients by stage: " + strings.Join(labels, "; ")
	for i, class := range classes {
		if totals[i] > 0 {
			b.Legend = append(b.Legend, legendEntry{class.css, class.name, totals[i]})
		}
	}
	return b
}

// countClasses returns the number of clients of a cohort in each class. Answers and connected clients are sampled up to
// a second apart, so the numbers of answers are limited to the connected clients.
func countClasses(c rollout.Cohort, phase rollout.Phase) (counts classCounts) {
	remaining := c.Clients
	take := func(class, n int) {
		counts[class] = max(min(n, remaining), 0)
		remaining -= counts[class]
	}
	if c.Served != "" || phase == rollout.Halted {
		take(rejected, c.Rejected)
	}
	if c.Served != "" {
		take(accepted, c.Accepted)
		take(unanswered, c.Subscribed-c.Accepted-c.Rejected)
		take(unaffected, remaining)
	}
	take(onLastGood, remaining)
	return counts
}

// newSegments returns the segments of a cohort, from x on. A cohort without clients is an empty frame.
func newSegments(c rollout.Cohort, counts classCounts, x, width float64) (all []segment) {
	segments := 0
	for _, n := range counts {
		if n > 0 {
			segments++
		}
	}
	if segments == 0 {
		return []segment{{Class: "empty", X: percent(x), Width: percent(width), Title: c.Name + ": no client"}}
	}
	room := width - minSegmentWidth*float64(segments)
	for class, n := range counts {
		if n == 0 {
			continue
		}
		w := minSegmentWidth + room*float64(n)/float64(max(c.Clients, 1))
		all = append(all, segment{
			Class: classes[class].css, X: percent(x), Width: percent(w),
			Title: fmt.Sprintf("%s: %s %s", c.Name, plural(n, "client"), classes[class].name),
		})
		x += w
	}
	return all
}

// describeCohort returns the text alternative of a cohort.
func describeCohort(c barCohort, counts classCounts) string {
	text := c.Label
	if c.Name != "the rest" {
		text += ", " + c.Name
	}
	if c.Clients == 0 {
		return text + ": no client"
	}
	text += ": " + plural(c.Clients, "client")
	for class, n := range counts {
		if n > 0 {
			text += ", " + number(float64(n)) + " " + classes[class].name
		}
	}
	return text
}

// cohortLabel returns the label of a cohort in the bar: the number of its stage, or "rest".
func cohortLabel(cohort, cohorts int) string {
	if cohort == cohorts-1 {
		return "rest"
	}
	return strconv.Itoa(cohort + 1)
}

// percent formats a length for SVG.
func percent(n float64) string { return strconv.FormatFloat(n, 'f', 2, 64) + "%" }
