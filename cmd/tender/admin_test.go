package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/logs"
)

// operators is a file for TENDER_AUTHZ: ops may read and act, eyes may only read.
const operators = `
version: 1
rules:
- name: fleet
  identities: ["spiffe://example.org/ns/shop/**"]
operators:
  read: ["spiffe://example.org/ns/ops/**", "spiffe://example.org/ns/eyes/**"]
  act: ["spiffe://example.org/ns/ops/**"]
`

// An operated is a relay with mTLS on its admin address, as for operators on other hosts.
type operated struct {
	t     *testing.T
	dir   string // for files of the relay
	ca    string // PEM file of signs
	addr  string // admin address
	signs *certs.CA
	log   *logs.Log
}

// newOperated starts a relay with a file origin.
func newOperated(t *testing.T) *operated {
	t.Helper()
	o := &operated{t: t, dir: t.TempDir(), signs: certs.NewCA(t)}
	o.ca = certs.WriteFile(t, o.dir, "ca.pem", o.signs.PEM)
	cert, key := o.signs.Sign(certs.Leaf{Names: []string{"127.0.0.1", "::1", "tender.example"}}).Write(t, o.dir)
	r := instance.Start(t, instance.Options{Env: []string{
		"TENDER_ORIGIN=file://" + t.TempDir(), "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=0.0.0.0:0",
		"TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key, "TENDER_TLS_CLIENT_CA=" + o.ca,
		"TENDER_AUTHZ=" + certs.WriteFile(t, o.dir, "authz.yaml", []byte(operators)),
	}})
	r.AwaitReady() // it must read its directory first
	o.log = &r.Log
	o.addr = fmt.Sprint("127.0.0.1:", r.AdminAddrs()[0].(*net.TCPAddr).Port)
	return o
}

// certificate returns the TLS flags of an operator with a certificate for a SPIFFE ID.
func (o *operated) certificate(id string) []string {
	o.t.Helper()
	cert, key := o.signs.Sign(certs.Leaf{URI: id}).Write(o.t, o.t.TempDir())
	return []string{"--tls-ca", o.ca, "--cert", cert, "--key", key}
}

// TestAdminTLS verifies which certificates a relay accepts on an admin address that is not on loopback.
func TestAdminTLS(t *testing.T) {
	o := newOperated(t)
	eve := o.certificate("spiffe://example.org/ns/ops/sa/eve")
	for _, tt := range []struct {
		name  string
		flags []string
		want  string // part of the output
		code  int
	}{
		{"operator", eve, "ready", 0},
		{"operator, with a server name", append([]string{"--server-name", "tender.example"}, eve...), "ready", 0},
		{"xDS client", o.certificate("spiffe://example.org/ns/shop/sa/cart"), `"spiffe://example.org/ns/shop/sa/cart" is not one of the operators`, exitFailure},
		{"no certificate", []string{"--tls-ca", o.ca}, "certificate required", exitFailure},
		{"plaintext", nil, "HTTP request to an HTTPS server", exitFailure},
		{"other server name", append([]string{"--server-name", "other.example"}, eve...), "not other.example", exitFailure},
		{"certificate without a key", []string{"--cert", "c"}, "--cert and --key: want both or neither", exitUsage},
	} {
		code, stdout, stderr := execute(append([]string{"status", "--admin", o.addr}, tt.flags...)...)
		if code != tt.code || !strings.Contains(stdout+stderr, tt.want) {
			t.Errorf("%s: tender status: code %d, %s%s, want %d and %q", tt.name, code, stdout, stderr, tt.code, tt.want)
		}
	}
	if code, _, stderr := execute(append([]string{"freeze", "--admin", o.addr}, eve...)...); code != 0 {
		t.Errorf("operator: tender freeze: code %d, %s, want 0", code, stderr)
	}
}

