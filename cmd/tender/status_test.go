package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/relay/admin"
)

// serveAdmin serves an admin API until the test ends, with a status and the command greet. network is unix or tcp.
// further functions may change the configuration. It returns the address as for --admin.
func serveAdmin(t *testing.T, network string, s admin.Status, further ...func(*admin.Config)) (address string) {
	t.Helper()
	type greeting struct{ Name, Text string }
	cfg := admin.Config{
		Ready:  func() []string { return nil },
		Status: func() admin.Status { return s },
		Fleet:  someFleet{},
		Commands: []admin.Command{admin.NewCommand("greet", func(_ context.Context, g greeting) (greeting, error) {
			if g.Name == "" {
				return g, admin.Refuse(http.StatusConflict, errors.New("nobody is there"))
			}
			return greeting{g.Name, "hello " + g.Name}, nil
		})},
		Metrics: http.NotFoundHandler(),
		GRPC:    grpc.NewServer(),
	}
	for _, change := range further {
		change(&cfg)
	}
	server := admin.New(cfg)
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

// someFleet is a fleet with three clients: one rejects a response, one lags, and one is up to date.
type someFleet struct{ admin.Fleet }

// Clients implements admin.Fleet. With q.Rejected it returns only the client that rejects a response.
func (someFleet) Clients(q admin.ClientQuery) (admin.Clients, error) {
	now := time.Now()
	cds := admin.ClientType{Name: "cds", LagSeconds: 4000, Rejecting: true, Rejection: &admin.Rejection{
		At: now.Add(-time.Minute), Version: "8", Code: "INVALID_ARGUMENT", Detail: strings.Repeat("no such filter\x1b[31m: ", 20),
	}}
	sds := admin.ClientType{Name: "sds", Rejecting: true, Rejection: &admin.Rejection{At: now, Code: "INTERNAL"}}
	c := admin.Clients{
		Totals:  admin.ClientTotals{Streams: 10_000, Matching: 2, Rejecting: 1, Lagging: 2, LagSeconds: 4000},
		Types:   []admin.TypeTotals{{Group: "g", Name: "cds", Clients: 2, Lagging: 2, Rejecting: 1, LagSeconds: 4000}},
		Clients: []admin.Client{{Number: 17, NodeID: "a-node-with-a-name-that-is-longer-than-one-likes", LagSeconds: 4000, Rejecting: true, Types: []admin.ClientType{cds, sds}}},
	}
	if !q.Rejected {
		c.Clients = append(c.Clients, admin.Client{Number: 18, NodeID: "slow", LagSeconds: 3, Types: []admin.ClientType{{Name: "eds", LagSeconds: 3, Pending: true, Accepted: "7"}}}, admin.Client{Number: 19, NodeID: "well"})
	}
	return c, nil
}

// someStatus returns a status with text, types and times that are hard to print.
func someStatus(now time.Time) admin.Status {
	return admin.Status{
		Relay: admin.Relay{Version: "v1", UptimeSeconds: 200, NotReady: []string{"it rains", "it\x1b[31m snows"},
			Taken: &admin.TakenState{From: "10.0.0.7:18443", NodeID: "tender/b", At: now.Add(-time.Minute), AgeSeconds: 3600, Views: 2}},
		Origins: []admin.Origin{{
			Name: "default", Since: now.Add(-90 * time.Second), LastError: "connection refused", LastErrorAt: now.Add(-2 * time.Minute),
			Targets: []admin.Target{{Target: "a:1", State: "idle"}, {Target: "b:1", Active: true, State: "connecting"}},
			FailedAddresses: []admin.FailedAddress{
				{Target: "a:1", Since: now.Add(-time.Hour), Error: "refused"},
				{Target: "b:1", Address: "10.0.0.3:1", Since: now.Add(-time.Minute), Error: "no\x1b[31mserver"},
			},
		}},
		Views: []admin.View{
			{Group: "g", Origin: "default", Stale: true, StaleSeconds: 3700, Streams: 2, Types: []admin.Type{
				{TypeURL: "type.googleapis.com/x.Y", Entries: 3, Bytes: 1000, Version: "7~x", Phase: "confirmed", ChangedAt: now.Add(-50 * time.Hour)},
			}},
			{Group: "h", Origin: "default"},
			{Group: "nobody asked", Origin: "default", Shared: true},
		},
		Files: []admin.Files{
			{Files: []admin.File{{Variable: "TENDER_TLS_CERT"}, {Variable: "TENDER_TLS_KEY"}}, LoadedAt: now.Add(-time.Hour), NotAfter: now.Add(-90 * time.Second), Error: "no key"},
			{Files: []admin.File{{Variable: "TENDER_AUTHZ"}}, LoadedAt: now.Add(-time.Hour)},
			{Files: []admin.File{{Variable: "TENDER_ORIGIN_TLS_CA"}}, LoadedAt: now.Add(-time.Hour), NotAfter: now.Add(169*time.Hour + time.Minute)},
			{Files: []admin.File{{Variable: "TENDER_TLS_CLIENT_CA"}}, LoadedAt: now.Add(-time.Hour), NotAfter: now.Add(167*time.Hour + time.Minute)},
		},
		Refusals: []admin.Refusal{
			{Kind: "handshake", Reason: "closed", Count: 99, At: now.Add(-time.Second), Peer: "10.0.0.9", Error: "EOF"},
			{Kind: "handshake", Reason: "unknown_ca", Count: 8001, At: now.Add(-9 * time.Minute), Peer: "10.0.0.1", Error: "tls: bad\x1b[31m certificate"},
			{Kind: "accept", Reason: "file_descriptors", Count: 3, At: now.Add(-9 * time.Minute), Error: "accept4: too many open files"},
			{Kind: "request", Reason: "not_utf8", Count: 4, At: now.Add(-11 * time.Minute), Peer: "10.0.0.2", Error: "long ago"},
		},
	}
}

// TestStatus verifies that tender status connects to the address of --admin, or else of adminVariable, and prints the
// response as JSON. The exit code is 1, because the relay is not ready.
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
			code, stdout, stderr := execute(args...)
			var got admin.Status
			err := json.Unmarshal([]byte(stdout), &got)
			if diff := cmp.Diff(want.Views[0].Types, got.Views[0].Types); code != exitFailure || err != nil || diff != "" {
				t.Errorf("tender %q: code %d, error %v, stderr %s, types (-want +got):\n%s", args, code, err, stderr, diff)
			}
		}
	}
}

