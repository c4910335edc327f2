package config

import (
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the table of variables into deploy/docs/configuration.md")

const (
	typeCDS = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	typeEDS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

// goodValues has at least one valid value for every variable, and its text in the table of tender check if that
// differs.
var goodValues = []struct{ name, value, shown string }{
	{"ORIGIN", "control-plane.mesh:18000", ""},
	{"ORIGIN", " a:1 , [::1]:2 ,dns:///b:3,unix:///run/c.sock,unix:/run/d",
		"a:1,[::1]:2,dns:///b:3,unix:///run/c.sock,unix:/run/d"},
	{"ORIGIN", "file:///etc/tender", ""},
	{"ORIGINS", "west=b:1;w-2=c:1", ""},
	{"ORIGINS", " west = b:1 , c:2 ; w-2=file:///etc/tender ", "west=b:1,c:2;w-2=file:///etc/tender"},
	{"ROUTES", "type:cds=default; authority:*=default", "type:" + typeCDS + "=default;authority:*=default"},
	{"ROUTES", "type:example.com/a.b.C=default;authority:a=b%2Fc:1=default", ""},
	{"ORIGIN_PROTOCOL", "SotW", "sotw"},
	{"TRANSPORT", "ADS", "ads"},
	{"ORIGIN_TLS", "On", "on"},
	{"ORIGIN_TLS", "insecure", ""},
	{"ORIGIN_TLS_CA", "/etc/tender//ca.pem", "/etc/tender/ca.pem"},
	{"ORIGIN_TLS_CERT", "tls.crt", ""},
	{"ORIGIN_TLS_KEY", "tls.key", ""},
	{"ORIGIN_TLS_SERVER_NAME", "control-plane.mesh", ""},
	{"ORIGIN_TLS_SERVER_NAME", "::1", ""},
	{"ORIGIN_TOKEN_FILE", "/run/token", ""},
	{"ORIGIN_HEADERS", "X-Tenant=blue; authorization=Basic YTpi=", "authorization=…;x-tenant=…"},
	{"LISTEN", "0.0.0.0:18000,[::]:18001,unix:/run/tender.sock,localhost:0", ""},
	{"REST_LISTEN", "127.0.0.1:18001,unix:/run/rest.sock", ""},
	{"REST_LISTEN", "Off", "off"},
	{"TLS_LISTEN", ":18443,unix:/run/tls.sock", ""},
	{"TLS_LISTEN", "Off", "off"},
	{"TLS_CERT", "/etc/tls.crt", ""},
	{"TLS_KEY", "/etc/tls.key", ""},
	{"TLS_CLIENT_CA", "/etc/ca.pem", ""},
	{"TLS_TRUST_DOMAINS", "cluster.local", ""},
	{"TLS_TRUST_DOMAINS", "example.org = /run/spiffe//bundle.pem ; cluster.local",
		"example.org=/run/spiffe/bundle.pem;cluster.local"},
	{"AUTHZ", "/etc/authz.yaml", ""},
	{"SECRETS", "loopback", ""},
	{"SOCKET_MODE", "0666", ""},
	{"ADMIN_LISTEN", "127.0.0.2:1,[::1]:2,LOCALHOST:3,unix:/run/admin.sock", ""},
	{"ADMIN_LISTEN", ":18080,127.0.0.1:1", ""},
	{"ADMIN_LISTEN", "off", ""},
	{"PROBE_LISTEN", ":18081,unix:/run/probe.sock", ""},
	{"PEERS", "dns:///tender-headless:18080,10.0.0.1:18080,[::1]:1", ""},
	{"PEERS", "off", ""},
	{"PEERS_TLS_CA", "ca.pem", ""},
	{"PEERS_TLS_CERT", "tls.crt", ""},
	{"PEERS_TLS_KEY", "tls.key", ""},
	{"PEERS_TLS_SERVER_NAME", "tender.example", ""},
	{"NODE_ID", "relay~10.0.0.1~a.b~b.svc", ""},
	{"NODE_ID", "{user_agent_name} {", ""},
	{"NODE_CLUSTER", "Flotte Süd", ""},
	{"NODE_LOCALITY", "eu/eu-1/a", ""},
	{"NODE_LOCALITY", "eu", ""},
	{"NODE_METADATA", `{"b":[1,true],"a":{"c":"d"}}`, `{"a":{"c":"d"},"b":[1,true]}`},
	{"NODE_GROUP_BY", "none", ""},
	{"NODE_GROUP_BY", "id, cluster,user_agent_version,locality.sub_zone,metadata.a.b",
		"id,cluster,user_agent_version,locality.sub_zone,metadata.a.b"},
	{"RESYNC", "FULL", "full"},
	{"PREWARM", "cds, type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", typeCDS + "," + typeEDS},
	{"DELTA_VERSIONS", "content", ""},
	{"COMPRESSION", "gzip", ""},
	{"EDS_AFTER_CDS", "off", ""},
	{"SNAPSHOT_DIR", "/var/lib/tender/", "/var/lib/tender"},
	{"SNAPSHOT_DIR", "Off", "off"},
	{"MAX_SNAPSHOT_AGE", "1h", ""},
	{"SNAPSHOT_SENSITIVE", "on", ""},
	{"MIN_PUSH_INTERVAL", " cds = 1s ,*=250ms,example.com/a.b.C=10s", "cds=1s,*=250ms,example.com/a.b.C=10s"},
	{"MIN_PUSH_INTERVAL", "Off", "off"},
	{"ROLLOUT", "metadata.canary=true 600s,5%   10m , 25% approve", "metadata.canary=true 10m, 5% 10m, 25% approve"},
	{"ROLLOUT", "Off", "off"},
	{"ROLLOUT_TYPES", "rds, type.googleapis.com/envoy.config.cluster.v3.Cluster,example.com/a.b.C",
		"rds,cds,example.com/a.b.C"},
	{"ROLLOUT_REJECTIONS", "3", ""},
	{"ROLLOUT_CHECK", "https://gate.example:8443/check", ""},
	{"ROLLOUT_CHECK", "HTTP://ops:hunter2@[::1]/a%20b?token=hunter2", "http://…@[::1]/a%20b?…"},
	{"ROLLOUT_CHECK", "OFF", "off"},
	{"CHECK_ENVOY", "/usr/bin/envoy", ""},
	{"CHECK_ENVOY", "off", "off"},
	{"FOLLOW_HALTS", "on", ""},
	{"LRS", "aggregate", ""},
	{"DYNAMIC_PARAMETERS", "ON", "on"},
	{"HOLD_EXPLICIT_REMOVALS", "On", "on"},
	{"HOLD_GROWTH", "3", ""},
	{"HOLD_GROWTH", "OFF", "off"},
	{"REQUIRED", "cds : ext-authz, lds:xdstp://a/b:c", "cds:ext-authz,lds:xdstp://a/b:c"},
	{"REQUIRED", "Off", "off"},
	{"REPORT_REJECTS", "on", ""},
	{"VALIDATE", "Off", "off"},
	{"STATIC_CLUSTERS", "agent, sds-*", "agent,sds-*"},
	{"COLD_WAIT", "1m30s", ""},
	{"MASS_DELETE_HOLD", "60m", "1h"},
	{"ORIGIN_KEEPALIVE", "10s", ""},
	{"LOG_LEVEL", "Debug", "debug"},
	{"LOG_FORMAT", "text", ""},
	{"MAX_CONNECTIONS", "12", ""},
	{"MAX_CONNECTIONS_PER_ADDRESS", "12", ""},
	{"MAX_STREAMS", "1", ""},
	{"MAX_REQUEST_RATE", "12", ""},
	{"MAX_NAMES", "12", ""},
	{"MAX_REQUEST_BYTES", "1536 KiB", "1536KiB"},
	{"MAX_ORIGIN_RESPONSE_BYTES", "1GiB", ""},
	{"MAX_RESOURCE_BYTES", "4 MiB", "4MiB"},
	{"MAX_RESOURCE_BYTES", "Off", "off"},
	{"MAX_GROUPS", "12", ""},
	{"MAX_GROUPS_PER_CLIENT", "12", ""},
	{"MAX_ORIGIN_NAMES", "12", ""},
	{"FIRST_REQUEST_TIMEOUT", "3s", ""},
	{"ACK_WAIT", "300ms", ""},
	{"SEND_TIMEOUT", "3s", ""},
	{"LINGER", "3s", ""},
	{"DRAIN", "3s", ""},
	{"CONNECTION_AGE", "90m", "1h30m"},
	{"CONNECTION_AGE", "Off", "off"},
	{"TRACE_DELIVERIES", "0", ""},
	{"METRICS_GROUPS", "0", ""},
	{"TRACE_SLOW", "250ms", ""},
	{"TRACE_SLOW", "off", ""},
	{"HISTORY", "3", ""},
	{"HISTORY", "OFF", "off"},
	{"DEBUG", "on", ""},
}

// goodValueContext has the entries that the good values of a variable require.
var goodValueContext = map[string][]string{
	"ORIGINS":                {"ROUTES=type:cds=west;type:eds=w-2"},
	"ORIGIN_TLS_CERT":        {"ORIGIN_TLS_KEY=k"},
	"ORIGIN_TLS_KEY":         {"ORIGIN_TLS_CERT=c"},
	"ORIGIN_TLS_SERVER_NAME": {"ORIGIN_TLS=on"},
	"TLS_CERT":               {"TLS_KEY=k"},
	"TLS_KEY":                {"TLS_CERT=c"},
	"TLS_CLIENT_CA":          {"TLS_CERT=c", "TLS_KEY=k"},
	"TLS_TRUST_DOMAINS":      {"TLS_CERT=c", "TLS_KEY=k", "TLS_CLIENT_CA=a"},
	"AUTHZ":                  {"TLS_CERT=c", "TLS_KEY=k", "TLS_CLIENT_CA=a"},
	"TLS_LISTEN":             {"TLS_CERT=c", "TLS_KEY=k"},
	"ADMIN_LISTEN":           {"TLS_CERT=c", "TLS_KEY=k", "TLS_CLIENT_CA=a", "AUTHZ=a"},
	"PEERS":                  {"PEERS_TLS_CERT=c", "PEERS_TLS_KEY=k"},
	"PEERS_TLS_CA":           {"PEERS=a:1", "PEERS_TLS_CERT=c", "PEERS_TLS_KEY=k"},
	"PEERS_TLS_CERT":         {"PEERS=a:1", "PEERS_TLS_KEY=k"},
	"PEERS_TLS_KEY":          {"PEERS=a:1", "PEERS_TLS_CERT=c"},
	"PEERS_TLS_SERVER_NAME":  {"PEERS=a:1", "PEERS_TLS_CERT=c", "PEERS_TLS_KEY=k"},
	"ROLLOUT":                {"SNAPSHOT_DIR=/d", "DELTA_VERSIONS=content"},
	"CHECK_ENVOY":            {"SNAPSHOT_DIR=/d", "DELTA_VERSIONS=content"},
}

func TestLoadConfigGoodValues(t *testing.T) {
	seen := map[string]bool{}
	for _, tt := range goodValues {
		seen[tt.name] = true
		t.Run(tt.name, func(t *testing.T) {
			environ := []string{prefix + tt.name + "=" + tt.value}
			beside := goodValueContext[tt.name]
			if tt.name != "ORIGIN" {
				beside = append(slices.Clip(beside), "ORIGIN=a:1")
			}
			for _, entry := range beside {
				environ = append(environ, prefix+entry)
			}
			cfg, err := Load(environ)
			if err != nil {
				t.Fatalf("Load(%q): %v", environ, err)
			}
			want := tt.shown
			if want == "" {
				want = tt.value
			}
			for _, s := range cfg.Table() {
				if s.Variable != prefix+tt.name {
					isBeside := slices.ContainsFunc(beside,
						func(entry string) bool { return strings.HasPrefix(prefix+entry, s.Variable+"=") })
					if s.Source != "default" && !isBeside {
						t.Errorf("%s comes from the %s, want default", s.Variable, s.Source)
					}
					continue
				}
				if s.Value != want || s.Source != "environment" {
					t.Errorf("%s = %q from the %s, want %q from the environment", s.Variable, s.Value, s.Source, want)
				}
			}
		})
	}
	for _, v := range variables {
		if !seen[v.name] {
			t.Errorf("%s%s has no good value in this test", prefix, v.name)
		}
	}
}

func TestLoadConfigFields(t *testing.T) {
	cfg, err := Load([]string{
		"TENDER_ORIGIN=a:1, b:2", "TENDER_NODE_LOCALITY=eu/eu-1", `TENDER_NODE_METADATA={"env":"test"}`,
		"TENDER_NODE_GROUP_BY=none", "TENDER_PREWARM=cds", "TENDER_EDS_AFTER_CDS=off", "TENDER_LOG_LEVEL=warn",
		"TENDER_MAX_REQUEST_BYTES=20KiB", "TENDER_ACK_WAIT=1s", "TENDER_ACK_WAIT=2s",
	})
	if err != nil {
		t.Fatal(err)
	}
	check := func(field string, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}
	check("Origin", cfg.Origin, Targets{"a:1", "b:2"})
	check("NodeLocality", cfg.NodeLocality, Locality{Region: "eu", Zone: "eu-1"})
	check("NodeMetadata", cfg.NodeMetadata, Metadata{"env": "test"})
	check("NodeGroupBy", cfg.NodeGroupBy, NodeFields(nil))
	check("Prewarm", cfg.Prewarm, WildcardTypes{typeCDS})
	check("EDSAfterCDS", cfg.EDSAfterCDS, false)
	check("LogLevel", cfg.LogLevel, slog.LevelWarn)
	check("MaxRequestBytes", cfg.MaxRequestBytes, Size(20<<10))
	check("AckWait", cfg.AckWait, time.Second) // the first entry counts, as for os.Getenv
}

// badValues has at least one invalid value for every variable, and a part of its error.
var badValues = []struct{ name, value, cause string }{
	{"ORIGIN", "localhost", `"localhost" is not host:port`},
	{"ORIGIN", "localhost:", `the port "" is not a number from 1 to 65535`},
	{"ORIGIN", "localhost:0", `the port "0" is not a number from 1 to 65535`},
	{"ORIGIN", "localhost:65536", `the port "65536" is not`},
	{"ORIGIN", ":18000", `the host "" is neither`},
	{"ORIGIN", "a b:1", `the host "a b" is neither`},
	{"ORIGIN", "a:1,,b:2", "empty list item"},
	{"ORIGIN", "a:1,a:1", `duplicate "a:1"`},
	{"ORIGIN", "http://a:1", `"http" is not a supported scheme`},
	{"ORIGIN", "xds:///a", `"xds" is not a supported scheme`},
	{"ORIGIN", "dns://8.8.8.8/a:1", "does not start with dns:///"},
	{"ORIGIN", "dns:///a", `"a" is not host:port`},
	{"ORIGIN", "unix:run/a", "does not name a socket by an absolute path"},
	{"ORIGIN", "unix:/" + strings.Repeat("a", 107), "longer than 107 bytes"},
	{"ORIGIN", "file:///a,b:1", "a directory must be the only target"},
	{"ORIGIN", "file:///a,file:///b", "a directory must be the only target"},
	{"ORIGIN", "file://host/a", "is not a file URL without a host"},
	{"ORIGIN", "file:///a?b", "is not a file URL without a host"},
	{"ORIGIN", "file:a", "does not name a directory by an absolute path"},
	{"ORIGIN", "file:///", "does not name a directory by an absolute path"},
	{"ORIGIN_TLS", "yes", "not an allowed value"},
	{"ORIGIN_TLS_CA", "a\tb", "contains a control character"},
	{"ORIGIN_TLS_CERT", "/tls.crt", "requires TENDER_ORIGIN_TLS_KEY"},
	{"ORIGIN_TLS_KEY", "/tls.key", "requires TENDER_ORIGIN_TLS_CERT"},
	{"ORIGIN_TLS_SERVER_NAME", "a:1", `"a:1" is neither a DNS name nor an IP address`},
	{"ORIGIN_TLS_SERVER_NAME", "*.a", `"*.a" is neither a DNS name nor an IP address`},
	{"ORIGIN_TLS_SERVER_NAME", "spiffe://example.org", "it has no path"},
	{"ORIGIN_TLS_SERVER_NAME", "spiffe://a b/c",
		`"spiffe://a b/c" is not a SPIFFE ID such as spiffe://example.org/control-plane: `},
	{"ORIGIN_TLS_SERVER_NAME", "a.example", "requires TLS, but TENDER_ORIGIN_TLS is off"},
	{"ORIGIN_TOKEN_FILE", "a\x00", "contains a control character"},
	{"ORIGIN_HEADERS", "x", "an item does not have the form name=value"},
	{"ORIGIN_HEADERS", "x=1;;y=2", "an item does not have the form name=value"},
	{"ORIGIN_HEADERS", "x=1;X=2", `duplicate header "x"`},
	{"ORIGIN_HEADERS", "x y=1", `"x y" is not a valid header name`},
	{"ORIGIN_HEADERS", "=1", `"" is not a valid header name`},
	{"ORIGIN_HEADERS", ":authority=a", `":authority" is not a valid header name`},
	{"ORIGIN_HEADERS", "Content-Type=a", `the header "content-type" is reserved for gRPC and HTTP/2`},
	{"ORIGIN_HEADERS", "grpc-timeout=1S", `the header "grpc-timeout" is reserved for gRPC and HTTP/2`},
	{"ORIGIN_HEADERS", "x-bin=a", `the header "x-bin" is binary; only text headers are supported`},
	{"ORIGIN_HEADERS", "x=", `the header "x" has no value`},
	{"ORIGIN_HEADERS", "x=ä", `the value of the header "x" is not printable ASCII`},
	{"TLS_LISTEN", "a", `"a" is not host:port`},
	{"TLS_LISTEN", ":1", "requires TENDER_TLS_CERT and TENDER_TLS_KEY"},
	{"TLS_CERT", "c", "requires TENDER_TLS_KEY"},
	{"TLS_KEY", "k", "requires TENDER_TLS_CERT"},
	{"TLS_CLIENT_CA", "a", "requires TENDER_TLS_CERT and TENDER_TLS_KEY"},
	{"TLS_TRUST_DOMAINS", "Example.org", `"Example.org" is not a trust domain such as example.org: `},
	{"TLS_TRUST_DOMAINS", "*", `"*" is not a trust domain such as example.org: `},
	{"TLS_TRUST_DOMAINS", "spiffe://example.org", `"spiffe://example.org" is not a trust domain; use "example.org"`},
	{"TLS_TRUST_DOMAINS", "=/ca.pem", `"" is not a trust domain such as example.org: `},
	{"TLS_TRUST_DOMAINS", "example.org=", `the trust domain "example.org" has no path after =`},
	{"TLS_TRUST_DOMAINS", "a;;b", "empty list item"},
	{"TLS_TRUST_DOMAINS", "a=/b;a=/c", `duplicate trust domain "a"; put several CAs into one file`},
	{"TLS_TRUST_DOMAINS", "a=/b", "requires TENDER_TLS_CLIENT_CA, TENDER_TLS_CERT and TENDER_TLS_KEY"},
	{"AUTHZ", "a", "requires TENDER_TLS_CLIENT_CA, TENDER_TLS_CERT and TENDER_TLS_KEY, because rules match client certificates"},
	{"SECRETS", "on", "not an allowed value"},
	{"SOCKET_MODE", "0777", "not an allowed value"},
	{"ORIGINS", "b:1", `"b:1" does not have the form name=target`},
	{"ORIGINS", "West=b:1", `"West" is not a valid origin name`},
	{"ORIGINS", "=b:1", `"" is not a valid origin name`},
	{"ORIGINS", "default=b:1", `"default" is reserved for the origin of TENDER_ORIGIN`},
	{"ORIGINS", "w=b:1;w=c:1", `duplicate name "w"`},
	{"ORIGINS", "w=b:1;", "empty list item"},
	{"ORIGINS", strings.Join(manyOrigins(32), ";"), `"w31" exceeds the maximum of 31 origins`},
	{"ORIGINS", "w=", `origin "w": empty list item`},
	{"ORIGINS", "w=b", `origin "w": "b" is not host:port`},
	{"ORIGINS", "w=b:1,file:///c", `origin "w": a directory must be the only target`},
	{"ROUTES", "cds", `"cds" does not end with =name`},
	{"ROUTES", "cds=default", `"cds=default" has neither the prefix type: nor authority: before the name`},
	{"ROUTES", "type:cd=default", `"cd" is neither a short name nor a type URL`},
	{"ROUTES", "type:=default", `"" is neither a short name nor a type URL`},
	{"ROUTES", "type:cds=", `"" is not a valid origin name`},
	{"ROUTES", "type:cds=default;type:" + typeCDS + "=default", `duplicate route for "type:` + typeCDS + `"`},
	{"ROUTES", "authority:a=default;authority:a=default", `duplicate route for "authority:a"`},
	{"ROUTES", "authority:=default", "the authority of a route is empty"},
	{"ROUTES", "authority:%61=default", `the authority "%61" is not canonical; use "a"`},
	{"ROUTES", "authority:a/b=default", `'/' in the authority "a/b"`},
	{"ROUTES", "authority:%zz=default", `authority "%zz": invalid URL escape "%zz"`},
	{"ROUTES", "type:cds=west", `"type:` + typeCDS + `" has the origin "west", which is not in TENDER_ORIGINS`},
	{"ORIGIN_PROTOCOL", "grpc", "not an allowed value"},
	{"TRANSPORT", "http", "not an allowed value"},
	{"LISTEN", "18000", `"18000" is not host:port`},
	{"LISTEN", "tcp://:18000", "is not an address to listen on"},
	{"LISTEN", ":18000,:18000", "duplicate "},
	{"LISTEN", "unix:", "does not name a socket"},
	{"LISTEN", ":http", `the port "http" is not a number from 0 to 65535`},
	{"REST_LISTEN", "on", `"on" is not host:port`},
	{"REST_LISTEN", "[::]:18001, :18000", `":18000" is also in the default of TENDER_LISTEN`},
	{"ADMIN_LISTEN", ":18080", `requires TENDER_TLS_CLIENT_CA, TENDER_TLS_CERT, TENDER_TLS_KEY and TENDER_AUTHZ, ` +
		`because ":18080" is not on loopback; use TENDER_PROBE_LISTEN for probes`},
	{"ADMIN_LISTEN", "127.0.0.1:1,localhost.example:2", `"localhost.example:2" is not on loopback`},
	{"ADMIN_LISTEN", "[::]:18080", `"[::]:18080" is not on loopback`},
	{"ADMIN_LISTEN", "off,off", `"off" is not host:port`},
	{"PROBE_LISTEN", "18081", `"18081" is not host:port`},
	{"PEERS", "a:1", "requires TENDER_PEERS_TLS_CERT and TENDER_PEERS_TLS_KEY"},
	{"PEERS", "http://a:1", `"http://a:1" is neither host:port nor dns:///host:port`},
	{"PEERS_TLS_CA", "c", "requires TENDER_PEERS, TENDER_PEERS_TLS_CERT and TENDER_PEERS_TLS_KEY"},
	{"PEERS_TLS_CERT", "c", "requires TENDER_PEERS and TENDER_PEERS_TLS_KEY"},
	{"PEERS_TLS_KEY", "c", "requires TENDER_PEERS"},
	{"PEERS_TLS_SERVER_NAME", "a.example", "requires TENDER_PEERS"},
	{"PROBE_LISTEN", "127.0.0.1:18080", `"127.0.0.1:18080" is also in the default of TENDER_ADMIN_LISTEN`},
	{"NODE_ID", "a\x1b[31mb", "unprintable characters"},
	{"NODE_ID", "a\xffb", "not UTF-8"},
	{"NODE_ID", "{user_agent_name}{user_agent_name}", "two groups could have the same ID"},
	{"NODE_ID", "{user_agent_name}%", "two groups could have the same ID"},
	{"NODE_ID", "tender/{cluster}", `"{cluster}" is not a field of TENDER_NODE_GROUP_BY`},
	{"NODE_ID", "{user_agent_name}/{}", `"{}" is not a field of TENDER_NODE_GROUP_BY`},
	{"NODE_ID", "{id}", `"{id}" is not supported; with id in TENDER_NODE_GROUP_BY, the relay presents the ID of the ` +
		`client`},
	{"NODE_CLUSTER", strings.Repeat("a", 4097), "4097 bytes"},
	{"NODE_LOCALITY", "a/b/c/d", "4 parts"},
	{"NODE_LOCALITY", "a\nb", "unprintable characters"},
	{"NODE_METADATA", "[1]", "not a JSON object"},
	{"NODE_METADATA", "null", "not a JSON object"},
	{"NODE_METADATA", `{"a":`, "not a JSON object: byte 5: unexpected end of JSON input"},
	{"NODE_METADATA", "{\x1b", `not a JSON object: byte 2: invalid character '\x1b' looking for beginning`},
	{"NODE_GROUP_BY", "zone", `"zone" is not a Node field`},
	{"NODE_GROUP_BY", "none,id", "none cannot be combined with fields"},
	{"NODE_GROUP_BY", "metadata.", "has an empty path segment"},
	{"NODE_GROUP_BY", "metadata.a..b", "has an empty path segment"},
	{"NODE_GROUP_BY", "id,id", "duplicate "},
	{"RESYNC", "yes", "not an allowed value"},
	{"PREWARM", "cd", `"cd" is neither a short name nor a type URL`},
	{"PREWARM", "cds," + typeCDS, "duplicate "},
	{"PREWARM", "cds,sds", `"sds": Secrets have no wildcard subscriptions`},
	{"DELTA_VERSIONS", "hash", "not an allowed value"},
	{"COMPRESSION", "zstd", "not an allowed value"},
	{"EDS_AFTER_CDS", "true", "not an allowed value"},
	{"SNAPSHOT_DIR", "/a\nb", "contains a control character"},
	{"SNAPSHOT_DIR", "/a\xff", "contains a control character"},
	{"MAX_SNAPSHOT_AGE", "59s", "too short"},
	{"MAX_SNAPSHOT_AGE", "24", "not a duration"},
	{"SNAPSHOT_SENSITIVE", "yes", "not an allowed value"},
	{"REPORT_REJECTS", "always", "not an allowed value"},
	{"FOLLOW_HALTS", "always", "not an allowed value"},
	{"ROLLOUT", "on", `stage 1 ("on"): "on" is neither a share such as 5% nor a field and a glob`},
	{"ROLLOUT", "5% 10m, 5% 1h", `stage 2 ("5% 1h"): an earlier stage selects the same clients`},
	{"ROLLOUT", "off, 5% 1h", `stage 1 ("off")`},
	{"ROLLOUT", "5% \x1b", `stage 1 ("5% \x1b"): "\x1b" is not a duration`},
	{"ROLLOUT", "5% 10m", "requires TENDER_SNAPSHOT_DIR, because otherwise a restart"},
	{"CHECK_ENVOY", "/usr/bin/envoy", "requires TENDER_SNAPSHOT_DIR, because otherwise a restart would send rejected changes"},
	{"CHECK_ENVOY", "/usr/bin/envoy", "requires TENDER_DELTA_VERSIONS=content, because the Envoy and the clients"},
	{"ROLLOUT", "5% 10m", "requires TENDER_DELTA_VERSIONS=content, because a rollout serves two versions of a resource at once"},
	{"MIN_PUSH_INTERVAL", "1s", `"1s" is not a type and an interval, such as cds=1s`},
	{"MIN_PUSH_INTERVAL", "=1s", "an interval has no type"},
	{"MIN_PUSH_INTERVAL", "clusters=1s", `"clusters" is neither a short name nor a type URL`},
	{"MIN_PUSH_INTERVAL", "cds=1", "not a duration"},
	{"MIN_PUSH_INTERVAL", "cds=1ms", "too short"},
	{"MIN_PUSH_INTERVAL", "cds=11s", "too long"},
	{"MIN_PUSH_INTERVAL", "cds=1s,cds=2s", "duplicate interval"},
	{"MIN_PUSH_INTERVAL", "cds=1s,", "empty list item"},
	{"ROLLOUT_TYPES", "cds,eds", `"eds": endpoints are never staged, because clients`},
	{"ROLLOUT_TYPES", "leds", `"leds": endpoints are never staged`},
	{"ROLLOUT_TYPES", "sds", `"sds": Secrets are never staged, because certificates would expire`},
	{"ROLLOUT_TYPES", "type.googleapis.com/envoy.api.v2.auth.Secret", "Secrets are never staged"},
	{"ROLLOUT_TYPES", "cds,cds", "duplicate "},
	{"ROLLOUT_TYPES", "none", `"none" is neither a short name nor a type URL`},
	{"ROLLOUT_REJECTIONS", "-1", "too small"},
	{"ROLLOUT_REJECTIONS", "5%", "not a whole number"},
	{"ROLLOUT_CHECK", "on", "not an http or https URL"},
	{"ROLLOUT_CHECK", "user:hunter2@gate:8443", "not an http or https URL"},
	{"ROLLOUT_CHECK", "http://user:hunter2@:80", "the URL has no host, or a port"},
	{"ROLLOUT_CHECK", "https://gate:65536", "the URL has no host, or a port"},
	{"ROLLOUT_CHECK", "https://gate#hunter2", "the URL has a fragment"},
	{"ROLLOUT_CHECK", "https://gate/%hunter2", "not an http or https URL"},
	{"LRS", "on", "not an allowed value"},
	{"DYNAMIC_PARAMETERS", "yes", "not an allowed value"},
	{"HOLD_EXPLICIT_REMOVALS", "large", "not an allowed value"},
	{"HOLD_GROWTH", "10x", "not a whole number"},
	{"HOLD_GROWTH", "1", "too small"},
	{"HOLD_GROWTH", "1001", "too large"},
	{"REQUIRED", "ext-authz", `"ext-authz" is not a type and a name, such as cds:ext-authz`},
	{"REQUIRED", "clusters:a", `"clusters" is neither a short name nor a type URL`},
	{"REQUIRED", "cds:", `"cds:" has no name`},
	{"REQUIRED", "cds:a,cds:a", "duplicate"},
	{"VALIDATE", "strict", "not an allowed value"},
	{"STATIC_CLUSTERS", "a[", `"a[" is not a pattern`},
	{"STATIC_CLUSTERS", "a,,b", "empty list item"},
	{"HISTORY", "0", "too small"},
	{"HISTORY", "101", "too large"},
	{"HISTORY", "on", "not a whole number"},
	{"DEBUG", "1", "not an allowed value"},
	{"COLD_WAIT", "10", "not a duration"},
	{"COLD_WAIT", "0s", "too short"},
	{"MASS_DELETE_HOLD", "-10m", "too short"},
	{"ORIGIN_KEEPALIVE", "9s", "too short"},
	{"LOG_LEVEL", "trace", "not an allowed value"},
	{"LOG_FORMAT", "logfmt", "not an allowed value"},
	{"MAX_CONNECTIONS", "0", "too small"},
	{"MAX_CONNECTIONS_PER_ADDRESS", "many", "not a whole number"},
	{"MAX_STREAMS", "0", "too small"},
	{"MAX_STREAMS", "99999999999999999999999", "too large"},
	{"MAX_STREAMS", "-99999999999999999999999", "too small"},
	{"MAX_NAMES", "100k", "not a whole number"},
	{"MAX_REQUEST_BYTES", "-1", "not a size"},
	{"MAX_REQUEST_BYTES", "9999999999999GiB", "not a size"},
	{"MAX_ORIGIN_RESPONSE_BYTES", "2GiB", "too large"},
	{"MAX_RESOURCE_BYTES", "1B", "too small"},
	{"MAX_RESOURCE_BYTES", "unlimited", "not a size"},
	{"MAX_GROUPS", "0x", "not a whole number"},
	{"MAX_GROUPS_PER_CLIENT", "0", "too small"},
	{"MAX_GROUPS_PER_CLIENT", "100001", "too large"},
	{"MAX_ORIGIN_NAMES", "0", "too small"},
	{"MAX_ORIGIN_NAMES", "100000001", "too large"},
	{"FIRST_REQUEST_TIMEOUT", "1d", "not a duration"},
	{"ACK_WAIT", "11m", "too long"},
	{"SEND_TIMEOUT", "1ms", "too short"},
	{"LINGER", "25h", "too long"},
	{"DRAIN", "forever", "not a duration"},
	{"CONNECTION_AGE", "9s", "too short"},
	{"CONNECTION_AGE", "25h", "too long"},
	{"CONNECTION_AGE", "never", "not a duration"},
	{"TRACE_DELIVERIES", "-1", "too small"},
	{"METRICS_GROUPS", "-1", "too small"},
	{"TRACE_DELIVERIES", "off", "not a whole number"},
	{"TRACE_SLOW", "0s", "too short"},
	{"TRACE_SLOW", "2h", "too long"},
	{"MAX_REQUEST_RATE", "0", "too small"},
}

// Markers of the generated part of deploy/docs/configuration.md.
const (
	tableBegins = "<!-- variables -->\n"
	tableEnds   = "<!-- /variables -->"
)

// manyOrigins returns n entries of TENDER_ORIGINS.
func manyOrigins(n int) (items []string) {
	for i := range n {
		items = append(items, fmt.Sprintf("w%d=b:1", i))
	}
	return items
}
