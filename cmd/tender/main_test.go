package main

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/xdstender/tender/cmd/tender/cli"
)

func TestVersion(t *testing.T) {
	want := fmt.Sprintf("tender dev (commit unknown, unknown, %s, %s/%s)\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, arg := range []string{"version", "--version"} {
		code, stdout, stderr := execute(arg)
		if code != exitOK || stdout != want || stderr != "" {
			t.Errorf("tender %s: code %d, stdout %q, stderr %q, want 0, %q", arg, code, stdout, stderr, want)
		}
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

// TestUsageErrors verifies that an invalid command line has exit code 2, and prints the error and the command for help.
func TestUsageErrors(t *testing.T) {
	for _, tt := range []struct {
		command string // the help of this command is suggested
		args    string
		want    string
	}{
		{"", "sreve", `unknown command "sreve" for "tender"`},
		{"", "--nope", "unknown flag: --nope"},
		{"serve", "now", `unknown command "now" for "tender serve"`},
		{"check", "--fix", "unknown flag: --fix"},
		{"get", "", "a TYPE is required, such as cds; --lint works without one"},
		{"get", "xds", `unknown type "xds": want one of ` + cli.Types + ", or a type URL"},
		{"get", "cds ", "empty name"},
		{"get", "cds -o xml", "--output=xml: want one of yaml, json, name, wide"},
		{"get", "cds --timeout=-1s", "--timeout=-1s: must not be negative"},
		{"get", "cds --cert=x", "--cert and --key: want both or neither"},
		{"get", "cds -a localhost", "--address=localhost: want host:port or unix:path"},
		{"demo", "--clients 0", "--clients=0: must be from 1 to 5000"},
		{"demo", "--clients 5001", "--clients=5001: must be from 1 to 5000"},
		{"demo", "--clients many", `invalid argument "many" for "--clients" flag: strconv.ParseInt: parsing "many": invalid syntax`},
		{"demo", "--rate 0", "--rate=0: must be from 0.1 to 100 changes a second"},
		{"demo", "--rate 1e9", "--rate=1e+09: must be from 0.1 to 100 changes a second"},
		{"demo", "--rate NaN", "--rate=NaN: must be from 0.1 to 100 changes a second"},
		{"demo", "--for 0", "--for=0s: must be more than 0; without the flag, the demo runs until Ctrl-C"},
		{"demo", "--for -1s", "--for=-1s: must be more than 0; without the flag, the demo runs until Ctrl-C"},
		{"demo", "now", `unknown command "now" for "tender demo"`},
	} {
		var args []string
		if tt.command != "" {
			args = append(args, tt.command)
		}
		if tt.args != "" {
			args = append(args, strings.Split(tt.args, " ")...)
		}
		code, stdout, stderr := execute(args...)
		hint := "\nRun '" + strings.TrimSpace("tender "+tt.command) + " --help' for usage.\n"
		if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, "tender: "+tt.want+"\n") || !strings.HasSuffix(stderr, hint) {
			t.Errorf("tender %q: code %d, stdout %q, stderr %q, want 2, %q … %q", args, code, stdout, stderr, tt.want, hint)
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
		{"usage", cli.UsageError{Cause: errors.New("no such type")}, "tender: no such type\n"},
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