// statusLines runs tender status, and returns the lines of its output.
func statusLines(t *testing.T, args ...string) []string {
	t.Helper()
	code, stdout, stderr := execute(append([]string{"status"}, args...)...)
	want := exitOK
	if strings.Contains(stdout, "NOT READY") {
		want = exitFailure
	}
	if code != want || stdout == "" {
		t.Fatalf("tender status %q: code %d, want %d, %s", args, code, want, stderr)
	}
	return strings.Split(stdout, "\n")
}

func TestStatusForPeople(t *testing.T) {
	address := serveAdmin(t, "unix", someStatus(time.Now()))
	got := statusLines(t, "--admin", address)
	want := []string{
		`tender v1, up 3m20s, 0 streams, NOT READY`,
		`    it rains`,
		`    it\u001b[31m snows`,
		`    started with the state of 10.0.0.7:18443 (tender/b), which is 1h0m old`,
		``,
		`ORIGIN   TARGET  STATE       SINCE`,
		`default  a:1     standby     -`,
		`default  b:1     connecting  1m30s`,
		`    last error, 2m0s ago: connection refused`,
		`    a:1 is NOT USED for 1h0m: refused`,
		`    10.0.0.3:1 of b:1 is NOT USED for 1m0s: no\u001b[31mserver`,
		``,
		`FILES OF           READ  EXPIRES IN  STATE`,
		`TLS_CERT, TLS_KEY  1h0m  0s          EXPIRED 1m30s ago; the files on disk are not in use: no key`,
		`TLS_CLIENT_CA      1h0m  6d23h       EXPIRES in 6d23h`,
		``,
		`GROUP  ORIGIN   TYPE                     ENTRIES  SIZE    CHANGED  STATE`,
		`g      default  type.googleapis.com/x.Y  3        1000 B  2d2h     STALE for 1h2m`,
		`h      default  -                        -        -       -        not connected`,
		``,
		`REFUSED BY THE RELAY  REASON            TIMES  LAST  PEER`,
		`handshake             unknown_ca        8001   9m0s  10.0.0.1`,
		`    tls: bad\u001b[31m certificate`,
		`accept                file_descriptors  3      9m0s  -`,
		`    accept4: too many open files`,
		``,
		`2 of 10000 clients: 1 rejecting, 0 stalled, 2 lagging, at most 1h7m`,
		``,
		`REJECTED BY  NODE                        TYPE  AGO   CODE`,
		`#17          a-node-with-a…an-one-likes  cds   1m0s  INVALID_ARGUMENT`,
		`    no such filter\u001b[31m: no such filter\u001b[31m: no such`,
		`    filter\u001b[31m: no such filter\u001b[31m: no such filter\u001b[31m: no`,
		`    such filter\u001b[31m: no such filter\u001b[31m: no such filter\u001b[31m:`,
		`    … and 36 words more: -o wide`,
		`#17          a-node-with-a…an-one-likes  sds   0s    INTERNAL`,
		`    no error detail`,
		``,
		`LAGGING  NODE                        TYPE  FOR   STATE`,
		`#17      a-node-with-a…an-one-likes  cds   1h7m  REJECTED`,
		`#18      slow                        eds   3s    sent, not acknowledged`,
		``,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tender status (-want +got):\n%s", diff)
	}
	wide := strings.Join(statusLines(t, "--admin", address, "-o", "wide"), "\n")
	for _, want := range []string{"closed", "long ago", "AUTHZ              1h0m  -           in force", "ORIGIN_TLS_CA      1h0m  7d1h        in force", "a-node-with-a-name-that-is-longer-than-one-likes", "7~x", "GROUP  TYPE  CLIENTS", "  8  ", strings.Repeat(`no such filter\u001b[31m: `, 19)} {
		if !strings.Contains(wide, want) {
			t.Errorf("tender status -o wide does not print %q:\n%s", want, wide)
		}
	}
	if got := strings.Join(statusLines(t, "--admin", address, "--type", "cds"), "\n"); strings.Contains(got, "x.Y") {
		t.Errorf("tender status --type cds prints another type:\n%s", got)
	}
}

