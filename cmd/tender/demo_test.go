package main

import (
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// TestDemo runs it as a person would.
func TestDemo(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	code, stdout, stderr := execute("demo", "--for", "2s", "--clients", "20")
	if code != exitOK || stderr != "" {
		t.Errorf("tender demo: code %d, stderr %q, want 0 and nothing", code, stderr)
	}
	for _, line := range []string{
		`  relay    127\.0\.0\.1:\d+ +one connection up, 22 streams down`,
		`  \S.* get -a 127\.0\.0\.1:\d+ cds`,
		`Point an Envoy at 127\.0\.0\.1:\d+: .*`,
		`    1s +22 .*`,
		`All 20 clients agree with the origin: yes`,
	} {
		if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(stdout) {
			t.Errorf("tender demo does not print a line %q:\n%s", line, stdout)
		}
	}
}

func TestDemoRefusesFlags(t *testing.T) {
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"--clients", "0"}, "tender: --clients=0: must be from 1 to 5000"},
		{[]string{"--clients", "5001"}, "tender: --clients=5001: must be from 1 to 5000"},
		{[]string{"--clients", "many"}, `tender: invalid argument "many" for "--clients" flag: strconv.ParseInt: parsing "many": invalid syntax`},
		{[]string{"--rate", "0"}, "tender: --rate=0: must be from 0.1 to 100 changes a second"},
		{[]string{"--rate", "1e9"}, "tender: --rate=1e+09: must be from 0.1 to 100 changes a second"},
		{[]string{"--rate", "NaN"}, "tender: --rate=NaN: must be from 0.1 to 100 changes a second"},
		{[]string{"--for", "0"}, "tender: --for=0s: must be more than 0; without the flag, the demo runs until Ctrl-C"},
		{[]string{"--for", "-1s"}, "tender: --for=-1s: must be more than 0; without the flag, the demo runs until Ctrl-C"},
		{[]string{"now"}, `tender: unknown command "now" for "tender demo"`},
	}
	for _, tt := range tests {
		code, stdout, stderr := execute(append([]string{"demo"}, tt.args...)...)
		if want := tt.want + "\nRun 'tender demo --help' for usage.\n"; code != exitUsage || stdout != "" || stderr != want {
			t.Errorf("tender demo %q: code %d, stdout %q, stderr %q, want 2 and %q", tt.args, code, stdout, stderr, want)
		}
	}
}

func TestDemoNeedsAnEnvoy(t *testing.T) {
	t.Setenv("ENVOY", "/nonexistent/envoy")
	code, stdout, stderr := execute("demo", "--envoy")
	want := "tender: --envoy: no Envoy: exec: \"/nonexistent/envoy\": stat /nonexistent/envoy: no such file or directory; install one, or set ENVOY to its path\n"
	if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, want) {
		t.Errorf("tender demo --envoy: code %d, stdout %q, stderr %q, want 2 and %q", code, stdout, stderr, want)
	}
}

func TestInvocation(t *testing.T) {
	tests := []struct{ path, want string }{
		{"tender", "tender"},
		{"bin/tender", "bin/tender"},
		{"/usr/local/bin/tender", "/usr/local/bin/tender"},
		{"/tmp/go-build1/b001/exe/tender", "go run ./cmd/tender"},
		{"/home/me/.cache/go-build/1a/1a2b-d/tender", "go run ./cmd/tender"},
	}
	for _, tt := range tests {
		if got := invocation(tt.path); got != tt.want {
			t.Errorf("invocation(%q) = %q, want %q", tt.path, got, tt.want)
		}
	}
}
