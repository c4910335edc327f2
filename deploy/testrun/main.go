// Command testrun runs go test and reports what the tests cost: the slowest tests, the CPU time of each package and of
// building, and the largest test process.
//
//	testrun -- -race ./cache/... ./relay/... -- ./deploy/...     # two runs of go test, one report
//	testrun -rerun -- -race ./system/...                         # runs a failed test once more, alone
//	testrun -- -C bench ./...                                    # in another module
//
// Arguments of go test have the form -name=value. Of tests that pass, testrun prints the closing line of the package; of
// tests that fail, their output. With -rerun, a failed test that then passes is reported as FLAKY with both outputs. Two
// such tests fail the run. A test is not run again if its process panicked or the race detector reported a race.
//
// To measure test binaries, testrun is also the -exec program of go test. gotestsum runs failed tests again and lists slow
// ones, but measures no processes.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

func main() {
	if file := os.Getenv(usageVariable); file != "" && len(os.Args) > 1 {
		os.Exit(execute(file, os.Args[1:]))
	}
	rerun := flag.Bool("rerun", false, "run a failed test once more, alone")
	flag.Parse()
	runs := split(flag.Args())
	if len(runs) == 0 {
		fmt.Fprintln(os.Stderr, "usage: testrun [-rerun] -- GO-TEST-ARGUMENTS [-- GO-TEST-ARGUMENTS]...")
		os.Exit(2)
	}
	passed, err := run(os.Stdout, runs, *rerun)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}
	if err != nil || !passed {
		os.Exit(1)
	}
}

// split returns the arguments of each run of go test. The first "--" ends the flags of testrun.
func split(args []string) (runs [][]string) {
	for len(args) > 0 {
		end := slices.Index(args, "--")
		if end < 0 {
			end = len(args)
		}
		if end > 0 {
			runs = append(runs, args[:end])
		}
		args = args[min(end+1, len(args)):]
	}
	return runs
}

// run runs go test with each list of arguments, and writes its results and the report to w. It reports whether all
// tests passed, with the exception of one flaky test with rerun.
func run(w io.Writer, runs [][]string, rerun bool) (passed bool, err error) {
	began := time.Now()
	passed = true
	var costs report
	flaky := 0
	for _, args := range runs {
		g := newGoTest(args, w)
		if err := g.run(); err != nil {
			return false, err
		}
		costs.add(g)
		if rerun && !g.passed && g.rerunnable() {
			again, err := g.rerun()
			if err != nil {
				return false, err
			}
			if g.passed = again; again {
				flaky += len(g.failed())
			}
		}
		passed = passed && g.passed
	}
	costs.write(w, time.Since(began))
	if flaky > 1 {
		fmt.Fprintf(w, "FAIL: %d tests failed once and then passed; one is tolerated\n", flaky)
		passed = false
	}
	return passed, nil
}
