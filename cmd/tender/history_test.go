package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// History implements admin.Fleet. It returns an update with an escape sequence in the diff, and a removal, of the
// cluster web.
func (someFleet) History(c admin.HistoryChoice) (admin.History, error) {
	if c.Name != "web" {
		return admin.History{}, admin.Refuse(http.StatusNotFound, errors.New("no change is remembered"))
	}
	return admin.History{Changes: []admin.Change{
		{
			At: time.Now().Add(-90 * time.Second), Change: "changed", Group: "envoy", Version: "h1.x", OriginVersion: "8", Bytes: 2048, SHA256: "ab",
			Diff: "@@ -1 +1 @@\n-name: a\n+name: \x1b[31mb\n", Note: "it ends",
		},
		{At: time.Now(), Change: "removed", Group: "envoy"},
	}}, nil
}

func TestHistory(t *testing.T) {
	t.Setenv(adminVariable, serveAdmin(t, "tcp", someStatus(time.Now())))
	code, stdout, stderr := execute("history", "cds", "web")
	if code != exitOK {
		t.Fatalf("tender history: code %d, %s", code, stderr)
	}
	for _, want := range []string{"changed  version 8  2.0 KiB  (envoy)\n", "    -name: a\n", "    (it ends)\n", "removed  (envoy)\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("tender history prints\n%s\nwithout %q", stdout, want)
		}
	}
	if strings.Contains(stdout, "\x1b") {
		t.Errorf("tender history prints an escape sequence: %q", stdout)
	}
	for args, want := range map[string]int{"history cds nobody": exitFailure, "history cds": exitUsage, "history c web": exitFailure, "history cds web -o wide": exitUsage} {
		if code, _, _ := execute(strings.Fields(args)...); code != want {
			t.Errorf("tender %s: code %d, want %d", args, code, want)
		}
	}
}
