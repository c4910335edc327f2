package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/snapshot"
)

// check runs tender check with environ, and returns the lines of its output and its error.
func check(t *testing.T, environ ...string) ([]string, error) {
	t.Helper()
	cmd := newCheckCommand(host{environ: func() []string { return environ }})
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{}) // nil means os.Args
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.Execute()
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"), err
}

func TestCheckPrintsEveryVariable(t *testing.T) {
	lines, err := check(t, "TENDER_ORIGIN=control-plane:18000")
	if err != nil {
		t.Fatalf("tender check: %v", err)
	}
	cfg, _ := relay.LoadConfig(nil)
	table := cfg.Table()
	if len(lines) != len(table)+1 {
		t.Fatalf("tender check prints %d lines, want %d and a header", len(lines), len(table))
	}
	if want := regexp.MustCompile(`^VARIABLE +SOURCE +VALUE +MEANING$`); !want.MatchString(lines[0]) {
		t.Errorf("header %q, want %s", lines[0], want)
	}
	column := strings.Index(lines[0], "MEANING")
	for i, s := range table {
		line := lines[i+1]
		if !strings.HasPrefix(line, s.Variable+" ") || line[column:] != s.Meaning {
			t.Errorf("line %q, want it to begin with %s, and at column %d %q", line, s.Variable, column, s.Meaning)
		}
	}
	if want := regexp.MustCompile(`^TENDER_ORIGIN +environment  control-plane:18000  `); !want.MatchString(lines[1]) {
		t.Errorf("line %q, want %s", lines[1], want)
	}
}

// TestCheckLongValue verifies that a long value does not widen the column of values.
func TestCheckLongValue(t *testing.T) {
	long := "unix:///" + strings.Repeat("a", 90)
	lines, err := check(t, "TENDER_ORIGIN="+long)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(lines[1], long+"  ") {
		t.Errorf("line %q does not contain the value %q", lines[1], long)
	}
	if column := strings.Index(lines[0], "MEANING"); column > 90 {
		t.Errorf("the last column starts at %d, want at most 90", column)
	}
}

func TestCheckReportsErrors(t *testing.T) {
	lines, err := check(t, "TENDER_ACK_WAIT=5", "TENDER_LISTENS=:1", "TENDER_SERVICE_HOST=10.0.0.1")
	if err == nil {
		t.Fatal("tender check accepts an invalid configuration")
	}
	want := []string{
		`TENDER_ORIGIN="": it is required; allowed: `,
		`TENDER_ACK_WAIT="5": not a duration; allowed: `,
		`TENDER_LISTENS: unknown variable; did you mean TENDER_LISTEN?`,
	}
	got := strings.Split(err.Error(), "\n")
	if len(got) != len(want) {
		t.Fatalf("tender check: %d errors, want %d:\n%v", len(got), len(want), err)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("error %q, want %q…", got[i], want[i])
		}
	}
	if !regexp.MustCompile(`(?m)^TENDER_ACK_WAIT +refused +"5" `).MatchString(strings.Join(lines, "\n")) {
		t.Errorf("the table does not mark TENDER_ACK_WAIT as refused:\n%s", strings.Join(lines, "\n"))
	}
}

func TestCheckExitCodes(t *testing.T) {
	t.Setenv("TENDER_ORIGIN", "a:1")
	if code, _, stderr := execute("check"); code != exitOK || stderr != "" {
		t.Errorf("tender check: code %d, stderr %q, want 0 and no output", code, stderr)
	}
	t.Setenv("TENDER_DRAIN", "\x1b[31m")
	code, stdout, stderr := execute("check")
	if code != exitFailure || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, `tender: TENDER_DRAIN="\x1b[31m": not a duration; `) {
		t.Errorf("tender check: code %d, stderr %q, want 1 and one line", code, stderr)
	}
	if strings.Contains(stdout, "\x1b") {
		t.Errorf("tender check prints control characters: %q", stdout)
	}
}

func TestCheckSaysThatItCouldNotPrint(t *testing.T) {
	for want, args := range map[string][]string{"print configuration: ": {}, "print groups: ": {"--node", "-"}} {
		cmd := newCheckCommand(host{environ: func() []string { return nil }})
		closed, pipe := io.Pipe()
		broken := errors.New("broken pipe")
		_ = closed.CloseWithError(broken)
		cmd.SetIn(strings.NewReader("id: a"))
		cmd.SetOut(pipe)
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.Execute(); !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("tender check %q into a broken pipe: %v, want %s%v", args, err, want, broken)
		}
	}
}

// TestB42_CheckSaysThatTheDirectoryForSnapshotsCannotBeUsed verifies the errors of tender check for an unusable
// snapshot directory, and that check creates no files.
func TestB42_CheckSaysThatTheDirectoryForSnapshotsCannotBeUsed(t *testing.T) {
	parent := t.TempDir()
	taken, readOnly, file := filepath.Join(parent, "taken"), filepath.Join(parent, "read-only"), filepath.Join(parent, "file")
	holder, err := snapshot.Open(taken, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close() }()
	if err := errors.Join(os.Mkdir(readOnly, 0o500), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, dir, want string }{
		{"missing", filepath.Join(parent, "new"), ""},
		{"missing parent", filepath.Join(parent, "no", "new"), "no such file or directory"},
		{"file", file, "not a directory"},
		{"in use by another relay", taken, "another process uses the directory"},
	}
	if os.Getuid() != 0 { // root can write to a read-only directory
		tests = append(tests, struct{ name, dir, want string }{"read-only", readOnly, "permission denied"})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := check(t, "TENDER_ORIGIN=a:1", "TENDER_SNAPSHOT_DIR="+tt.dir)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("tender check: %v", err)
			case tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), `TENDER_SNAPSHOT_DIR="`+tt.dir+`": `) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("tender check: %v, want TENDER_SNAPSHOT_DIR=%q: … %s", err, tt.dir, tt.want)
			}
		})
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 3 {
		t.Errorf("after tender check, the directory contains %v, error %v, want 3 entries", entries, err)
	}
}
