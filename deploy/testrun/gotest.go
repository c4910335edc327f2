package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// A goTest is one run of go test.
type goTest struct {
	chdir []string // -C and its directory, or nothing: they must come first
	args  []string
	w     io.Writer // receives the results

	passed   bool
	packages map[string]*pkg // by import path
	elapsed  []elapsed       // of top-level tests that ended
	usages   []usage         // of test binaries
	cpu      time.Duration   // of go test and all processes below it
}

// A pkg is a package of which go test has reported something.
type pkg struct {
	output  map[string]*bytes.Buffer // by test, "" for the package itself; without those of tests that passed
	failed  []string                 // tests, in the order in which they ended
	crashed bool                     // a panic, a race, or an end without a failed test: a second run proves nothing
}

// elapsed is how long a test took.
type elapsed struct {
	pkg, test string
	seconds   float64
}

// An event is a line of go test -json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64 // seconds
}

// run runs go test. The error is about go test itself; failed tests are in g.
func (g *goTest) run() error {
	usages, err := os.CreateTemp("", "testrun")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(usages.Close(), os.Remove(usages.Name())) }() // a leftover temporary file is harmless
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", slices.Concat([]string{"test"}, g.chdir, []string{"-json", "-exec=" + self}, g.args)...)
	cmd.Env = append(os.Environ(), usageVariable+"="+usages.Name())
	cmd.Stderr = g.w
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	// On an interrupt, go test ends its tests, and the report is still written.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	if err := cmd.Start(); err != nil {
		return err
	}
	g.packages = make(map[string]*pkg)
	if err := g.read(stdout); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	err = cmd.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return err
	}
	g.passed, g.cpu = err == nil, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
	return g.readUsages(usages)
}

// newGoTest returns a run of go test with arguments.
func newGoTest(args []string, w io.Writer) *goTest {
	g := &goTest{args: args, w: w}
	if len(args) > 1 && args[0] == "-C" {
		g.chdir, g.args = args[:2], args[2:]
	}
	return g
}

// quiet is after how long without the result of a package read writes what go test does. Compiling all packages with the
// race detector takes longer.
const quiet = time.Minute

// read reads the events of go test, and writes the results of packages as they end.
func (g *goTest) read(r io.Reader) error {
	began, done := time.Now(), 0
	ticker := time.NewTicker(quiet)
	defer ticker.Stop()
	lines, end := make(chan []byte), make(chan error, 1)
	go func() { end <- readLines(r, lines) }()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return <-end
			}
			var e event
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "build-output", Output: string(line)} // such as an error of go test itself
			}
			g.handle(e)
			if e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") {
				done++
				ticker.Reset(quiet)
			}
		case <-ticker.C:
			fmt.Fprintf(g.w, "testrun: %v: packages done: %d, now %s\n", time.Since(began).Round(time.Second), done, g.now())
		}
	}
}

// readLines sends the lines of r, with their ends, and closes lines at the end of r.
func readLines(r io.Reader, lines chan<- []byte) error {
	defer close(lines)
	for buffered := bufio.NewReader(r); ; {
		line, err := buffered.ReadBytes('\n')
		if len(line) > 0 {
			lines <- line
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read events of go test: %w", err)
		}
	}
}

// now returns which packages are tested. go test tells nothing of what it compiles.
func (g *goTest) now() string {
	var testing []string
	for name, p := range g.packages {
		if name != "" && p.output != nil {
			testing = append(testing, strings.TrimPrefix(name, module))
		}
	}
	if len(testing) == 0 {
		return "compiling"
	}
	slices.Sort(testing)
	return "testing " + strings.Join(testing, ", ")
}

func (g *goTest) handle(e event) {
	if e.Action == "build-output" {
		fmt.Fprint(g.w, e.Output)
		return
	}
	p := g.packages[e.Package]
	if p == nil {
		p = &pkg{output: make(map[string]*bytes.Buffer)}
		g.packages[e.Package] = p
	}
	switch e.Action {
	case "output":
		p.print(e)
	case "pass", "fail", "skip":
		if e.Test == "" {
			p.close(g.w, e.Action == "fail")
		} else {
			g.endTest(p, e)
		}
	}
}

// print keeps output until its test or package has ended.
func (p *pkg) print(e event) {
	out := p.output[e.Test]
	if out == nil {
		out = new(bytes.Buffer)
		p.output[e.Test] = out
	}
	out.WriteString(e.Output)
	for _, crash := range []string{"panic: ", "fatal error: ", "WARNING: DATA RACE", "SIGQUIT: "} {
		p.crashed = p.crashed || strings.HasPrefix(e.Output, crash)
	}
}

func (g *goTest) endTest(p *pkg, e event) {
	if e.Action == "fail" {
		p.failed = append(p.failed, e.Test)
	} else {
		delete(p.output, e.Test)
	}
	if !strings.Contains(e.Test, "/") {
		g.elapsed = append(g.elapsed, elapsed{e.Package, e.Test, e.Elapsed})
	}
}

// close writes the output of failed tests, of tests that did not end, and of the package.
func (p *pkg) close(w io.Writer, failed bool) {
	p.crashed = p.crashed || failed && len(p.failed) == 0
	own := p.output[""]
	delete(p.output, "")
	if failed {
		for _, test := range p.failed {
			if out := p.output[test]; out != nil {
				_, _ = w.Write(out.Bytes()) // to standard output
				delete(p.output, test)
			}
		}
		for _, out := range p.output {
			_, _ = w.Write(out.Bytes()) // to standard output
		}
	}
	p.output = nil
	if own == nil {
		return
	}
	for line := range strings.Lines(own.String()) {
		if failed || strings.HasPrefix(line, "ok ") || strings.HasPrefix(line, "? ") {
			fmt.Fprint(w, line)
		}
	}
}

// failed returns the failed top-level tests, by package.
func (g *goTest) failed() (all []failure) {
	for name, p := range g.packages {
		for _, test := range p.failed {
			if !strings.Contains(test, "/") {
				all = append(all, failure{name, test})
			}
		}
	}
	slices.SortFunc(all, func(a, b failure) int { return strings.Compare(a.pkg+" "+a.test, b.pkg+" "+b.test) })
	return all
}

// A failure is a failed test.
type failure struct{ pkg, test string }

// readUsages reads what execute recorded.
func (g *goTest) readUsages(r io.Reader) error {
	decoder := json.NewDecoder(r)
	for {
		var u usage
		err := decoder.Decode(&u)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read usage of tests: %w", err)
		}
		g.usages = append(g.usages, u)
	}
}
