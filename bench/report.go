package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// options are the flags of the driver.
type options struct {
	scenarios string        // comma-separated; empty selects all
	attacks   string        // of HOSTILE, comma-separated; empty selects all
	rounds    int           // 0 means the default of each scenario
	streams   int           // of OBSERVER; 0 means the default
	lasts     time.Duration // how long OBSERVER measures the rate that it found; 0 means the default
	rate      int           // highest rate of OBSERVER; 0 means the default
	scale     float64       // multiplies the numbers of clients and changes
	tender    string        // path of the binary
	results   string        // directory of reports; empty writes none
	commit    string        // for the report only
	gogc      string        // GOGC of Tender; empty is Go's default
	differs   []string      // names and values of flags that change what is measured, for the name of the file
}

// drive runs the selected scenarios. After each, it writes the report, so that an interrupted run loses one scenario. A missed
// target is not an error, but a lost delivery is.
func drive(o options, out, progress io.Writer) error {
	wanted := strings.FieldsFunc(strings.ToUpper(o.scenarios), func(r rune) bool { return r == ',' })
	all := scenarios(o)
	for _, id := range wanted {
		if !slices.ContainsFunc(all, func(s scenario) bool { return s.id == id }) {
			return fmt.Errorf("scenario %s: there is none", id)
		}
	}
	file, kept, err := o.reopen(time.Now())
	if err != nil {
		return err
	}
	measured := newReport(o.head(time.Now()))
	for _, s := range all {
		if len(wanted) > 0 && !slices.Contains(wanted, s.id) {
			continue
		}
		r, err := s.run(o, progress)
		if err != nil {
			return err
		}
		measured.add(r)
		kept.add(r)
		if err := kept.write(file, all); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(out, measured.text(all)); err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	return nil
}

// A report has the targets and the figures of scenarios, in Markdown. Its file grows with each scenario that is measured
// at its commit, also by another run.
type report struct {
	head      string // title, machine, and flags that change what is measured
	scenarios map[string]section
}

// A section is the part of a report about a scenario.
type section struct {
	targets string // rows of the table of targets
	details string
}

func newReport(head string) *report { return &report{head, make(map[string]section)} }

// add adds a result, in place of an earlier one of its scenario.
func (p *report) add(r result) {
	var s section
	for _, c := range r.scenario.checks {
		s.targets += r.check(c)
	}
	s.details = r.details()
	if r.scenario.conclude != nil {
		s.details += r.scenario.conclude(r)
	}
	p.scenarios[r.scenario.id] = s
}

// targetsHead is the head of the table of targets.
const targetsHead = "| # | Figure | Of | Measured | Against | Ratio | At most | |\n| --- | --- | --- | ---: | --- | ---: | ---: | --- |\n"

// text returns the report, with its scenarios in the order of all.
func (p *report) text(all []scenario) string {
	var targets, details strings.Builder
	for _, s := range all {
		targets.WriteString(p.scenarios[s.id].targets)
		details.WriteString(p.scenarios[s.id].details)
	}
	return p.head + targetsHead + targets.String() + details.String()
}

// parseReport reads a report that text has written.
func parseReport(text string) (*report, error) {
	head, rest, ok := strings.Cut(text, targetsHead)
	if !ok {
		return nil, errors.New("no table of targets")
	}
	p := newReport(head)
	targets, details, _ := strings.Cut(rest, sectionHead)
	for row := range strings.Lines(targets) {
		id, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " |")
		s := p.scenarios[id]
		s.targets += row
		p.scenarios[id] = s
	}
	for part := range strings.SplitSeq(details, sectionHead) {
		id, _, ok := strings.Cut(part, ":")
		if !ok {
			return nil, fmt.Errorf("a section without a scenario: %.40q", part)
		}
		s := p.scenarios[id]
		s.details = sectionHead + part
		p.scenarios[id] = s
	}
	return p, nil
}

