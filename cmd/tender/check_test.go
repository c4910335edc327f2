package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/snapshot"
)

// TestB42_CheckNotesADirectoryInUse verifies that tender check notes that a process uses the snapshot directory, in each
// form of output.
func TestB42_CheckNotesADirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	holder, err := snapshot.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TENDER_ORIGIN", "a:1")
	t.Setenv("TENDER_SNAPSHOT_DIR", dir)
	note := "TENDER_SNAPSHOT_DIR=\"" + dir + "\": a running process uses the directory; another relay can use it after that process has ended"
	if code, _, stderr := execute("check"); code != exitOK || stderr != "note: "+note+"\n" {
		t.Errorf("beside a relay: code %d, stderr %q, want 0 and a note", code, stderr)
	}
	if code, stdout, stderr := execute("check", "-o", "json"); code != exitOK || stderr != "" || !slices.Equal(decodeReport(t, stdout).Notes, []string{note}) {
		t.Errorf("as JSON: code %d, stderr %q, output %s, want 0 and the note in the output", code, stderr, stdout)
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := execute("check"); code != exitOK || stderr != "" {
		t.Errorf("without a relay: code %d, stderr %q, want 0 and no note", code, stderr)
	}
}

// decodeReport decodes the output of tender check -o json.
func decodeReport(t *testing.T, text string) (r checkReport) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("tender check -o json: %v\n%s", err, text)
	}
	return r
}

// TestCheckChanged verifies that tender check --changed prints the variables whose values differ from the defaults, or
// are refused, and no others.
func TestCheckChanged(t *testing.T) {
	for name, value := range map[string]string{
		"TENDER_ORIGIN": "a:1", "TENDER_LOG_LEVEL": "info", "TENDER_DRAIN": "7s", "TENDER_ACK_WAIT": "x", "TENDER_ORIGIN_HEADERS": "k=secret",
	} {
		t.Setenv(name, value)
	}
	code, stdout, stderr := execute("check", "--changed", "-o", "json")
	r := decodeReport(t, stdout)
	var got []string
	for _, v := range r.Variables {
		got = append(got, v.Variable+" "+v.Source)
	}
	want := []string{"TENDER_ORIGIN environment", "TENDER_ORIGIN_HEADERS environment", "TENDER_ACK_WAIT refused", "TENDER_DRAIN environment"}
	if !slices.Equal(got, want) || strings.Contains(stdout, "secret") {
		t.Errorf("tender check --changed prints %q, want %q, and no secret", got, want)
	}
	if code != exitFailure || len(r.Errors) != 1 || stderr != `tender: TENDER_ACK_WAIT="x": `+r.Errors[0].Message+"\n" ||
		!slices.Equal(r.Errors[0].Variables, []string{"TENDER_ACK_WAIT"}) {
		t.Errorf("code %d, stderr %q, errors %q, want 1 and the error of TENDER_ACK_WAIT", code, stderr, r.Errors)
	}
	if code, stdout, _ := execute("check", "--changed"); code != exitFailure || strings.Count(stdout, "\n") != len(want)+1 {
		t.Errorf("as text: code %d, output\n%s\nwant a header and %d rows", code, stdout, len(want))
	}
	all, _ := relay.LoadConfig(nil)
	if code, stdout, _ := execute("check", "-o", "json"); code != exitFailure || len(decodeReport(t, stdout).Variables) != len(all.Table()) {
		t.Errorf("without --changed: code %d, output\n%s\nwant all variables", code, stdout)
	}
}

// TestCheckChangedShowsErrors verifies that tender check --changed has a row for each variable that an error concerns, also
// if it is not set or does not exist, and that values are not quoted twice.
func TestCheckChangedShowsErrors(t *testing.T) {
	t.Setenv("TENDER_ACK_WAIT", "<x>")
	t.Setenv("TENDER_REST_LISTEN", ":18000")
	t.Setenv("TENDER_TLS_CERT", "/missing/"+t.Name())
	t.Setenv("TENDER_LISTN", "secret")
	code, stdout, _ := execute("check", "--changed", "-o", "json")
	r := decodeReport(t, stdout)
	var rows, errs []string
	for _, v := range r.Variables {
		rows = append(rows, fmt.Sprintf("%s %s %s", v.Variable, v.Source, v.Value))
	}
	for _, e := range r.Errors {
		errs = append(errs, strings.Join(e.Variables, " "))
	}
	wantRows := []string{
		"TENDER_ORIGIN missing required by tender serve", "TENDER_LISTEN default :18000",
		"TENDER_TLS_CERT refused /missing/" + t.Name(), "TENDER_TLS_KEY missing ", "TENDER_REST_LISTEN refused :18000",
		"TENDER_ACK_WAIT refused <x>", "TENDER_LISTN unknown …",
	}
	slices.Sort(rows)
	if slices.Sort(wantRows); !slices.Equal(rows, wantRows) || code != exitFailure {
		t.Errorf("tender check --changed: code %d, rows %q, want %q", code, rows, wantRows)
	}
	wantErrs := []string{
		"TENDER_ACK_WAIT", "TENDER_LISTN", "TENDER_ORIGIN", "TENDER_REST_LISTEN TENDER_LISTEN", "TENDER_TLS_CERT",
		"TENDER_TLS_CERT TENDER_TLS_KEY",
	}
	if slices.Sort(errs); !slices.Equal(errs, wantErrs) || !strings.Contains(stdout, `"<x>"`) {
		t.Errorf("tender check --changed: errors about %q, want %q, and no escapes:\n%s", errs, wantErrs, stdout)
	}
}