// TestStatusOfManyGroups verifies that groups by metadata are shown by their names, and different ones differently.
func TestStatusOfManyGroups(t *testing.T) {
	s := admin.Status{Relay: admin.Relay{Ready: true}}
	for _, shop := range []string{"cart", "till"} {
		s.Views = append(s.Views, admin.View{Group: `user_agent_name=envoy,metadata.NAMESPACE="` + shop + `",locality.region=eu,locality.zone=eu-1`, Origin: "default", Connected: true})
	}
	lines := strings.Join(statusLines(t, "--admin", serveAdmin(t, "unix", s)), "\n")
	for _, want := range []string{"NAMESPACE=cart,local", "envoy,NAMESPACE=till,local"} {
		if !strings.Contains(lines, want) {
			t.Errorf("tender status does not print %q:\n%s", want, lines)
		}
	}
}

// TestStatusWatch verifies that repeat prints the status every 2 seconds, and clears a terminal before it.
// It ends with the context, or after an error of the first call.
func TestStatusWatch(t *testing.T) {
	for _, tt := range []struct {
		terminal bool
		errors   []error
		want     string
		wantErr  string
	}{
		{false, []error{nil, nil}, "a\n\na\n\n", ""},
		{true, []error{nil, nil}, "\x1b[H\x1b[2Ja\n\x1b[H\x1b[2Ja\n", ""},
		{false, []error{nil, errors.New("gone"), nil}, "a\n\n02:00:02  gone\n\na\n\n", ""},
		{false, []error{errors.New("gone")}, "", "gone"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(len(tt.errors))*watchEvery-time.Second)
			defer cancel()
			var out strings.Builder
			shown := 0
			err := repeat(ctx, &out, tt.terminal, func(w io.Writer) error {
				err := tt.errors[shown]
				if shown++; err == nil {
					_, _ = io.WriteString(w, "a\n")
				}
				return err
			})
			got := strings.ReplaceAll(out.String(), time.Now().Add(-time.Second-watchEvery).Format(time.TimeOnly), "02:00:02")
			if got != tt.want || (err == nil) != (tt.wantErr == "") || err != nil && err.Error() != tt.wantErr {
				t.Errorf("repeat printed %q, error %v, want %+v", got, err, tt)
			}
		})
	}
}