// sectionHead begins the section of a scenario, whose name and a colon follow.
const sectionHead = "\n## "

// write writes the report to a file, unless that is empty.
func (p *report) write(file string, all []scenario) error {
	if file == "" {
		return nil
	}
	if err := os.WriteFile(file, []byte(p.text(all)), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// reopen returns the file of the report, empty without one, and what it has already. A commit has one file, and another for
// each set of flags that change what is measured. Figures of two machines do not share a file.
func (o options) reopen(now time.Time) (file string, p *report, err error) {
	p = newReport(o.head(now))
	if o.results == "" {
		return "", p, nil
	}
	name := "-" + strings.Join(append([]string{o.commit}, o.differs...), "-") + ".md"
	file = filepath.Join(o.results, now.Format("2006-01-02")+name)
	earlier, err := filepath.Glob(filepath.Join(o.results, "????-??-??"+name))
	if err != nil || len(earlier) == 0 {
		return file, p, err
	}
	file = earlier[len(earlier)-1]
	text, err := os.ReadFile(file)
	if err != nil {
		return "", nil, fmt.Errorf("read earlier results: %w", err)
	}
	was, err := parseReport(string(text))
	if err != nil {
		return "", nil, fmt.Errorf("%s is not a report: %w", file, err)
	}
	if _, machine, _ := strings.Cut(was.head, "\n"); !strings.HasSuffix(p.head, machine) {
		return "", nil, fmt.Errorf("%s was measured elsewhere: delete it, or use another directory (-results)", file)
	}
	return file, was, nil
}

// head returns the part of a report before the tables.
func (o options) head(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Tender %s, %s\n\n%s\n\n", o.commit, now.UTC().Format("2006-01-02 15:04 MST"), machine())
	if o.scale != 1 {
		fmt.Fprintf(&b, "A quick look at %g of the clients and changes: no measurement.\n\n", o.scale)
	}
	if o.gogc != "" {
		fmt.Fprintf(&b, "Tender runs with GOGC=%s.\n\n", o.gogc)
	}
	return b.String()
}

// check returns the row of a target for the table of targets.
func (r result) check(c check) string {
	a, against, ratio := r.of(c.a, c.figure), "–", "–"
	value, most := median(a), number(c.most)
	if c.reported {
		most = "–"
	}
	switch {
	case len(a) == 0:
		return fmt.Sprintf("| %s | %s | %s | not measured | | | %s | ? |\n", r.scenario.id, c.what, c.a, most)
	case c.more:
		against = c.b
		value -= median(r.of(c.b, c.figure))
		ratio = "+ " + number(value)
	case c.b != "":
		against = c.b
		var ok bool
		if value, ok = medianOfRatios(a, r.of(c.b, c.figure)); !ok {
			return fmt.Sprintf("| %s | %s | %s | %s | %s | not measured | %s | ? |\n", r.scenario.id, c.what, c.a, number(median(a)), c.b, most)
		}
		ratio = fmt.Sprintf("%.2f", value)
	}
	verdict := "held"
	switch {
	case c.reported:
		verdict = "reported"
	case value > c.most:
		verdict = "**missed**"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.scenario.id, c.what, c.a, number(median(a)), against, ratio, most, verdict)
}

// of returns a figure of the row label, one value per round.
func (r result) of(label string, figure func(figures) float64) (values []float64) {
	for _, f := range r.figures[label] {
		values = append(values, figure(f))
	}
	return values
}

// columns are the columns of the tables of details. A table omits columns without measurements.
var columns = []struct {
	head   string
	figure func(figures) float64
}{
	{"changes a second", rate},
	{"by the CPU of 16 cores", byCPU},
	{"CPU a delivery, µs", cpu},
	{"delay p50, ms", p50},
	{"p99, ms", p99},
	{"max, ms", func(f figures) float64 { return f.max }},
	{"until all have a change, ms", reached},
	{"bytes a delivery", func(f figures) float64 { return f.bytes }},
	{"in one response with others", func(f figures) float64 { return f.merged }},
	{"in sync, ms", synced},
	{"CPU until then, ms", syncCPU},
	{"connections a second", func(f figures) float64 { return f.connects }},
	{"of these with a resumed session, %", func(f figures) float64 { return f.resumed }},
	{"RSS a client, KiB", resident},
	{"of it the program's pages, MiB", func(f figures) float64 { return f.program }},
	{"peak RSS above, MiB", peak},
	{"RSS that is left, MiB", grown},
	{"RSS after the changes against that before", kept},
	{"turns of a stream for each response", looked},
	{"highest RSS above that in peace, MiB", highest},
	{"resent a client", again},
	{"live heap, bytes", heap},
	{"stalled to the end", func(f figures) float64 { return f.stalled }},
	{"RSS, MiB", held},
	{"allocations a delivery", func(f figures) float64 { return f.allocs }},
	{"highest RSS, MiB", func(f figures) float64 { return f.highestRSS }},
	{"CPU in all, s", func(f figures) float64 { return f.totalCPU }},
	{"CPU seconds a second", cores},
	{"p50 in peace, ms", inPeace(p50)},
	{"p99 in peace, ms", inPeace(p99)},
	{"CPU seconds a second in peace", inPeace(cores)},
	{"p99 as the attack began, ms", func(f figures) float64 {
		if f.onset == nil {
			return 0
		}
		return f.onset.p99
	}},
	{"join, ms", joined},
	{"join in peace, ms", inPeace(joined)},
	{"longest join, ms", func(f figures) float64 { return f.join }},
	{"longest join in peace, ms", inPeace(func(f figures) float64 { return f.join })},
	{"listens after, ms", func(f figures) float64 { return f.listening }},
	{"CPU of the control plane, ms", cost},
	{"its streams", ofOrigin(func(f originFigures) float64 { return f.streams })},
	{"requests", ofOrigin(func(f originFigures) float64 { return f.requests })},
	{"names in requests for each name", named},
	{"responses", ofOrigin(func(f originFigures) float64 { return f.responses })},
	{"MiB sent", sent},
	{"most MiB within a second", burst},
	{"until the last request, s", ofOrigin(func(f originFigures) float64 { return f.over })},
}

// inPeace returns an accessor for a figure measured before the attack; it is 0 without an attack.
func inPeace(figure func(figures) float64) func(figures) float64 {
	return func(f figures) float64 {
		if f.peace == nil {
			return 0
		}
		return figure(*f.peace)
	}
}

// details returns the table of a scenario, with the median of the rounds in each cell.
func (r result) details() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s: %s\n\n| | rounds |", r.scenario.id, r.scenario.title)
	shown := columns[:0:0]
	for _, c := range columns {
		if slices.ContainsFunc(r.scenario.rows, func(w row) bool { return median(r.of(w.label, c.figure)) != 0 }) {
			shown = append(shown, c)
			b.WriteString(" " + c.head + " |")
		}
	}
	b.WriteString("\n| --- | ---:" + strings.Repeat(" | ---:", len(shown)) + " |\n")
	for _, w := range r.scenario.rows {
		fmt.Fprintf(&b, "| %s | %d |", w.label, len(r.figures[w.label]))
		for _, c := range shown {
			b.WriteString(" " + measured(median(r.of(w.label, c.figure))) + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// measured formats a figure, and 0 as a dash, since 0 means not measured.
func measured(v float64) string {
	if v == 0 {
		return "–"
	}
	return number(v)
}

// number formats a figure with about three significant digits.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// machine returns the processor, the kernel and the version of Go, for the report.
func machine() string {
	model := "unknown processor"
	info, err := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, _ := strings.Cut(line, ":"); err == nil && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		kernel = []byte("unknown kernel")
	}
	return fmt.Sprintf("%d × %s, %s/%s %s, %s.", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, strings.TrimSpace(string(kernel)), runtime.Version())
}
