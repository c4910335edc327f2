package main

import (
	"fmt"
	"slices"
	"strings"
)

// rerunnable reports whether a second run of the failed tests can tell whether they are flaky.
func (g *goTest) rerunnable() bool {
	for _, p := range g.packages {
		if p.crashed {
			return false
		}
	}
	return len(g.failed()) > 0
}

// rerun runs each failed test once more, one at a time. It reports whether all of them passed then.
func (g *goTest) rerun() (passed bool, err error) {
	passed = true
	for _, f := range g.failed() {
		fmt.Fprintf(g.w, "%s failed in %s; running it once more, alone\n", f.test, f.pkg)
		again := newGoTest(g.only(f), g.w)
		if err := again.run(); err != nil {
			return false, err
		}
		if again.passed && len(again.elapsed) == 0 {
			return false, fmt.Errorf("go test -run %s %s ran no test", f.test, f.pkg)
		}
		if again.passed {
			fmt.Fprintf(g.w, "FLAKY %s in %s: it failed, as logged above, and passed alone\n", f.test, f.pkg)
		}
		passed = passed && again.passed
	}
	return passed, nil
}

// only returns the arguments of go test for one test: those of g, with the test and its package in place of all packages.
func (g *goTest) only(f failure) []string {
	first := slices.IndexFunc(g.args, isPackage)
	after := slices.DeleteFunc(slices.Clone(g.args[first:]), isPackage)
	return slices.Concat(g.chdir, g.args[:first], []string{"-count=1", "-run=^" + f.test + "$", f.pkg}, after)
}

// isPackage reports whether an argument is a package or a pattern of packages.
func isPackage(arg string) bool {
	return strings.HasPrefix(arg, ".") || strings.Contains(arg, "/") && arg[0] != '-'
}