// TestServeRefusesAsCheck verifies that tender serve ends with all errors of tender check, also with those of files. Only that of the
// snapshot directory is no reason: it would serve without it.
func TestServeRefusesAsCheck(t *testing.T) {
	dir := t.TempDir()
	for name, value := range map[string]string{
		"TENDER_ACK_WAIT": "x", "TENDER_TLS_CERT": dir + "/cert", "TENDER_TLS_KEY": dir + "/key", "TENDER_SNAPSHOT_DIR": dir + "/a/b",
	} {
		t.Setenv(name, value)
	}
	for origin, want := range map[string]int{"": 5, "file://" + dir + "/origin": 5, "a": 5} {
		t.Setenv("TENDER_ORIGIN", origin)
		_, _, stderr := execute("check")
		code, stdout, got := execute("serve")
		withoutSnapshots := ""
		for line := range strings.Lines(stderr) {
			if !strings.Contains(line, "TENDER_SNAPSHOT_DIR") {
				withoutSnapshots += line
			}
		}
		if lines := strings.Count(stderr, "\n"); code != exitFailure || stdout != "" || got != withoutSnapshots || lines != want {
			t.Errorf("TENDER_ORIGIN=%s: code %d, %q, error\n%s\nwant %d lines, as tender check:\n%s", origin, code, stdout, got, want, stderr)
		}
	}
}

// TestCheckLongName verifies that a long unknown name is cut in text, and does not widen the column of variables.
func TestCheckLongName(t *testing.T) {
	lines, err := check(t, "TENDER_ORIGIN=a:1", "TENDER_"+strings.Repeat("X", 1000)+"=1")
	if last := lines[len(lines)-1]; err == nil || strings.Count(last, "X") > 130 || strings.Count(err.Error(), "X") > 130 {
		t.Errorf("tender check: %v, last row %s, want a shorter name", err, last)
	}
	if column := strings.Index(lines[0], "SOURCE"); column > 60 {
		t.Errorf("the second column starts at %d, want at most 60", column)
	}
}

// TestCheckNodeHasNoReport verifies that --node allows no flag for the output of variables.
func TestCheckNodeHasNoReport(t *testing.T) {
	for _, flag := range []string{"--changed", "--output=json"} {
		if code, stdout, stderr := execute("check", "--node", "-", flag); code != exitUsage || stdout != "" || !strings.Contains(stderr, "--node allows neither") {
			t.Errorf("tender check --node - %s: code %d, stderr %q, want %d", flag, code, stderr, exitUsage)
		}
	}
}

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
	if !regexp.MustCompile(`(?m)^TENDER_ACK_WAIT +refused +5 `).MatchString(strings.Join(lines, "\n")) {
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
// snapshot directory, and that check creates no files. A directory that a relay uses is not an error, because operators
// run check beside the relay.
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
		{"in use by a relay", taken, ""},
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

// TestB43_CheckShowsInvalidOpenTelemetryVariables verifies that tender check warns of them with the exit code 0, since
// tender serve starts in spite of them.
func TestB43_CheckShowsInvalidOpenTelemetryVariables(t *testing.T) {
	t.Setenv("TENDER_ORIGIN", "a:1")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "a=b,")
	t.Setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
	code, stdout, stderr := execute("check", "-o", "json")
	warnings := decodeReport(t, stdout).Warnings
	if code != exitOK || stderr != "" || len(warnings) != 2 || !strings.HasPrefix(warnings[0], `OTEL_TRACES_EXPORTER="carrier-pigeon": `) ||
		!strings.HasPrefix(warnings[1], `OTEL_RESOURCE_ATTRIBUTES="a=b,": `) {
		t.Errorf("tender check: code %d, stderr %q, warnings %q, want 0 and both variables", code, stderr, warnings)
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if code, _, stderr := execute("check"); code != exitOK || stderr != "" {
		t.Errorf("with a disabled SDK: code %d, stderr %q, want 0 and nothing", code, stderr)
	}
}
