package deploy_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"
)

// published is the file in bench/results that has the figures of all pages. After a new measurement, name its file here and
// run go test ./deploy -run TestFigures -update.
const published = "2026-12-01-dce2defbce85.md"

// TestFigures holds the figures in the pages: each is computed from one file of results, so pages cannot differ. A block
// between <!-- figures: NAME --> and <!-- end of figures --> is written from the template testdata/figures/NAME.tmpl.
func TestFigures(t *testing.T) {
	r := publishedResults(t)
	unused, err := filepath.Glob("testdata/figures/*.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?s)(<!-- figures: ([a-z-]+) -->\n)(.*?)(<!-- end of figures -->\n)`)
	for _, page := range []string{root + "/README.md", root + "/bench/README.md", "docs/capacity.md", "docs/faq.md"} {
		text := block.ReplaceAllStringFunc(readText(t, page), func(b string) string {
			parts := block.FindStringSubmatch(b)
			name := filepath.Join("testdata", "figures", parts[2]+".tmpl")
			unused = slices.DeleteFunc(unused, func(n string) bool { return n == name })
			return parts[1] + r.render(t, name) + parts[4]
		})
		hold(t, page, text)
	}
	if len(unused) > 0 {
		t.Errorf("no page has the figures of %v", unused)
	}
}

// publishedResults reads the results that the pages have.
func publishedResults(t *testing.T) *results {
	t.Helper()
	return readResults(t, filepath.Join(root, "bench", "results", published))
}

// results are the tables of a file of results, by the first word of their headings, such as S1. A scenario may have several.
type results struct {
	name   string
	commit string // of the title
	date   string
	tables map[string][]resultTable
}

// A resultTable is a table with the heads of its columns and the cells of its rows.
type resultTable struct {
	heads []string
	rows  [][]string
}

// readResults reads a file that the benchmark has written.
func readResults(t *testing.T, name string) *results {
	t.Helper()
	r := &results{name: filepath.Base(name), tables: map[string][]resultTable{}}
	scenario, inTable := "targets", false
	for line := range strings.Lines(readText(t, name)) {
		line = strings.TrimSpace(line)
		isTable := strings.HasPrefix(line, "|")
		switch tables := r.tables[scenario]; {
		case strings.HasPrefix(line, "# Tender "):
			fields := strings.Fields(line)
			r.commit, r.date = strings.TrimSuffix(fields[2], ","), fields[3]
		case strings.HasPrefix(line, "## "):
			scenario = strings.TrimSuffix(strings.Fields(line)[1], ":")
		case isTable && !inTable:
			r.tables[scenario] = append(tables, resultTable{heads: cells(line)})
		case isTable && !strings.HasPrefix(line, "| ---"):
			last := &tables[len(tables)-1]
			last.rows = append(last.rows, cells(line))
		}
		inTable = isTable
	}
	return r
}

// cells returns the cells of a row of a table.
func cells(line string) []string {
	all := strings.Split(strings.Trim(line, "|"), "|")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// render executes a template.
func (r *results) render(t *testing.T, name string) string {
	t.Helper()
	var b strings.Builder
	parsed, err := template.New(name).Funcs(template.FuncMap{
		"of": r.of, "text": r.text, "ratio": r.ratio, "rows": r.rows, "against": r.against,
		"targets": r.targets, "missed": r.missed, "example": r.example, "digits": digits, "whole": whole,
		"plan": r.plan, "cost": r.cost, "sizes": func() podSizes { return readSizes(t) },
		"fleets":  func() []float64 { return []float64{10_000, 100_000, 1_000_000} },
		"planned": func() []float64 { return []float64{1_000, 10_000, 50_000, 100_000} },
		"loads":   func() []string { return []string{"100 streams a connection", "one stream a connection"} },
		"measured": func() []measured {
			return []measured{{"250", "250"}, {"1000", "1,000"}, {"2500", "2,500"}, {"check: 5000", "5,000"}}
		},
		"add": func(a, b float64) float64 { return a + b }, "sub": func(a, b float64) float64 { return a - b },
		"mul": func(a, b float64) float64 { return a * b }, "div": func(a, b float64) float64 { return a / b },
		"commit": func() string { return r.commit[:7] }, "date": func() string { return r.date }, "file": func() string { return r.name },
	}).Parse(readText(t, name))
	if err == nil {
		err = parsed.Execute(&b, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// text returns the cell of a row and a column in the tables of a scenario.
func (r *results) text(scenario, row, column string) (string, error) {
	for _, table := range r.tables[scenario] {
		i := slices.Index(table.heads, column)
		j := slices.IndexFunc(table.rows, func(cells []string) bool { return cells[0] == row })
		if i >= 0 && j >= 0 {
			return table.rows[j][i], nil
		}
	}
	return "", fmt.Errorf("%s: %s has no row %q with a column %q", r.name, scenario, row, column)
}

// of returns the figure in a cell, without its unit.
func (r *results) of(scenario, row, column string) (float64, error) {
	text, err := r.text(scenario, row, column)
	if err != nil {
		return 0, err
	}
	figure, _, _ := strings.Cut(text, " ")
	return strconv.ParseFloat(figure, 64)
}

// ratio returns the ratio of a figure in row a to that in row b.
func (r *results) ratio(scenario, a, b, column string) (float64, error) {
	x, err := r.of(scenario, a, column)
	if err != nil {
		return 0, err
	}
	y, err := r.of(scenario, b, column)
	return x / y, err
}

// rows returns the names of the rows of a scenario.
func (r *results) rows(scenario string) (names []string, err error) {
	for _, table := range r.tables[scenario][:min(1, len(r.tables[scenario]))] {
		for _, cells := range table.rows {
			names = append(names, cells[0])
		}
	}
	if len(names) == 0 {
		err = fmt.Errorf("%s: it has no %s", r.name, scenario)
	}
	return names, err
}

// against returns the ratio of a figure in row a to that in row b: the median of the ratios within rounds.
func (r *results) against(scenario, figure, a, b string) (string, error) {
	for _, target := range r.tables["targets"][0].rows {
		if slices.Equal(target[:3], []string{scenario, figure, a}) && target[4] == b {
			return target[5], nil
		}
	}
	return "", fmt.Errorf("%s: %s does not compare the %s of %q with %q", r.name, scenario, figure, a, b)
}

// targets returns the table of the targets of scenarios.
func (r *results) targets(scenarios ...string) (string, error) {
	return r.targetsThat(func(target []string) bool { return slices.Contains(scenarios, target[0]) })
}

// missed returns the table of the targets that are missed.
func (r *results) missed() (string, error) {
	return r.targetsThat(func(target []string) bool { return target[len(target)-1] == "**missed**" })
}

func (r *results) targetsThat(has func(target []string) bool) (string, error) {
	var b strings.Builder
	b.WriteString("| # | Figure | Of | Measured | Against | Ratio | At most | |\n| --- | --- | --- | ---: | --- | ---: | ---: | --- |\n")
	found := false
	for _, target := range r.tables["targets"][0].rows {
		if has(target) {
			found = true
			fmt.Fprintf(&b, "| %s |\n", strings.Join(target, " | "))
		}
	}
	if !found {
		return "", fmt.Errorf("%s: no such target", r.name)
	}
	return b.String(), nil
}

// measured is a number of clients in the name of a row and on a page.
type measured struct{ Row, Text string }

// A load is what the clients of one relay cost by the model.
type load struct{ Deliveries, Cores, MiB, Mbit float64 }

// String returns the last columns of the table of examples.
func (l load) String() string {
	return fmt.Sprintf("%s | %.2f | %.0f | %.0f |", digits(l.Deliveries), l.Cores, l.MiB, l.Mbit)
}

// example is the cost of as many clients as one relay was measured with.
func (r *results) example(resources, bytes, names int, changes float64) (load, error) {
	return r.cost(clientsOfARelay, resources, bytes, names, changes)
}

// cost returns the cost of clients that subscribe to names (0 for the wildcard) of a number of resources with this many
// bytes each, by the changes per second.
func (r *results) cost(clients float64, resources, bytes, names int, changes float64) (l load, err error) {
	const kib, mib = 1 << 10, 1 << 20
	terms := map[string]float64{}
	for _, term := range []string{
		"CPU of a change", "CPU of a delivery", "CPU of a delivery, more if it is by name", "CPU of a KiB delivered",
		"RSS of the process", "RSS of a client", "RSS of a client and name", "RSS of a resource", "RSS of a KiB of resources",
	} {
		if terms[term], err = r.of("MODEL", term, "coefficient"); err != nil {
			return l, err
		}
	}
	size := float64(bytes) / kib
	share, delivery, overhead := 1.0, terms["CPU of a delivery"]+size*terms["CPU of a KiB delivered"], 164.0
	if names > 0 {
		share, overhead = float64(names)/float64(resources), 196
		delivery += terms["CPU of a delivery, more if it is by name"]
	}
	l.Deliveries = changes * clients * share
	l.Cores = (changes*terms["CPU of a change"] + l.Deliveries*delivery) / 1e6
	l.MiB = terms["RSS of the process"] + clients*(terms["RSS of a client"]*kib+float64(names)*terms["RSS of a client and name"])/mib +
		float64(resources)*(terms["RSS of a resource"]+size*terms["RSS of a KiB of resources"])/mib
	l.Mbit = l.Deliveries * (float64(bytes) + overhead) * 8 / 1e6
	return l, nil
}

// digits formats a figure with at most three significant digits, and commas in large ones.
func digits(v float64) string {
	text := strconv.FormatFloat(v, 'g', 3, 64)
	if rounded, err := strconv.ParseFloat(text, 64); err == nil {
		text = strconv.FormatFloat(rounded, 'f', -1, 64)
	}
	return grouped(text)
}

// whole formats a whole number, with commas in a large one.
func whole(v float64) string { return grouped(strconv.FormatFloat(v, 'f', 0, 64)) }

// grouped returns a number with commas between groups of three digits.
func grouped(number string) string {
	whole, fraction, hasFraction := strings.Cut(number, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if !hasFraction {
		return whole
	}
	return whole + "." + fraction
}
