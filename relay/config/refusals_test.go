package config

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/certs"
)

// TestAllErrorsAtOnce checks that one start shows all errors, so that an operator need not repair one to see the next, and
// that there is no error that depends on a value with an error of its own.
func TestAllErrorsAtOnce(t *testing.T) {
	west := "TENDER_ORIGINS=west=b:1|TENDER_ROUTES=type:cds=west|"
	tests := []struct{ environ, want string }{ // entries, and prefixes of lines, separated by |
		// Of several variables.
		{"TENDER_ADMIN_LISTEN=:1|TENDER_AUTHZ=a",
			`TENDER_AUTHZ="a": requires TENDER_TLS_CLIENT_CA, TENDER_TLS_CERT and TENDER_TLS_KEY, because|` +
				`TENDER_ADMIN_LISTEN=":1": requires TENDER_TLS_CLIENT_CA, TENDER_TLS_CERT and TENDER_TLS_KEY, because`},
		{"TENDER_ADMIN_LISTEN=:1|TENDER_TLS_CLIENT_CA=a|TENDER_TLS_KEY=k",
			`TENDER_TLS_KEY="k": requires TENDER_TLS_CERT;|TENDER_TLS_CLIENT_CA="a": requires TENDER_TLS_CERT;|` +
				`TENDER_ADMIN_LISTEN=":1": requires TENDER_AUTHZ, because`},
		{"TENDER_PEERS=a:1|TENDER_PEERS_TLS_SERVER_NAME=spiffe://a/b",
			`TENDER_PEERS="a:1": requires TENDER_PEERS_TLS_CERT and TENDER_PEERS_TLS_KEY;|` +
				`TENDER_PEERS_TLS_SERVER_NAME="spiffe://a/b": requires TENDER_PEERS_TLS_CA, because`},
		{"TENDER_PEERS_TLS_SERVER_NAME=spiffe://a/b",
			`TENDER_PEERS_TLS_SERVER_NAME="spiffe://a/b": requires TENDER_PEERS, TENDER_PEERS_TLS_CERT and ` +
				`TENDER_PEERS_TLS_KEY; requires TENDER_PEERS_TLS_CA, because`},
		{"TENDER_ORIGIN_TLS=maybe|TENDER_ORIGIN_TLS_CERT=c|TENDER_ORIGIN_TOKEN_FILE=t|TENDER_ORIGIN_HEADERS=authorization=x",
			`TENDER_ORIGIN_TLS="maybe": not|TENDER_ORIGIN_TLS_CERT="c": requires TENDER_ORIGIN_TLS_KEY;|` +
				`TENDER_ORIGIN_HEADERS=…: the header authorization`},
		{west + "TENDER_ORIGIN_WEST_TLS=insecure|TENDER_ORIGIN_WEST_TLS_CA=c|TENDER_ORIGIN_WEST_TLS_KEY=k|" +
			"TENDER_ORIGIN_WEST_TLS_SERVER_NAME=spiffe://a/b",
			`TENDER_ORIGIN_WEST_TLS_CA="c": has no effect|TENDER_ORIGIN_WEST_TLS_KEY="k": requires ` +
				`TENDER_ORIGIN_WEST_TLS_CERT;|TENDER_ORIGIN_WEST_TLS_SERVER_NAME="spiffe://a/b": a SPIFFE ID has no effect`},
		{"TENDER_ORIGIN=file:///a|TENDER_ORIGIN_TLS_KEY=k|TENDER_ORIGIN_HEADERS=a=b",
			`TENDER_ORIGIN_TLS_KEY="k": the origin is a directory, to which the relay opens no connection;|` +
				`TENDER_ORIGIN_HEADERS=…: the origin is a directory`},
		// Of one variable.
		{"TENDER_ORIGIN_TLS=off|TENDER_ORIGIN_TLS_CA=c|TENDER_ORIGIN_TOKEN_FILE=t",
			`TENDER_ORIGIN_TLS="off": TLS is required by TENDER_ORIGIN_TLS_CA and TENDER_ORIGIN_TOKEN_FILE;`},
		{"TENDER_LISTEN=bad,worse:0x1,,a b:x", `TENDER_LISTEN="bad,worse:0x1,,a b:x": "bad" is not host:port; the port "0x1" ` +
			`is not a number from 0 to 65535; empty list item; the host "a b" is neither a name nor an IP address; the port "x"`},
		{"TENDER_ORIGINS=West=b;default=file:///a,b:1", `TENDER_ORIGINS="West=b;default=file:///a,b:1": "West" is not a valid ` +
			`origin name; origin "West": "b" is not host:port; "default" is reserved for the origin of TENDER_ORIGIN; ` +
			`origin "default": a directory must be the only target;`},
		{"TENDER_ORIGINS=west=b:1|TENDER_ROUTES=type:eds=a;authority:x=b", `TENDER_ROUTES="type:eds=a;authority:x=b": "type:` +
			typeEDS + `" has the origin "a", which is not in TENDER_ORIGINS; "authority:x" has the origin "b", which is not in ` +
			`TENDER_ORIGINS; the origin "west" of TENDER_ORIGINS has no route;`},
		{"TENDER_ROUTES=type:cd=We", `TENDER_ROUTES="type:cd=We": "cd" is neither a short name nor a type URL; "We" is not a`},
		{"TENDER_ORIGIN_HEADERS=te=1;x;y=", `TENDER_ORIGIN_HEADERS=…: the header "te" is reserved for gRPC and HTTP/2; an item ` +
			`does not have the form name=value; the header "y" has no value;`},
		{"TENDER_MIN_PUSH_INTERVAL=cd=1,eds=1ms", `TENDER_MIN_PUSH_INTERVAL="cd=1,eds=1ms": "cd" is neither a short name nor a ` +
			`type URL; "1" is not a duration; "1ms" is too short;`},
		{"TENDER_NODE_ID={cluster}/{id}", `TENDER_NODE_ID="{cluster}/{id}": "{cluster}" is not a field of ` +
			`TENDER_NODE_GROUP_BY; "{id}" is not supported;`},
		// Without what depends on a value that cannot be decoded.
		{"TENDER_LISTEN=bad|TENDER_REST_LISTEN=:18000", `TENDER_LISTEN="bad": `},
		{"TENDER_NODE_GROUP_BY=zone|TENDER_NODE_ID={cluster}", `TENDER_NODE_GROUP_BY="zone": `},
		{"TENDER_ORIGIN=file://a|TENDER_LRS=passthrough", `TENDER_ORIGIN="file://a": `},
		{"TENDER_ORIGIN_TLS=maybe|TENDER_ORIGIN_TLS_SERVER_NAME=a", `TENDER_ORIGIN_TLS="maybe": `},
		{"TENDER_ORIGIN_TLS_CA=\x01|TENDER_ORIGIN_TLS_SERVER_NAME=a", `TENDER_ORIGIN_TLS_CA="\x01": `},
		{"TENDER_PEERS=a|TENDER_PEERS_TLS_CERT=c", `TENDER_PEERS="a": `},
		{"TENDER_TLS_CERT=\x01|TENDER_TLS_LISTEN=:1|TENDER_TLS_CLIENT_CA=a", `TENDER_TLS_CERT="\x01": `},
		{"TENDER_PEERS=off|TENDER_PEERS_TLS_CERT=c|TENDER_PEERS_TLS_SERVER_NAME=spiffe://a/b", ""},
		{"TENDER_ORIGIN=127.0.0.1:1|TENDER_LISTEN=:1,x", `TENDER_LISTEN=":1,x": "x" is not`},
	}
	for _, tt := range tests {
		if _, err := Load(strings.Split(tt.environ, "|")); !hasLines(err, tt.want) {
			t.Errorf("Load(%q):\n%v\nwant\n%s", tt.environ, err, strings.ReplaceAll(tt.want, "|", "\n"))
		}
	}
}

