package main

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// execute runs a command line and returns what it wrote.
func execute(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestVersion(t *testing.T) {
	code, stdout, stderr := execute("--version")
	want := fmt.Sprintf("tender dev (commit unknown, unknown, %s, %s/%s)\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if code != exitOK || stdout != want || stderr != "" {
		t.Errorf("tender --version: code %d, stdout %q, stderr %q, want 0, %q", code, stdout, stderr, want)
	}
}

func TestHelpListsCommands(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"help"}} {
		code, stdout, _ := execute(args...)
		if code != exitOK {
			t.Errorf("tender %q: code %d, want 0", args, code)
		}
		for _, name := range []string{"serve", "check", "get", "demo"} {
			if !regexp.MustCompile(`(?m)^  ` + name + ` +\S`).MatchString(stdout) {
				t.Errorf("tender %q does not list %s:\n%s", args, name, stdout)
			}
		}
	}
}

func TestUsageErrors(t *testing.T) {
	tests := []struct {
		args []string
		want string // the first line of stderr
		hint string // the last
	}{
		{[]string{"sreve"}, `tender: unknown command "sreve" for "tender"`, "Run 'tender --help' for usage."},
		{[]string{"--nope"}, "tender: unknown flag: --nope", "Run 'tender --help' for usage."},
		{[]string{"serve", "now"}, `tender: unknown command "now" for "tender serve"`, "Run 'tender serve --help' for usage."},
		{[]string{"check", "--fix"}, "tender: unknown flag: --fix", "Run 'tender check --help' for usage."},
	}
	for _, tt := range tests {
		code, stdout, stderr := execute(tt.args...)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		if code != exitUsage || stdout != "" || lines[0] != tt.want || lines[len(lines)-1] != tt.hint {
			t.Errorf("tender %q: code %d, stdout %q, stderr %q, want 2, %q … %q", tt.args, code, stdout, stderr, tt.want, tt.hint)
		}
	}
}

func TestPrintError(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"one", errors.New("open file: no"), "tender: open file: no\n"},
		{"joined", errors.Join(errors.New("a"), errors.New("b")), "tender: a\ntender: b\n"},
		{"blank lines", errors.New("a\n\nb\n"), "tender: a\ntender: b\n"},
		{"control characters", errors.New("peer said \x1b[31m\nb"), "tender: \"peer said \\x1b[31m\"\ntender: b\n"},
		{"usage", usageError{errors.New("no such type")}, "tender: no such type\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			printError(&out, tt.err)
			if out.String() != tt.want {
				t.Errorf("printError(%q) wrote %q, want %q", tt.err, out.String(), tt.want)
			}
		})
	}
}
