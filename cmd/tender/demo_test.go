package main

import (
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// TestDemo runs tender demo with few clients, and verifies its output and that it leaves no goroutines.
func TestDemo(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	code, stdout, stderr := execute("demo", "--for", "1ms", "--clients", "4", "--rate", "7")
	if code != exitOK || stderr != "" {
		t.Errorf("tender demo: code %d, stderr %q, want 0 and no output", code, stderr)
	}
	for _, line := range []string{
		`  origin   127\.0\.0\.1:\d+ .* 7 times a second`,
		`  relay    127\.0\.0\.1:\d+ +one connection up, 6 streams down`,
		`  \S.* get -a 127\.0\.0\.1:\d+ cds`,
		`Point an Envoy at 127\.0\.0\.1:\d+: .*`,
		`All 4 clients agree with the origin: yes`,
	} {
		if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(stdout) {
			t.Errorf("tender demo prints no line %q:\n%s", line, stdout)
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

func TestDemoRolloutRefusesFlags(t *testing.T) {
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"--for", "10s"}, "tender: --for=10s: --rollout needs at least 44s; without --for, it ends by itself\n"},
		{[]string{"--stage", "1s", "--for", "20s"}, "tender: --for=20s: --rollout needs at least 22s; without --for, it ends by itself\n"},
		{[]string{"--stage", "2m"}, "tender: --stage=2m0s: must be from 1s to 1m0s\n"},
		{[]string{"--envoy"}, "tender: --envoy: not together with --rollout\n"},
	}
	for _, tt := range tests {
		code, stdout, stderr := execute(append([]string{"demo", "--rollout"}, tt.args...)...)
		if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, tt.want) {
			t.Errorf("tender demo --rollout %v: code %d, stdout %q, stderr %q, want 2 and %q", tt.args, code, stdout, stderr, tt.want)
		}
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