// hasLines reports whether the lines of an error have prefixes, separated by |.
func hasLines(err error, prefixes string) bool {
	if err == nil {
		return prefixes == ""
	}
	return slices.EqualFunc(strings.Split(err.Error(), "\n"), strings.Split(prefixes, "|"), strings.HasPrefix)
}

// TestRequirementsAreComplete sets three variables that may require others. When those that the errors name are set, there
// must be no further error.
func TestRequirementsAreComplete(t *testing.T) {
	values := map[string]string{
		"ADMIN_LISTEN": ":1", "DELTA_VERSIONS": "content", "ORIGIN_TLS_SERVER_NAME": "spiffe://a/b", "PEERS": "a:1",
		"PEERS_TLS_SERVER_NAME": "spiffe://a/b", "ROLLOUT": "5% 1s", "TLS_LISTEN": ":2", "TLS_TRUST_DOMAINS": "a",
	}
	entry := func(name string) string {
		if value := values[name]; value != "" {
			return prefix + name + "=" + value
		}
		return prefix + name + "=file"
	}
	for i, a := range requirements {
		for j, b := range requirements[:i+1] {
			for _, c := range requirements[:j+1] {
				environ := []string{entry(a.variable), entry(b.variable), entry(c.variable)}
				_, err := Load(environ)
				repaired := slices.Clone(environ)
				for _, e := range Errors(err) {
					for _, name := range e.Variables {
						repaired = append(repaired, entry(strings.TrimPrefix(name, prefix)))
					}
				}
				if _, again := Load(repaired); again != nil {
					t.Fatalf("Load(%q): %v\nthen, with what it names: %v", environ, err, again)
				}
			}
		}
	}
}