// TestActionsAreRecorded verifies that each command creates an audit record with its operator, address, reason and
// result: in the history, in the log and as an event. This includes a command that is refused for lack of permission.
func TestActionsAreRecorded(t *testing.T) {
	records := collectEvents(t)
	o := newOperated(t)
	eve, reader := o.certificate("spiffe://example.org/ns/ops/sa/eve"), o.certificate("spiffe://example.org/ns/eyes/sa/rita")
	for _, tt := range []struct {
		args []string
		code int
	}{
		{append([]string{"freeze", "--admin", o.addr, "--reason", "bad routes"}, eve...), exitOK},
		{append([]string{"thaw", "--admin", o.addr, "--reason", "for fun"}, reader...), exitFailure},
		{append([]string{"pass", "--admin", o.addr, "--origin", "none", "--reason", "a typo"}, eve...), exitFailure},
		{append([]string{"status", "--admin", o.addr}, reader...), exitOK},
	} {
		if code, _, stderr := execute(tt.args...); code != tt.code {
			t.Errorf("tender %q: code %d, %s, want %d", tt.args, code, stderr, tt.code)
		}
	}
	var found admin.Actions
	code, stdout, stderr := execute(append([]string{"history", "--admin", o.addr, "-o", "json"}, reader...)...)
	if err := json.Unmarshal([]byte(stdout), &found); err != nil || code != exitOK || len(found.Actions) != 3 {
		t.Fatalf("tender history -o json: %v, code %d, %s%s, want 3 actions", err, code, stdout, stderr)
	}
	for i, want := range []admin.Action{
		{Command: "pass", Operator: "spiffe://example.org/ns/ops/sa/eve", Reason: "a typo", Code: http.StatusNotFound},
		{Command: "thaw", Operator: "spiffe://example.org/ns/eyes/sa/rita", Code: http.StatusForbidden},
		{Command: "freeze", Operator: "spiffe://example.org/ns/ops/sa/eve", Reason: "bad routes", Code: http.StatusOK},
	} {
		got := found.Actions[i]
		if got.Command != want.Command || got.Operator != want.Operator || got.Reason != want.Reason || got.Code != want.Code || got.At.IsZero() ||
			!strings.HasPrefix(got.From, "127.0.0.1:") || (got.Error == "") != (got.Code == http.StatusOK) {
			t.Errorf("action %d: %+v, want %+v", i, got, want)
		}
		if !slices.ContainsFunc(strings.Split(o.log.String(), "\n"), func(line string) bool {
			return strings.Contains(line, "operator action") && strings.Contains(line, want.Operator) && strings.Contains(line, want.Command)
		}) {
			t.Errorf("the log has no record of %+v", want)
		}
	}
	for i, event := range awaitEvents(t, records, len(found.Actions)) {
		checkEvent(t, event, found.Actions[len(found.Actions)-1-i]) // the newest action comes first in the history
	}
	_, stdout, _ = execute(append([]string{"history", "--admin", o.addr}, reader...)...)
	if !strings.Contains(stdout, "bad routes") || !strings.Contains(stdout, "is not one of the operators that may act") {
		t.Errorf("tender history prints %s, want the reason and the refusal", stdout)
	}
}

// TestAdminTLSHost verifies that requests over TLS need a Host header with a name in the certificate, localhost, or an
// IP address.
func TestAdminTLSHost(t *testing.T) {
	o := newOperated(t)
	flags := o.certificate("spiffe://example.org/ns/ops/sa/eve")
	config, err := (&cli.TLSFlags{CA: flags[1], Cert: flags[3], Key: flags[5]}).Config()
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{
		"tender.example": 200, "tender.example:1": 200, "10.1.2.3:18080": 200, "localhost": 200,
		"attacker.example": 421, "tender.example.attacker.example": 421, "": 421,
	} {
		conn, err := tls.Dial("tcp", o.addr, config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "GET /api/v1/status HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want {
			t.Errorf("Host %q: %s, want %d", host, resp.Status, want)
		}
		_, _ = resp.Body.Close(), conn.Close()
	}
}

// TestWrongPort verifies the errors of a command that connects to the wrong one of the xDS port and the admin address.
func TestWrongPort(t *testing.T) {
	xds, operators := serveGRPC(t, listenTCP(t), deltaSays()), serveAdmin(t, "tcp", someStatus(time.Now()))
	must(t, exitFailure, []string{"wrong port: " + xds + " is the xDS port"}, "status", "--admin", xds)
	must(t, exitFailure, []string{"(wrong port: this is an admin address"}, "get", "-a", operators, "cds")
}

// TestAdminAddress verifies which errors of the configuration stop operator commands: those of TENDER_ADMIN_LISTEN, which
// may depend on other variables, and no others.
func TestAdminAddress(t *testing.T) {
	for _, tt := range []struct {
		environ       []string
		address, want string // of the address and of the error
	}{
		{[]string{"TENDER_ADMIN_LISTEN=127.0.0.1:18000", "TENDER_LISTEN=:19000"}, "127.0.0.1:18000", ""},
		{[]string{"TENDER_ADMIN_LISTEN=127.0.0.1:18000"}, "", `TENDER_ADMIN_LISTEN="127.0.0.1:18000": "127.0.0.1:18000" overlaps with`},
		{[]string{"TENDER_ADMIN_LISTEN=127.0.0.1:1", "TENDER_LISTEN=x", "TENDER_DRAIN=x", "TENDER_X=1"}, "127.0.0.1:1", ""},
		{[]string{"TENDER_ADMIN_LISTEN=:1", "TENDER_TLS_CERT=c", "TENDER_TLS_KEY=k", "TENDER_TLS_CLIENT_CA=a", "TENDER_AUTHZ=a"}, ":1", ""},
		{[]string{"TENDER_ADMIN_LISTEN=:1", "TENDER_TLS_CERT=c", "TENDER_TLS_KEY=k", "TENDER_TLS_CLIENT_CA=a"}, "",
			`TENDER_ADMIN_LISTEN=":1": requires TENDER_AUTHZ`},
	} {
		got, err := adminAddress(tt.environ)
		if got != tt.address || (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("adminAddress(%q) = %q, %v, want %q, %s", tt.environ, got, err, tt.address, tt.want)
		}
	}
}
