package snapshot

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func openDir(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// TestH09_DecisionsAreReadAsWritten checks that the next process reads the decisions as they were written, that
// unchanged decisions are not written, and that no temporary files remain.
func TestH09_DecisionsAreReadAsWritten(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	if got, err := d.Decisions(); err != nil || !reflect.DeepEqual(got, Decisions{}) {
		t.Fatalf("decisions of an empty directory: %+v, %v", got, err)
	}
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	want := Decisions{
		Freezes: []Freeze{
			{Origin: "default", By: "alice", Reason: "why", Since: at, Until: at.Add(time.Hour), Length: time.Hour},
		},
		Dropped: []DroppedRemovals{{Origin: "default", Group: "all", TypeURL: "t", Names: []string{"a", "b"}, By: "alice", Since: at}},
	}
	var written []time.Time
	for range 2 {
		if err := d.WriteDecisions(want); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(path, decisionsName))
		if err != nil || info.Mode().Perm() != fileMode {
			t.Fatalf("file: %v, %v; want mode 0600", info, err)
		}
		written = append(written, info.ModTime())
	}
	if !written[0].Equal(written[1]) {
		t.Error("unchanged decisions were written again")
	}
	if err := os.WriteFile(filepath.Join(path, "."+decisionsName+"123"), nil, fileMode); err != nil {
		t.Fatal(err)
	}
	_ = d.Close()
	d = openDir(t, path)
	if got, err := d.Decisions(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v, want %+v", got, err, want)
	}
	if files, err := os.ReadDir(path); err != nil || len(files) != 2 { // with the lock
		t.Errorf("files %v, %v, want the decisions and the lock", files, err)
	}
	if err := d.WriteDecisions(Decisions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Decisions(); err != nil || !reflect.DeepEqual(got, Decisions{}) {
		t.Errorf("revoked: read %+v, %v, want none", got, err)
	}
}

// TestH09_InvalidDecisions checks that invalid decisions are an error with the reason, and that no part of them is
// used.
func TestH09_InvalidDecisions(t *testing.T) {
	for text, want := range map[string]string{
		`{"format": 2, "freezes": 7}`:       "format 2, this relay reads format 1",
		`{}`:                                "format 0",
		`{"format": 1, "freezes": [{"ori`:   "unexpected end",
		`{"format": 1, "freezes": "all"}`:   "cannot unmarshal",
		"tender snapshot\n\x00\x00\x00\x01": "invalid character",
	} {
		d := openDir(t, t.TempDir())
		if err := os.WriteFile(filepath.Join(d.path, decisionsName), []byte(text), fileMode); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Decisions(); err == nil || !strings.Contains(err.Error(), want) ||
			!reflect.DeepEqual(got, Decisions{}) {
			t.Errorf("decisions of %q: %+v, %v; want none, and the error %q", text, got, err, want)
		}
	}
}

// TestH09_ChangedClock checks that a changed wall clock does not extend a freeze after a restart.
func TestH09_ChangedClock(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	f := Freeze{Until: at.Add(2 * time.Hour), Length: 2 * time.Hour}
	for after, want := range map[time.Duration]time.Duration{
		0:               2 * time.Hour,
		time.Hour:       time.Hour,
		-24 * time.Hour: 2 * time.Hour,
		3 * time.Hour:   -time.Hour,
	} {
		if got := f.Remaining(at.Add(after)); got != want {
			t.Errorf("%v after the start, the remaining time is %v, want %v", after, got, want)
		}
	}
}