// TestErrorVariables checks which variables an error is about, and its message for programs.
func TestErrorVariables(t *testing.T) {
	tests := []struct{ entry, variables, message string }{
		{"TENDER_ACK_WAIT=x", "ACK_WAIT", "not a duration; allowed: a duration from 100ms to 10m, such as 90s or 1m30s"},
		{"TENDER_ACK_WAITS=1s", "ACK_WAITS", "unknown variable; did you mean TENDER_ACK_WAIT?"},
		{"TENDER_ORIGIN_A_TLS=on", "ORIGIN_A_TLS ORIGINS", `TENDER_ORIGINS has no origin "a"`},
		{"TENDER_\x01=on", `\x01`, "unknown variable; allowed: the variables that tender check lists"},
		{"TENDER_PROBE_LISTEN=:18000", "PROBE_LISTEN LISTEN", `":18000" is also in the default of TENDER_LISTEN; allowed: `},
		{"TENDER_ROLLOUT=5% 1s", "ROLLOUT SNAPSHOT_DIR DELTA_VERSIONS", "requires TENDER_SNAPSHOT_DIR, because"},
	}
	for _, tt := range tests {
		_, err := Load([]string{tt.entry})
		all := Errors(err)
		if len(all) != 1 {
			t.Fatalf("Load(%q): %d errors, want one: %v", tt.entry, len(all), err)
		}
		want := prefix + strings.ReplaceAll(tt.variables, " ", " "+prefix)
		if got := strings.Join(all[0].Variables, " "); got != want || !strings.HasPrefix(all[0].Message, tt.message) {
			t.Errorf("Load(%q): %s: %s\nwant %s: %s", tt.entry, got, all[0].Message, want, tt.message)
		}
	}
}

// TestSources checks the rows of variables with errors. A variable that does not exist has one too.
func TestSources(t *testing.T) {
	long := "TENDER_" + strings.Repeat("A", 300)
	cfg, err := Load([]string{
		"TENDER_ACK_WAIT=\x01", "TENDER_ORIGINS=west=b:1", "TENDER_ORIGIN_HEADERS=hunter2", "TENDER_ACK_WAITS=hunter2", long + "=1",
		"TENDER_ROLLOUT=5% 1s", "TENDER_TLS_KEY=k",
	})
	if err == nil || len(err.Error()) > 2000 {
		t.Errorf("Load: %v, want an error that truncates the long name", err)
	}
	for _, want := range []Setting{
		{Variable: "TENDER_ORIGIN", Source: SourceMissing, Value: "required by tender serve"},
		{Variable: "TENDER_ORIGINS", Source: SourceEnvironment, Value: "west=b:1"},
		{Variable: "TENDER_ROUTES", Source: SourceMissing},
		{Variable: "TENDER_ORIGIN_HEADERS", Source: SourceRefused, Value: "…"},
		{Variable: "TENDER_ACK_WAIT", Source: SourceRefused, Value: `\x01`},
		{Variable: "TENDER_SEND_TIMEOUT", Source: SourceDefault, Value: "1m"},
		{Variable: "TENDER_TLS_CERT", Source: SourceMissing, Value: "empty: plaintext"},
		{Variable: "TENDER_TLS_KEY", Source: SourceRefused, Value: "k"},
		{Variable: "TENDER_SNAPSHOT_DIR", Source: SourceMissing, Value: "off"},
		{Variable: "TENDER_DELTA_VERSIONS", Source: SourceDefault, Value: "origin"},
		{Variable: "TENDER_ACK_WAITS", Source: SourceUnknown, Value: "…"},
		{Variable: long, Source: SourceUnknown, Value: "…"},
	} {
		found := slices.ContainsFunc(cfg.Table(), func(s Setting) bool {
			return s.Variable == want.Variable && s.Source == want.Source && s.Value == want.Value && s.Meaning != ""
		})
		if !found {
			t.Errorf("the table has no row %+v", want)
		}
	}
}

