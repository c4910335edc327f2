package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAccessOfEachOrigin checks that the variables of an origin apply to this origin only.
func TestAccessOfEachOrigin(t *testing.T) {
	cfg, err := Load([]string{
		"TENDER_ORIGIN=a:1", "TENDER_ORIGIN_TLS_CA=/a/ca.pem", "TENDER_ORIGIN_TLS_SERVER_NAME=spiffe://example.org/a",
		"TENDER_ORIGINS=tls=b:1;east-1=c:1;east=d:1", "TENDER_ROUTES=type:cds=tls;type:eds=east-1;type:lds=east",
		"TENDER_ORIGIN_TLS_TLS_CA=/b/ca.pem", "TENDER_ORIGIN_TLS_TLS=on",
		"TENDER_ORIGIN_EAST_1_TOKEN_FILE=/c/token",
		"TENDER_ORIGIN_EAST_TLS=insecure", "TENDER_ORIGIN_EAST_HEADERS=X-Tenant=blue=1; x-other=2",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := []Access{cfg.OriginAccess, cfg.Origins[0].Access, cfg.Origins[1].Access, cfg.Origins[2].Access}
	want := []Access{
		{TLS: TLSOn, TLSCA: "/a/ca.pem", TLSServerName: "spiffe://example.org/a"},
		{TLS: TLSOn, TLSCA: "/b/ca.pem"},
		{TLS: TLSOn, TokenFile: "/c/token"},
		{TLS: TLSInsecure, Headers: Headers{"x-tenant": "blue=1", "x-other": "2"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Access of the origins (-want +got):\n%s", diff)
	}
	table := cfg.Table()
	for _, want := range []Setting{
		{"TENDER_ORIGIN_TLS", "on", "default", ""},
		{"TENDER_ORIGIN_TLS_TLS_CA", "/b/ca.pem", "environment", ""},
		{"TENDER_ORIGIN_EAST_1_TLS", "on", "default", ""},
		{"TENDER_ORIGIN_EAST_HEADERS", "x-other=…;x-tenant=…", "environment", ""},
	} {
		i := slices.IndexFunc(table, func(s Setting) bool { return s.Variable == want.Variable })
		if i < 0 {
			t.Errorf("the table has no %s", want.Variable)
			continue
		}
		if want.Meaning = table[i].Meaning; table[i] != want {
			t.Errorf("the table has %+v, want %+v", table[i], want)
		}
	}
}

// TestAccessConflicts checks that conflicting settings are rejected, and that the error names the variable.
func TestAccessConflicts(t *testing.T) {
	west := []string{"TENDER_ORIGINS=west=b:1", "TENDER_ROUTES=type:cds=west"}
	tests := []struct {
		name    string
		environ []string
		want    string // prefix of the error; empty for none
	}{
		{"off, and a file", []string{"TENDER_ORIGIN_TLS=off", "TENDER_ORIGIN_TOKEN_FILE=/t"},
			`TENDER_ORIGIN_TLS="off": TLS is required by TENDER_ORIGIN_TOKEN_FILE; allowed: `},
		{"off, and a name", []string{"TENDER_ORIGIN_TLS=off", "TENDER_ORIGIN_TLS_SERVER_NAME=a"},
			`TENDER_ORIGIN_TLS_SERVER_NAME="a": requires TLS, but TENDER_ORIGIN_TLS is off; allowed: `},
		{"off, and headers", []string{"TENDER_ORIGIN_TLS=off", "TENDER_ORIGIN_HEADERS=a=b"}, ""},
		{"insecure, and a CA", []string{"TENDER_ORIGIN_TLS=insecure", "TENDER_ORIGIN_TLS_CA=/c"},
			`TENDER_ORIGIN_TLS_CA="/c": has no effect, because TENDER_ORIGIN_TLS is insecure; allowed: `},
		{"insecure, and a token", []string{"TENDER_ORIGIN_TLS=insecure", "TENDER_ORIGIN_TOKEN_FILE=/t"},
			`TENDER_ORIGIN_TOKEN_FILE="/t": the token would be sent to an unverified server, because TENDER_ORIGIN_TLS is ` +
				`insecure; allowed: `},
		{"insecure, and a certificate", []string{"TENDER_ORIGIN_TLS=insecure", "TENDER_ORIGIN_TLS_CERT=/c",
			"TENDER_ORIGIN_TLS_KEY=/k"}, ""},
		{"a SPIFFE ID by the system's CAs", []string{"TENDER_ORIGIN_TLS=on", "TENDER_ORIGIN_TLS_SERVER_NAME=spiffe://a/b"},
			`TENDER_ORIGIN_TLS_SERVER_NAME="spiffe://a/b": requires TENDER_ORIGIN_TLS_CA, because the CAs of the system issue ` +
				`no SPIFFE ID; allowed: `},
		{"two authorizations", []string{"TENDER_ORIGIN_TOKEN_FILE=/t", "TENDER_ORIGIN_HEADERS=Authorization=canary"},
			`TENDER_ORIGIN_HEADERS=…: the header authorization conflicts with the token of TENDER_ORIGIN_TOKEN_FILE; allowed: `},
		{"a directory", []string{"TENDER_ORIGIN=file:///a", "TENDER_ORIGIN_TLS_CA=/c"},
			`TENDER_ORIGIN_TLS_CA="/c": the origin is a directory, to which the relay opens no connection; allowed: `},
		{"a further origin's", append(west, "TENDER_ORIGIN_WEST_TLS_KEY=/k"),
			`TENDER_ORIGIN_WEST_TLS_KEY="/k": requires TENDER_ORIGIN_WEST_TLS_CERT; allowed: `},
		{"a further origin's bad value", append(west, "TENDER_ORIGIN_WEST_TLS=1"),
			`TENDER_ORIGIN_WEST_TLS="1": not an allowed value; allowed: `},
		{"a further origin that was refused", []string{"TENDER_ORIGINS=west", "TENDER_ORIGIN_WEST_TLS=on"},
			`TENDER_ORIGINS="west": `},
		{"a key that was refused, and its certificate", []string{"TENDER_ORIGIN_TLS_CERT=/c", "TENDER_ORIGIN_TLS_KEY=\x01"},
			`TENDER_ORIGIN_TLS_KEY="\x01": `},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(tt.environ)
			if (err == nil) != (tt.want == "") ||
				err != nil && (!strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") ||
					strings.Contains(err.Error(), "canary")) {
				t.Errorf("LoadConfig: %v, want one error %s", err, tt.want)
			}
		})
	}
}
