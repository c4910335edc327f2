package page

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/xdstender/tender/relay/rollout"
)

// Widths in a bar, in percent of it. A stage with few clients, or none, is still to be seen.
const (
	barGap       = 1.0
	leastCohort  = 4.0
	leastRest    = 9.0 // its label is a word
	leastSegment = 0.8
)

// A bar shows the clients of an origin by cohort, in the order of stages. A cohort is the wider the more clients it has.
type bar struct {
	Label   string // what it shows, in words
	Cohorts []barCohort
	Legend  []legendEntry
}

// A barCohort is one cohort in a bar.
type barCohort struct {
	rollout.Cohort
	Label    string // its number, or "rest"
	X        string // where it begins, in percent
	Waits    int    // clients that were served the edition and have not answered
	Segments []segment
}

// Reached reports whether the cohort is served the edition, or was before that was rejected.
func (c barCohort) Reached() bool { return c.Served != "" || c.Subscribed > 0 }

// A segment is some clients of a cohort.
type segment struct {
	Class    string
	X, Width string // in percent of the bar
	Title    string
}

// A legendEntry is a class of clients, and how many of all cohorts are in it.
type legendEntry struct {
	Class, Name string
	Clients     int
}

// classes are those of clients in a bar.
var classes = []struct{ class, name string }{
	{"accepted", "accepted the edition"},
	{"refused", "refused it"},
	{"unanswered", "served it, no answer yet"},
	{"unaffected", "served it, not affected"}, // subscribed to nothing that it changes
	{"lastgood", "served the last good"},
}

// newBar draws a bar.
func newBar(s *rollout.Status) bar {
	b := bar{}
	clients := 0
	for _, c := range s.Cohorts {
		clients += c.Clients
	}
	var counts [5]int
	var labels []string
	room := 100 - leastRest - (barGap+leastCohort)*float64(len(s.Cohorts)-1)
	x := 0.0
	for i, c := range s.Cohorts {
		part := 1 / float64(len(s.Cohorts))
		if clients > 0 {
			part = float64(c.Clients) / float64(clients)
		}
		least := leastCohort
		if i == len(s.Cohorts)-1 {
			least = leastRest
		}
		width, of := least+room*part, countsOf(c, s.Phase)
		cohort := barCohort{Cohort: c, Label: labelOf(i, len(s.Cohorts)), X: percent(x), Waits: max(c.Subscribed-c.Accepted-c.Refused, 0)}
		cohort.Segments = segments(c, of, x, width)
		b.Cohorts = append(b.Cohorts, cohort)
		labels = append(labels, describe(cohort, of))
		for class, n := range of {
			counts[class] += n
		}
		x += width + barGap
	}
	b.Label = "Clients by stage: " + strings.Join(labels, "; ")
	for i, class := range classes {
		if counts[i] > 0 {
			b.Legend = append(b.Legend, legendEntry{class.class, class.name, counts[i]})
		}
	}
	return b
}

// countsOf returns the number of clients of a cohort in each class. Answers and connected clients are sampled up to a
// second apart, so they may disagree.
func countsOf(c rollout.Cohort, phase rollout.Phase) (of [5]int) {
	left := c.Clients
	take := func(class, n int) {
		of[class] = max(min(n, left), 0)
		left -= of[class]
	}
	if c.Served != "" || phase == rollout.Halted {
		take(1, c.Refused)
	}
	if c.Served != "" {
		take(0, c.Accepted)
		take(2, c.Subscribed-c.Accepted-c.Refused)
		take(3, left)
	}
	take(4, left)
	return of
}

// segments draws a cohort from x on. One without clients is an empty frame.
func segments(c rollout.Cohort, of [5]int, x, width float64) (all []segment) {
	kinds := 0
	for _, n := range of {
		if n > 0 {
			kinds++
		}
	}
	if kinds == 0 {
		return []segment{{Class: "nobody", X: percent(x), Width: percent(width), Title: c.Name + ": no client"}}
	}
	room := width - leastSegment*float64(kinds)
	for class, n := range of {
		if n == 0 {
			continue
		}
		w := leastSegment + room*float64(n)/float64(max(c.Clients, 1))
		all = append(all, segment{
			Class: classes[class].class, X: percent(x), Width: percent(w), Title: fmt.Sprintf("%s: %s %s", c.Name, plural(n, "client"), classes[class].name),
		})
		x += w
	}
	return all
}

// describe returns what a cohort looks like in words.
func describe(c barCohort, of [5]int) string {
	text := c.Label
	if c.Name != "the rest" {
		text += ", " + c.Name
	}
	if c.Clients == 0 {
		return text + ": no client"
	}
	text += ": " + plural(c.Clients, "client")
	for class, n := range of {
		if n > 0 {
			text += ", " + number(float64(n)) + " " + classes[class].name
		}
	}
	return text
}

// labelOf returns what a cohort is called beside its bar: the number of its stage, or "rest".
func labelOf(cohort, cohorts int) string {
	if cohort == cohorts-1 {
		return "rest"
	}
	return strconv.Itoa(cohort + 1)
}

func percent(n float64) string { return strconv.FormatFloat(n, 'f', 2, 64) + "%" }
