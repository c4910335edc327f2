package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestMain is testrun itself if go test runs it as the -exec program of a run under test.
func TestMain(m *testing.M) {
	if file := os.Getenv(usageVariable); file != "" && len(os.Args) > 1 && strings.HasSuffix(os.Args[1], "sample.test") {
		os.Exit(execute(file, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// sample writes a module with one package of tests, and returns its directory. In these tests, once(t) fails when it is
// called for the first time.
func sample(t *testing.T, tests string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module sample\n\ngo 1.26\n",
		"sample_test.go": `package sample

import (
	"os"
	"testing"
)

func once(t *testing.T) {
	if os.Mkdir(t.Name(), 0o700) == nil {
		t.Fatal("the first time")
	}
}

func TestGood(t *testing.T) { t.Log("quiet") }
` + tests,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRun(t *testing.T) {
	tests := []struct {
		name, tests string
		rerun       bool
		passed      bool
		prints      []string
	}{
		{"all pass", "", true, true, []string{"ok  \tsample", "\nTestGood ", "\nAll tests ", "\nBuilding ", "\n1 tests in "}},
		{"a failure", `func TestBad(t *testing.T) { t.Fatal("bad", "luck") }`, false, false, []string{"bad luck", "FAIL\tsample"}},
		{"a failure that repeats", `func TestBad(t *testing.T) { t.Fatal("bad") }`, true, false, []string{"once more, alone"}},
		{"flaky", `func TestFlaky(t *testing.T) { once(t) }`, true, true, []string{"the first time", "\nFLAKY TestFlaky in sample"}},
		{"flaky subtest", `func TestFlaky(t *testing.T) { t.Run("a/b", func(t *testing.T) { if os.Mkdir("s", 0o700) == nil { t.Fatal("now") } }) }`,
			true, true, []string{"TestFlaky/a/b", "\nFLAKY TestFlaky in sample"}},
		{"flaky without rerun", `func TestFlaky(t *testing.T) { once(t) }`, false, false, []string{"the first time"}},
		{"two flaky tests", `func TestFlaky(t *testing.T) { once(t) }; func TestAlso(t *testing.T) { once(t) }`, true, false,
			[]string{"FLAKY TestAlso", "FLAKY TestFlaky", "FAIL: 2 tests failed once"}},
		{"panic", `func TestPanic(t *testing.T) { if os.Mkdir("p", 0o700) == nil { panic("now") } }`, true, false, []string{"panic: now"}},
		{"exit", `func TestExit(t *testing.T) { if os.Mkdir("e", 0o700) == nil { os.Exit(3) } }`, true, false, []string{"exit status 3"}},
		{"does not compile", `func TestBad(t *testing.T) { undefined() }`, true, false, []string{"undefined: undefined"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			passed, err := run(&out, [][]string{{"-C", sample(t, tt.tests), "-vet=off", "."}}, tt.rerun)
			if err != nil || passed != tt.passed {
				t.Errorf("passed %v, error %v, want %v", passed, err, tt.passed)
			}
			for _, text := range tt.prints {
				if !strings.Contains(out.String(), text) {
					t.Errorf("%q is not printed", text)
				}
			}
			if strings.Contains(out.String(), "quiet") {
				t.Error("the output of a test that passed is printed")
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

func TestSplit(t *testing.T) {
	got := split(strings.Fields("-race ./a -- -C bench ./... --"))
	want := [][]string{{"-race", "./a"}, {"-C", "bench", "./..."}}
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("split: %q, want %q", got, want)
	}
}

func TestOnly(t *testing.T) {
	g := newGoTest(strings.Fields("-C bench -race -timeout=1m ./a/... ./b -direct"), nil)
	want := strings.Fields("-C bench -race -timeout=1m -count=1 -run=^TestX$ m/a -direct")
	if got := g.only(failure{"m/a", "TestX"}); !slices.Equal(got, want) {
		t.Errorf("arguments %q, want %q", got, want)
	}
}

func TestReport(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	r := report{}
	r.add(&goTest{cpu: 9 * time.Second, elapsed: []elapsed{{module + "b", "TestShort", 1}, {module + "a", "TestLong", 2.25}},
		usages: []usage{{dir + "/b", time.Second, 5e6}, {dir + "/a", 2 * time.Second, 3e6}}})
	var out strings.Builder
	r.write(&out, 4*time.Second)
	want := `
Slowest tests  seconds  package
TestLong       2.2      a
TestShort      1.0      b

Package    CPU seconds  largest process
a          2.0          3 MB
b          1.0          5 MB
All tests  3.0          5 MB
Building   6.0
2 tests in 4s
`
	if out.String() != want {
		t.Errorf("report:\n%s\nwant:\n%s", out.String(), want)
	}
}

// TestWithout checks that the processes of a test do not take themselves for testrun.
func TestWithout(t *testing.T) {
	env := without([]string{"A=1", usageVariable + "=f", "B=2"}, usageVariable)
	if want := []string{"A=1", "B=2"}; !slices.Equal(env, want) {
		t.Errorf("environment %q, want %q", env, want)
	}
}

// TestProgress checks that a line says what go test does when no package has ended for a minute, and only then.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		r, w := io.Pipe()
		ended := make(chan error)
		go func() { ended <- (&goTest{w: &out, packages: make(map[string]*pkg)}).read(r) }()
		for _, step := range []struct {
			after  time.Duration
			events string
		}{
			{quiet + time.Second, `{"Action":"start","Package":"` + module + `cache"}` + "\n" + `{"Action":"start","Package":"` + module + `relay"}` + "\n"},
			{quiet, `{"Action":"pass","Package":"` + module + `relay"}` + "\n"},
			{quiet - time.Second, `{"Action":"pass","Package":"` + module + `cache"}` + "\n"},
		} {
			time.Sleep(step.after)
			if _, err := io.WriteString(w, step.events); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		time.Sleep(quiet + time.Second)
		if err := errors.Join(w.Close(), <-ended); err != nil {
			t.Fatal(err)
		}
		want := `testrun: 1m0s: packages done: 0, now compiling
testrun: 2m0s: packages done: 0, now testing cache, relay
testrun: 4m0s: packages done: 2, now compiling
`
		if got := out.String(); got != want {
			t.Errorf("it prints\n%s\nwant\n%s", got, want)
		}
	})
}
