package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// module is the prefix of import paths that the report omits.
const module = "github.com/xdstender/tender/"

// slowest is how many tests the report lists.
const slowest = 10

// A report is what all runs of go test cost.
type report struct {
	tests    []elapsed
	usages   []usage
	building time.Duration // CPU of go test without that of the test binaries: compilers, linkers, vet
}

// add adds a run.
func (r *report) add(g *goTest) {
	r.tests = append(r.tests, g.elapsed...)
	r.usages = append(r.usages, g.usages...)
	r.building += g.cpu
	for _, u := range g.usages {
		r.building -= u.CPU
	}
}

// write writes the slowest tests, the CPU time and largest process of each package, and the sums.
func (r *report) write(w io.Writer, took time.Duration) {
	slices.SortStableFunc(r.tests, func(a, b elapsed) int { return cmp.Compare(b.seconds, a.seconds) })
	slices.SortStableFunc(r.usages, func(a, b usage) int { return cmp.Compare(b.CPU, a.CPU) })
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nSlowest tests\tseconds\tpackage")
	for _, t := range r.tests[:min(slowest, len(r.tests))] {
		fmt.Fprintf(table, "%s\t%.1f\t%s\n", t.test, t.seconds, strings.TrimPrefix(t.pkg, module))
	}
	fmt.Fprintln(table, "\nPackage\tCPU seconds\tlargest process")
	var tests time.Duration
	var memory int64
	for _, u := range r.usages {
		fmt.Fprintf(table, "%s\t%.1f\t%d MB\n", relative(u.Directory), u.CPU.Seconds(), u.Memory/1e6)
		tests, memory = tests+u.CPU, max(memory, u.Memory)
	}
	fmt.Fprintf(table, "All tests\t%.1f\t%d MB\n", tests.Seconds(), memory/1e6)
	fmt.Fprintf(table, "Building\t%.1f\n", r.building.Seconds())
	_ = table.Flush() // to standard output
	fmt.Fprintf(w, "%d tests in %v\n", len(r.tests), took.Round(time.Second))
}

// relative returns a directory as seen from the current one, if it is below it.
func relative(dir string) string {
	here, err := os.Getwd()
	if err != nil {
		return dir
	}
	if name, err := filepath.Rel(here, dir); err == nil && filepath.IsLocal(name) {
		return name
	}
	return dir
}
