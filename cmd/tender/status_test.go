package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// serveAdmin serves a status, and a command that greets, on a socket or an address.
func serveAdmin(t *testing.T, network string, s admin.Status) (address string) {
	t.Helper()
	type greeting struct{ Name, Text string }
	server, err := admin.New(admin.Config{
		Ready:  func() []string { return nil },
		Status: func() admin.Status { return s },
		Commands: []admin.Command{admin.NewCommand("greet", func(_ context.Context, g greeting) (greeting, error) {
			if g.Name == "" {
				return g, admin.Refuse(http.StatusConflict, errors.New("nobody is there"))
			}
			return greeting{g.Name, "hello " + g.Name}, nil
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	address = "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "admin")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }() // awaited below
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
	if network == "unix" {
		return "unix:" + address
	}
	return l.Addr().String()
}

func someStatus(now time.Time) admin.Status {
	return admin.Status{
		Relay: admin.Relay{Version: "v1", UptimeSeconds: 200, NotReady: []string{"it rains", "it\x1b[31m snows"}},
		Origins: []admin.Origin{{
			Name: "default", Since: now.Add(-90 * time.Second), LastError: "connection refused",
			Targets: []admin.Target{{Target: "a:1", State: "idle"}, {Target: "b:1", Active: true, State: "connecting"}},
		}},
		Views: []admin.View{
			{Group: "g", Origin: "default", Stale: true, StaleSeconds: 3700, Streams: 2, Types: []admin.Type{
				{TypeURL: "type.googleapis.com/x.Y", Entries: 3, Bytes: 1000, Version: "7~x", Phase: "confirmed", ChangedAt: now.Add(-50 * time.Hour)},
			}},
			{Group: "h", Origin: "default"},
			{Group: "nobody asked", Origin: "default", Shared: true},
		},
	}
}

// Status finds the relay by its flag, or by the variable that the relay listens by.
func TestStatus(t *testing.T) {
	want := someStatus(time.Now())
	for _, network := range []string{"tcp", "unix"} {
		address := serveAdmin(t, network, want)
		for _, args := range [][]string{{"status", "-o", "json", "--admin", address}, {"status", "-o", "json"}} {
			t.Setenv(adminVariable, "unix:/nowhere")
			if len(args) == 3 {
				t.Setenv(adminVariable, address+",unix:/nowhere")
			}
			t.Setenv("TENDER_ACK_WAIT", "is none of its business")
			var stdout, stderr bytes.Buffer
			var got admin.Status
			code := run(args, &stdout, &stderr)
			if err := json.Unmarshal(stdout.Bytes(), &got); code != exitOK || err != nil || got.Views[0].Types[0] != func() admin.Type {
				typ := want.Views[0].Types[0]
				typ.ChangedAt = got.Views[0].Types[0].ChangedAt
				return typ
			}() {
				t.Errorf("tender %q: code %d, error %v, stdout %s, stderr %s", args, code, err, &stdout, &stderr)
			}
		}
	}
}

func TestStatusForPeople(t *testing.T) {
	now := time.Now()
	s := someStatus(now)
	var out strings.Builder
	if err := printStatus(&out, &s, now); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		`tender v1, up 3m20s, 0 streams, not ready: it rains; it\u001b[31m snows`,
		``,
		`ORIGIN   TARGET  STATE       SINCE  LAST ERROR`,
		`default  a:1     standby     -      -`,
		`default  b:1     connecting  1m30s  connection refused`,
		``,
		`GROUP  ORIGIN   STREAMS  TYPE                     ENTRIES  BYTES  STATE           CHANGED  VERSION`,
		`g      default  2        type.googleapis.com/x.Y  3        1000   STALE for 1h2m  2d2h     7~x`,
		`h      default  0        -                        0        0      not connected   -        -`,
		``,
	}, "\n")
	if got := out.String(); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
}

func TestStatusErrors(t *testing.T) {
	page := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = page.Serve(l) }() // ended by Close
	t.Cleanup(func() { _ = page.Close() })
	for _, tt := range []struct {
		variable string
		args     []string
		code     int
		want     string
	}{
		{"unix:/nowhere/admin", nil, exitFailure, "ask the relay: dial unix /nowhere/admin: connect: no such file or directory; --admin or TENDER_ADMIN_LISTEN say where it is"},
		{"off", nil, exitUsage, "TENDER_ADMIN_LISTEN is off: say by --admin where the relay listens"},
		{":1", nil, exitFailure, `TENDER_ADMIN_LISTEN=":1": `},
		{"off", []string{"--admin=here"}, exitUsage, "--admin=here: want host:port or unix:path"},
		{"off", []string{"-o", "yaml", "--admin=127.0.0.1:1"}, exitUsage, "--output=yaml: want text or json"},
		{l.Addr().String(), nil, exitFailure, "the answer of " + l.Addr().String() + " is not a relay's"},
	} {
		t.Setenv(adminVariable, tt.variable)
		var stdout, stderr bytes.Buffer
		if code := run(append([]string{"status"}, tt.args...), &stdout, &stderr); code != tt.code || !strings.HasPrefix(stderr.String(), "tender: "+tt.want) || stdout.Len() > 0 {
			t.Errorf("%s=%s tender status %q: code %d, stderr %q, want %d, %q", adminVariable, tt.variable, tt.args, code, &stderr, tt.code, tt.want)
		}
	}
}

// A command is a POST that a relay takes, and its refusal is the error.
func TestAdminCommand(t *testing.T) {
	c, err := newAdminClient(serveAdmin(t, "unix", admin.Status{}))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Text string }
	if err := c.command(t.Context(), "greet", map[string]string{"Name": "a"}, &answer); err != nil || answer.Text != "hello a" {
		t.Errorf("greet a: %+v, %v", answer, err)
	}
	if err := c.command(t.Context(), "greet", struct{}{}, &answer); err == nil || !strings.HasSuffix(err.Error(), ": nobody is there") {
		t.Errorf("greet nobody: %v, want that nobody is there", err)
	}
}