// TestB52_OpenEnvoy: the error for an unusable local Envoy has the variable and the value. Without the variable, there is none.
func TestB52_OpenEnvoy(t *testing.T) {
	for path, want := range map[Path]string{"": "", "/missing/envoy": `TENDER_CHECK_ENVOY="/missing/envoy": no such file or directory`} {
		p, err := (&Config{CheckEnvoy: path}).OpenEnvoy(slog.New(slog.DiscardHandler))
		if p != nil || (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, %v, want the error %q", path, p, err, want)
		}
	}
}

// TestCheckFiles checks that the files of variables are read even if these lack others, and that a file that is not set is
// no error of its own.
func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	missing, file := filepath.Join(dir, "missing"), filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ca := certs.WriteFile(t, dir, "ca.pem", certs.NewCA(t).PEM)
	none := func(names ...string) (lines string) {
		for _, name := range names {
			lines += fmt.Sprintf("|%s=%q: no such file or directory", name, missing)
		}
		return strings.TrimPrefix(lines, "|")
	}
	tests := []struct{ environ, want string }{ // entries, and prefixes of lines, separated by |
		{"TENDER_TLS_CERT=M", none("TENDER_TLS_CERT")},
		{"TENDER_TLS_KEY=M", none("TENDER_TLS_KEY")},
		{"TENDER_TLS_CERT=M|TENDER_TLS_KEY=M", none("TENDER_TLS_CERT", "TENDER_TLS_KEY")},
		{"TENDER_TLS_CLIENT_CA=M|TENDER_AUTHZ=M", none("TENDER_TLS_CLIENT_CA", "TENDER_AUTHZ")},
		{"TENDER_TLS_TRUST_DOMAINS=a=M", none("TENDER_TLS_TRUST_DOMAINS=a")},
		{"TENDER_PEERS_TLS_CA=M|TENDER_PEERS_TLS_KEY=M", none("TENDER_PEERS_TLS_CA", "TENDER_PEERS_TLS_KEY")},
		{"TENDER_PEERS=off|TENDER_PEERS_TLS_CA=M", ""},
		{"TENDER_ORIGIN_TLS=maybe|TENDER_ORIGIN_TLS_CERT=M", none("TENDER_ORIGIN_TLS_CERT")},
		{"TENDER_ORIGIN_TLS=off|TENDER_ORIGIN_TLS_CA=M", none("TENDER_ORIGIN_TLS_CA")},
		{"TENDER_ORIGIN_TLS=insecure|TENDER_ORIGIN_TLS_CA=M", ""}, // it has to be unset
		{"TENDER_ORIGIN_TLS_KEY=CA", `TENDER_ORIGIN_TLS_KEY="CA": it has no private key`},
		{"TENDER_ORIGIN=file://M", `TENDER_ORIGIN="file://M": open file origin: stat M: no such file or directory`},
		{"TENDER_ORIGIN=file://F", `TENDER_ORIGIN="file://F": open file origin: F is not a directory`},
		{"TENDER_ORIGINS=west=file://M|TENDER_ROUTES=type:cds=west", `TENDER_ORIGINS="file://M": open file origin: stat M`},
	}
	for _, tt := range tests {
		names := strings.NewReplacer("=M", "="+missing, "/M", "/"+missing, " M", " "+missing, `"CA"`, `"`+ca+`"`, "=CA", "="+ca,
			"/F", "/"+file, " F", " "+file)
		fill := func(text string) string {
			return strings.ReplaceAll(names.Replace(text), "file:///"+dir, "file://"+dir)
		}
		environ := strings.Split(fill(tt.environ), "|")
		cfg, _ := Load(environ)
		if _, err := cfg.CheckFiles(); !hasLines(err, fill(tt.want)) {
			t.Errorf("CheckFiles of %q: %v\nwant %s", environ, err, fill(tt.want))
		} else {
			for _, e := range Errors(err) {
				if len(e.Variables) != 1 || !strings.HasPrefix(e.Error(), e.Variables[0]+"=") {
					t.Errorf("CheckFiles of %q: the error %v has the variables %q", environ, e, e.Variables)
				}
			}
		}
	}
}