func TestStatusErrors(t *testing.T) {
	page := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = page.Serve(l) }() // Close ends it
	t.Cleanup(func() { _ = page.Close() })
	for _, tt := range []struct {
		variable string
		args     []string
		code     int
		want     string
	}{
		{"unix:/nowhere/admin", nil, exitFailure, "request to the relay: dial unix /nowhere/admin: connect: no such file or directory; set --admin or TENDER_ADMIN_LISTEN to its admin address"},
		{"off", nil, exitUsage, "TENDER_ADMIN_LISTEN is off: set --admin to the admin address of the relay"},
		{":1", nil, exitFailure, `TENDER_ADMIN_LISTEN=":1": `},
		{"off", []string{"--admin=here"}, exitUsage, "--admin=here: want host:port or unix:path"},
		{"off", []string{"-o", "xml", "--admin=127.0.0.1:1"}, exitUsage, "--output=xml: want table, wide, yaml or json"},
		{l.Addr().String(), nil, exitFailure, l.Addr().String() + " is not the admin address of a relay"},
	} {
		t.Setenv(adminVariable, tt.variable)
		code, stdout, stderr := execute(append([]string{"status"}, tt.args...)...)
		if code != tt.code || !strings.HasPrefix(stderr, "tender: "+tt.want) || stdout != "" {
			t.Errorf("%s=%s tender status %q: code %d, stderr %q, want %d, %q", adminVariable, tt.variable, tt.args, code, stderr, tt.code, tt.want)
		}
	}
}

// TestAdminCommand verifies that a command returns the response of the relay, or its refusal as an error.
func TestAdminCommand(t *testing.T) {
	c, err := newAdminClient(serveAdmin(t, "unix", admin.Status{}), nil, thisHost().dial)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Text string }
	if err := c.command(t.Context(), "greet", map[string]string{"Name": "a"}, &answer); err != nil || answer.Text != "hello a" {
		t.Errorf("greet a: %+v, error %v, want hello a", answer, err)
	}
	if err := c.command(t.Context(), "greet", struct{}{}, &answer); err == nil || !strings.HasSuffix(err.Error(), ": nobody is there") {
		t.Errorf("greet without a name: error %v, want the refusal", err)
	}
}

// TestStatusYAML verifies that the YAML of tender status has the same content as its JSON.
func TestStatusYAML(t *testing.T) {
	address := serveAdmin(t, "tcp", someStatus(time.Now()))
	code, text, stderr := execute("status", "-o", "yaml", "--admin", address)
	var as, got map[string]any
	err := yaml.Unmarshal([]byte(text), &got)
	_, text, _ = execute("status", "-o", "json", "--admin", address)
	checkOutput(t, "status", text)
	err = errors.Join(err, json.Unmarshal([]byte(text), &as))
	if diff := cmp.Diff(as["views"], got["views"]); code != exitFailure || err != nil || as["views"] == nil || diff != "" {
		t.Errorf("tender status -o yaml: code %d, error %v, stderr %s, views (-JSON +YAML):\n%s", code, err, stderr, diff)
	}
}
