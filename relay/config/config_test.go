package config

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "write the table of variables into deploy/docs/configuration.md")

const (
	typeCDS = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	typeEDS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

func TestLoadConfigDefaults(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Listen:                  []string{":18000"},
		AdminListen:             []string{"127.0.0.1:18080"},
		TLSMin:                  "1.2",
		NodeID:                  "tender/" + host,
		NodeCluster:             "tender",
		OriginProtocol:          ProtocolAuto,
		OriginAccess:            Access{TLS: TLSOff},
		NodeGroupBy:             []string{"user_agent_name"},
		Resync:                  ResyncTrustVersions,
		VersionSource:           VersionsOfContent,
		DeltaVersions:           VersionsOfOrigin,
		EDSAfterCDS:             true,
		LRS:                     LRSOff,
		Secrets:                 SecretsMTLS,
		ColdWait:                10 * time.Second,
		MassDeleteHold:          10 * time.Minute,
		OriginKeepalive:         330 * time.Second,
		MaxSnapshotAge:          24 * time.Hour,
		LogLevel:                slog.LevelInfo,
		MaxConnections:          50_000,
		MaxPeerConnections:      10_000,
		MaxUnreadBytes:          1 << 30,
		MaxStreams:              50_000,
		MaxStreamsPerConnection: 2_000,
		MaxNames:                100_000,
		MaxNameBytes:            4 << 10,
		MaxNodeBytes:            1 << 20,
		MaxRequestBytes:         16 << 20,
		MaxOriginResponseBytes:  256 << 20,
		MaxTypes:                64,
		MaxGroups:               256,
		MaxPeerGroups:           16,
		MaxOriginNames:          1_000_000,
		OriginStreamRate:        600,
		MaxGlobs:                1000,
		MaxGroupGlobs:           10_000,
		FirstRequestTimeout:     10 * time.Second,
		AckWait:                 5 * time.Second,
		SendStall:               time.Minute,
		Linger:                  5 * time.Minute,
		WildcardLinger:          15 * time.Minute,
		MaxLingering:            100_000,
		MaxRequestRate:          100,
		RequestCompression:      CompressionOff,
		PeerIPv6Prefix:          64,
		MaxFrameRate:            5000,
		Drain:                   45 * time.Second,
		ConnectionAge:           30 * time.Minute,
		TraceDeliveries:         100,
		TraceSlow:               time.Second,
		History:                 10,
		MaxHistoryBytes:         32 << 20,
	}
	// An empty variable counts as unset; what is not ours is not looked at.
	for _, environ := range [][]string{nil, {"TENDER_LISTEN=", "PATH=/bin", "TENDER=1", "no equals sign"}} {
		got, err := Load(environ)
		if err != nil {
			t.Errorf("Load(%q): %v", environ, err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Config{})); diff != "" {
			t.Errorf("Load(%q) (-want +got):\n%s", environ, diff)
		}
	}
}

// goodValues has at least one value for every variable, and what the table of
// tender check shows for it where that differs.
var goodValues = []struct{ name, value, shown string }{
	{"ORIGIN", "control-plane.mesh:18000", ""},
	{"ORIGIN", " a:1 , [::1]:2 ,dns:///b:3,unix:///run/c.sock,unix:/run/d", "a:1,[::1]:2,dns:///b:3,unix:///run/c.sock,unix:/run/d"},
	{"ORIGIN", "file:///etc/tender", ""},
	{"ORIGINS", "west=b:1;w-2=c:1", ""},
	{"ORIGINS", " west = b:1 , c:2 ; w-2=file:///etc/tender ", "west=b:1,c:2;w-2=file:///etc/tender"},
	{"ROUTES", "type:cds=default; authority:*=default", "type:" + typeCDS + "=default;authority:*=default"},
	{"ROUTES", "type:example.com/a.b.C=default;authority:a=b%2Fc:1=default", ""},
	{"ORIGIN_PROTOCOL", "SotW", "sotw"},
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
	{"TLS_TRUST_DOMAINS", "example.org = /run/spiffe//bundle.pem ; cluster.local", "example.org=/run/spiffe/bundle.pem;cluster.local"},
	{"TLS_MIN", "1.3", ""},
	{"AUTHZ", "/etc/authz.yaml", ""},
	{"SECRETS", "loopback", ""},
	{"ADMIN_LISTEN", "127.0.0.2:1,[::1]:2,LOCALHOST:3,unix:/run/admin.sock", ""},
	{"ADMIN_LISTEN", ":18080,127.0.0.1:1", ""},
	{"ADMIN_LISTEN", "off", ""},
	{"PROBE_LISTEN", ":18081,unix:/run/probe.sock", ""},
	{"NODE_ID", "relay~10.0.0.1~a.b~b.svc", ""},
	{"NODE_ID", "{user_agent_name} {", ""},
	{"NODE_CLUSTER", "Flotte Süd", ""},
	{"NODE_LOCALITY", "eu/eu-1/a", ""},
	{"NODE_LOCALITY", "eu", ""},
	{"NODE_METADATA", `{"b":[1,true],"a":{"c":"d"}}`, `{"a":{"c":"d"},"b":[1,true]}`},
	{"NODE_GROUP_BY", "none", ""},
	{"NODE_GROUP_BY", "id, cluster,user_agent_version,locality.sub_zone,metadata.a.b", "id,cluster,user_agent_version,locality.sub_zone,metadata.a.b"},
	{"RESYNC", "FULL", "full"},
	{"PREWARM", "cds, type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", typeCDS + "," + typeEDS},
	{"VERSION_SOURCE", "origin", ""},
	{"DELTA_VERSIONS", "content", ""},
	{"FULL_STATE_TYPES", "example.com/a.b.C", ""},
	{"WILDCARD_TYPES", "eds", typeEDS},
	{"EDS_AFTER_CDS", "off", ""},
	{"SNAPSHOT_DIR", "/var/lib/tender/", "/var/lib/tender"},
	{"SNAPSHOT_DIR", "Off", "off"},
	{"MAX_SNAPSHOT_AGE", "1h", ""},
	{"SNAPSHOT_SENSITIVE", "on", ""},
	{"LRS", "aggregate", ""},
	{"DYNAMIC_PARAMETERS", "ON", "on"},
	{"HOLD_EXPLICIT", "On", "on"},
	{"COLD_WAIT", "1m30s", ""},
	{"MASS_DELETE_HOLD", "60m", "1h"},
	{"ORIGIN_KEEPALIVE", "10s", ""},
	{"LOG_LEVEL", "Debug", "debug"},
	{"LOG_FORMAT", "text", ""},
	{"MAX_CONNECTIONS", "12", ""},
	{"MAX_PEER_CONNECTIONS", "12", ""},
	{"MAX_STREAMS", "1", ""},
	{"MAX_STREAMS_PER_CONNECTION", "007", "7"},
	{"MAX_REQUEST_RATE", "12", ""},
	{"REQUEST_COMPRESSION", "gzip", ""},
	{"PEER_IPV6_PREFIX", "48", ""},
	{"MAX_FRAME_RATE", "12", ""},
	{"MAX_NAMES", "12", ""},
	{"MAX_NAME_BYTES", "1024", "1KiB"},
	{"MAX_NODE_BYTES", "64KiB", ""},
	{"MAX_REQUEST_BYTES", "1536 KiB", "1536KiB"},
	{"MAX_UNREAD_BYTES", "64 MiB", "64MiB"},
	{"MAX_ORIGIN_RESPONSE_BYTES", "1GiB", ""},
	{"MAX_RESOURCE_BYTES", "4 MiB", "4MiB"},
	{"MAX_RESOURCE_BYTES", "Off", "off"},
	{"MAX_TYPES", "12", ""},
	{"MAX_GROUPS", "12", ""},
	{"MAX_PEER_GROUPS", "12", ""},
	{"MAX_ORIGIN_NAMES", "12", ""},
	{"ORIGIN_STREAM_RATE", "12", ""},
	{"MAX_GLOBS", "12", ""},
	{"MAX_GROUP_GLOBS", "12", ""},
	{"FIRST_REQUEST_TIMEOUT", "3s", ""},
	{"ACK_WAIT", "300ms", ""},
	{"SEND_STALL", "3s", ""},
	{"LINGER", "3s", ""},
	{"WILDCARD_LINGER", "24h", ""},
	{"MAX_LINGERING", "12", ""},
	{"DRAIN", "3s", ""},
	{"CONNECTION_AGE", "90m", "1h30m"},
	{"CONNECTION_AGE", "Off", "off"},
	{"TRACE_DELIVERIES", "0", ""},
	{"TRACE_SLOW", "250ms", ""},
	{"TRACE_SLOW", "off", ""},
	{"HISTORY", "3", ""},
	{"HISTORY", "OFF", "off"},
	{"MAX_HISTORY_BYTES", "1MiB", ""},
	{"DEBUG", "on", ""},
}

// goodWith is what the good values of a variable need beside them.
var goodWith = map[string][]string{
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
}

func TestLoadConfigGoodValues(t *testing.T) {
	seen := map[string]bool{}
	for _, tt := range goodValues {
		seen[tt.name] = true
		t.Run(tt.name, func(t *testing.T) {
			environ := []string{prefix + tt.name + "=" + tt.value}
			beside := goodWith[tt.name]
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
					isBeside := slices.ContainsFunc(beside, func(entry string) bool { return strings.HasPrefix(prefix+entry, s.Variable+"=") })
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
		"TENDER_MAX_NAME_BYTES=2KiB", "TENDER_ACK_WAIT=1s", "TENDER_ACK_WAIT=2s",
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
	check("Origin", cfg.Origin, []string{"a:1", "b:2"})
	check("NodeLocality", cfg.NodeLocality, Locality{Region: "eu", Zone: "eu-1"})
	check("NodeMetadata", cfg.NodeMetadata, Metadata{"env": "test"})
	check("NodeGroupBy", cfg.NodeGroupBy, []string(nil))
	check("Prewarm", cfg.Prewarm, []string{typeCDS})
	check("EDSAfterCDS", cfg.EDSAfterCDS, false)
	check("LogLevel", cfg.LogLevel, slog.LevelWarn)
	check("MaxNameBytes", cfg.MaxNameBytes, Size(2048))
	check("AckWait", cfg.AckWait, time.Second) // the first counts, as for os.Getenv
}

// badValues has at least one value for every variable, and what is wrong with it.
var badValues = []struct{ name, value, cause string }{
	{"ORIGIN", "localhost", `"localhost" is not host:port`},
	{"ORIGIN", "localhost:", `the port "" is not a number from 1 to 65535`},
	{"ORIGIN", "localhost:0", `the port "0" is not a number from 1 to 65535`},
	{"ORIGIN", "localhost:65536", `the port "65536" is not`},
	{"ORIGIN", ":18000", `the host "" is neither`},
	{"ORIGIN", "a b:1", `the host "a b" is neither`},
	{"ORIGIN", "a:1,,b:2", "empty item in the list"},
	{"ORIGIN", "a:1,a:1", `"a:1" comes twice`},
	{"ORIGIN", "http://a:1", `"http" is not a scheme for an origin`},
	{"ORIGIN", "xds:///a", `"xds" is not a scheme for an origin`},
	{"ORIGIN", "dns://8.8.8.8/a:1", "does not start with dns:///"},
	{"ORIGIN", "dns:///a", `"a" is not host:port`},
	{"ORIGIN", "unix:run/a", "does not name a socket by an absolute path"},
	{"ORIGIN", "unix:/" + strings.Repeat("a", 107), "at most 107 bytes"},
	{"ORIGIN", "file:///a,b:1", "a file origin stands alone"},
	{"ORIGIN", "file:///a,file:///b", "a file origin stands alone"},
	{"ORIGIN", "file://host/a", "is not a file URL without a host"},
	{"ORIGIN", "file:///a?b", "is not a file URL without a host"},
	{"ORIGIN", "file:a", "does not name a directory by an absolute path"},
	{"ORIGIN", "file:///", "does not name a directory by an absolute path"},
	{"ORIGIN_TLS", "yes", "not one of the words"},
	{"ORIGIN_TLS_CA", "a\tb", "it holds a control character"},
	{"ORIGIN_TLS_CERT", "/tls.crt", "its key is missing: TENDER_ORIGIN_TLS_KEY is not set"},
	{"ORIGIN_TLS_KEY", "/tls.key", "its certificate is missing: TENDER_ORIGIN_TLS_CERT is not set"},
	{"ORIGIN_TLS_SERVER_NAME", "a:1", `"a:1" is neither a name nor an IP address`},
	{"ORIGIN_TLS_SERVER_NAME", "*.a", `"*.a" is neither a name nor an IP address`},
	{"ORIGIN_TLS_SERVER_NAME", "spiffe://example.org", "it has no path"},
	{"ORIGIN_TLS_SERVER_NAME", "spiffe://a b/c", `"spiffe://a b/c" is not a SPIFFE ID such as spiffe://example.org/control-plane: `},
	{"ORIGIN_TLS_SERVER_NAME", "a.example", "it is of no use without TLS, and TENDER_ORIGIN_TLS is off"},
	{"ORIGIN_TOKEN_FILE", "a\x00", "it holds a control character"},
	{"ORIGIN_HEADERS", "x", "an item is not name=value"},
	{"ORIGIN_HEADERS", "x=1;;y=2", "an item is not name=value"},
	{"ORIGIN_HEADERS", "x=1;X=2", `the header "x" comes twice`},
	{"ORIGIN_HEADERS", "x y=1", `"x y" is not the name of a header`},
	{"ORIGIN_HEADERS", "=1", `"" is not the name of a header`},
	{"ORIGIN_HEADERS", ":authority=a", `":authority" is not the name of a header`},
	{"ORIGIN_HEADERS", "Content-Type=a", `the header "content-type" is gRPC's own`},
	{"ORIGIN_HEADERS", "grpc-timeout=1S", `the header "grpc-timeout" is gRPC's own`},
	{"ORIGIN_HEADERS", "x-bin=a", `the header "x-bin" is for bytes, not text`},
	{"ORIGIN_HEADERS", "x=", `the header "x" has no value`},
	{"ORIGIN_HEADERS", "x=ä", `the value of the header "x" is not printable ASCII`},
	{"TLS_LISTEN", "a", `"a" is not host:port`},
	{"TLS_LISTEN", ":1", "there is no TLS without TENDER_TLS_CERT"},
	{"TLS_CERT", "c", "its key is missing: TENDER_TLS_KEY is not set"},
	{"TLS_KEY", "k", "its certificate is missing: TENDER_TLS_CERT is not set"},
	{"TLS_CLIENT_CA", "a", "it is of no use without TENDER_TLS_CERT"},
	{"TLS_TRUST_DOMAINS", "Example.org", `"Example.org" is not a trust domain such as example.org: `},
	{"TLS_TRUST_DOMAINS", "*", `"*" is not a trust domain such as example.org: `},
	{"TLS_TRUST_DOMAINS", "spiffe://example.org", `the trust domain of "spiffe://example.org" is "example.org"`},
	{"TLS_TRUST_DOMAINS", "=/ca.pem", `"" is not a trust domain such as example.org: `},
	{"TLS_TRUST_DOMAINS", "example.org=", `the trust domain "example.org" has no path after =`},
	{"TLS_TRUST_DOMAINS", "a;;b", "empty item in the list"},
	{"TLS_TRUST_DOMAINS", "a=/b;a=/c", `the trust domain "a" comes twice: one file may hold several CAs`},
	{"TLS_TRUST_DOMAINS", "a=/b", "clients show no certificates, since TENDER_TLS_CLIENT_CA is not set"},
	{"TLS_MIN", "1.1", "not one of the words"},
	{"AUTHZ", "a", "its rules are about certificates, and TENDER_TLS_CLIENT_CA is not set"},
	{"SECRETS", "on", "not one of the words"},
	{"ORIGINS", "b:1", `"b:1" is not name=target`},
	{"ORIGINS", "West=b:1", `"West" is not a name for an origin`},
	{"ORIGINS", "=b:1", `"" is not a name for an origin`},
	{"ORIGINS", "default=b:1", `"default" is the name of the origin in TENDER_ORIGIN`},
	{"ORIGINS", "w=b:1;w=c:1", `the name "w" comes twice`},
	{"ORIGINS", "w=b:1;", "empty item in the list"},
	{"ORIGINS", strings.Join(manyOrigins(32), ";"), `"w31" is one too many`},
	{"ORIGINS", "w=", `origin "w": empty item in the list`},
	{"ORIGINS", "w=b", `origin "w": "b" is not host:port`},
	{"ORIGINS", "w=b:1,file:///c", `origin "w": a file origin stands alone`},
	{"ROUTES", "cds", `"cds" does not end in =name`},
	{"ROUTES", "cds=default", `"cds=default" is for neither a type nor an authority`},
	{"ROUTES", "type:cd=default", `"cd" is neither a short name nor a type URL`},
	{"ROUTES", "type:=default", `"" is neither a short name nor a type URL`},
	{"ROUTES", "type:cds=", `"" is not a name for an origin`},
	{"ROUTES", "type:cds=default;type:" + typeCDS + "=default", `"type:` + typeCDS + `" has two routes`},
	{"ROUTES", "authority:a=default;authority:a=default", `"authority:a" has two routes`},
	{"ROUTES", "authority:=default", "the authority of a route is empty"},
	{"ROUTES", "authority:%61=default", `the authority "%61" is spelled "a" in canonical form`},
	{"ROUTES", "authority:a/b=default", `'/' in the authority "a/b"`},
	{"ROUTES", "authority:%zz=default", `authority "%zz": invalid URL escape "%zz"`},
	{"ROUTES", "type:cds=west", `"type:` + typeCDS + `" leads to "west", which TENDER_ORIGINS does not have`},
	{"ORIGIN_PROTOCOL", "grpc", "not one of the words"},
	{"LISTEN", "18000", `"18000" is not host:port`},
	{"LISTEN", "tcp://:18000", "is not an address to listen on"},
	{"LISTEN", ":18000,:18000", "comes twice"},
	{"LISTEN", "unix:", "does not name a socket"},
	{"LISTEN", ":http", `the port "http" is not a number from 0 to 65535`},
	{"REST_LISTEN", "on", `"on" is not host:port`},
	{"REST_LISTEN", "[::]:18001, :18000", `":18000" is in TENDER_LISTEN too`},
	{"ADMIN_LISTEN", ":18080", `":18080" is not on loopback, and operators elsewhere have to show who they are; not set: TENDER_TLS_CERT, TENDER_TLS_CLIENT_CA, TENDER_AUTHZ; for probes there is TENDER_PROBE_LISTEN`},
	{"ADMIN_LISTEN", "127.0.0.1:1,localhost.example:2", `"localhost.example:2" is not on loopback`},
	{"ADMIN_LISTEN", "[::]:18080", `"[::]:18080" is not on loopback`},
	{"ADMIN_LISTEN", "off,off", `"off" is not host:port`},
	{"PROBE_LISTEN", "18081", `"18081" is not host:port`},
	{"PROBE_LISTEN", "127.0.0.1:18080", `"127.0.0.1:18080" is in TENDER_ADMIN_LISTEN too`},
	{"NODE_ID", "a\x1b[31mb", "cannot be printed"},
	{"NODE_ID", "a\xffb", "not UTF-8"},
	{"NODE_ID", "{user_agent_name}{user_agent_name}", "two groups could have one id"},
	{"NODE_ID", "{user_agent_name}%", "two groups could have one id"},
	{"NODE_ID", "tender/{cluster}", `"{cluster}" stands for a field that is not in TENDER_NODE_GROUP_BY`},
	{"NODE_ID", "{user_agent_name}/{}", `"{}" stands for a field that is not in TENDER_NODE_GROUP_BY`},
	{"NODE_ID", "{id}", `"{id}" stands for the client's id, which is presented as it is where TENDER_NODE_GROUP_BY has it`},
	{"NODE_CLUSTER", strings.Repeat("a", 4097), "4097 bytes"},
	{"NODE_LOCALITY", "a/b/c/d", "4 parts"},
	{"NODE_LOCALITY", "a\nb", "cannot be printed"},
	{"NODE_METADATA", "[1]", "not a JSON object"},
	{"NODE_METADATA", "null", "not a JSON object"},
	{"NODE_METADATA", `{"a":`, "not a JSON object"},
	{"NODE_GROUP_BY", "zone", `"zone" is not a field of the Node`},
	{"NODE_GROUP_BY", "none,id", "none stands alone"},
	{"NODE_GROUP_BY", "metadata.", "has an empty part"},
	{"NODE_GROUP_BY", "metadata.a..b", "has an empty part"},
	{"NODE_GROUP_BY", "id,id", "comes twice"},
	{"RESYNC", "yes", "not one of the words"},
	{"PREWARM", "cd", `"cd" is neither a short name nor a type URL`},
	{"PREWARM", "cds," + typeCDS, "comes twice"},
	{"PREWARM", "cds,sds", `"sds": Secrets are asked for by their names alone`},
	{"VERSION_SOURCE", "hash", "not one of the words"},
	{"DELTA_VERSIONS", "hash", "not one of the words"},
	{"FULL_STATE_TYPES", "type.googleapis.com/", "is neither a short name nor a type URL"},
	{"WILDCARD_TYPES", "sds", "Secrets are asked for by their names alone"},
	{"WILDCARD_TYPES", "/a.b", "is neither a short name nor a type URL"},
	{"EDS_AFTER_CDS", "true", "not one of the words"},
	{"SNAPSHOT_DIR", "/a\nb", "it holds a control character"},
	{"SNAPSHOT_DIR", "/a\xff", "it holds a control character"},
	{"MAX_SNAPSHOT_AGE", "59s", "too short"},
	{"MAX_SNAPSHOT_AGE", "24", "not a duration"},
	{"SNAPSHOT_SENSITIVE", "yes", "not one of the words"},
	{"LRS", "on", "not one of the words"},
	{"DYNAMIC_PARAMETERS", "yes", "not one of the words"},
	{"HOLD_EXPLICIT", "large", "not one of the words"},
	{"HISTORY", "0", "too small"},
	{"HISTORY", "101", "too large"},
	{"HISTORY", "on", "not a whole number"},
	{"MAX_HISTORY_BYTES", "1", "too small"},
	{"DEBUG", "1", "not one of the words"},
	{"COLD_WAIT", "10", "not a duration"},
	{"COLD_WAIT", "0s", "too short"},
	{"MASS_DELETE_HOLD", "-10m", "too short"},
	{"ORIGIN_KEEPALIVE", "9s", "too short"},
	{"LOG_LEVEL", "trace", "not one of the words"},
	{"LOG_FORMAT", "logfmt", "not one of the words"},
	{"MAX_CONNECTIONS", "0", "too small"},
	{"MAX_PEER_CONNECTIONS", "many", "not a whole number"},
	{"MAX_STREAMS", "0", "too small"},
	{"MAX_STREAMS", "99999999999999999999999", "too large"},
	{"MAX_STREAMS", "-99999999999999999999999", "too small"},
	{"MAX_STREAMS_PER_CONNECTION", "1e3", "not a whole number"},
	{"MAX_FRAME_RATE", "0", "too small"},
	{"MAX_FRAME_RATE", "10000001", "too large"},
	{"MAX_FRAME_RATE", "5k", "not a whole number"},
	{"MAX_NAMES", "100k", "not a whole number"},
	{"MAX_GLOBS", "0", "too small"},
	{"MAX_GROUP_GLOBS", "1.5", "not a whole number"},
	{"MAX_NODE_BYTES", "100B", "too small"},
	{"MAX_NAME_BYTES", "4kb", "not a size"},
	{"MAX_NAME_BYTES", "4B", "too small"},
	{"MAX_REQUEST_BYTES", "-1", "not a size"},
	{"MAX_UNREAD_BYTES", "1KiB", "MAX_UNREAD_BYTES"},
	{"MAX_UNREAD_BYTES", "63MiB", "63MiB is less than four times TENDER_MAX_REQUEST_BYTES=16MiB"},
	{"MAX_REQUEST_BYTES", "9999999999999GiB", "not a size"},
	{"MAX_ORIGIN_RESPONSE_BYTES", "2GiB", "too large"},
	{"MAX_RESOURCE_BYTES", "1B", "too small"},
	{"MAX_RESOURCE_BYTES", "unlimited", "not a size"},
	{"MAX_TYPES", "-1", "too small"},
	{"MAX_GROUPS", "0x", "not a whole number"},
	{"MAX_PEER_GROUPS", "0", "too small"},
	{"MAX_PEER_GROUPS", "100001", "too large"},
	{"MAX_ORIGIN_NAMES", "0", "too small"},
	{"ORIGIN_STREAM_RATE", "0", "too small"},
	{"ORIGIN_STREAM_RATE", "1000001", "too large"},
	{"MAX_ORIGIN_NAMES", "100000001", "too large"},
	{"FIRST_REQUEST_TIMEOUT", "1d", "not a duration"},
	{"ACK_WAIT", "11m", "too long"},
	{"SEND_STALL", "1ms", "too short"},
	{"LINGER", "25h", "too long"},
	{"WILDCARD_LINGER", "0", "too short"},
	{"MAX_LINGERING", "0", "too small"},
	{"DRAIN", "forever", "not a duration"},
	{"CONNECTION_AGE", "9s", "too short"},
	{"CONNECTION_AGE", "25h", "too long"},
	{"CONNECTION_AGE", "never", "not a duration"},
	{"TRACE_DELIVERIES", "-1", "too small"},
	{"TRACE_DELIVERIES", "off", "not a whole number"},
	{"TRACE_SLOW", "0s", "too short"},
	{"TRACE_SLOW", "2h", "too long"},
	{"MAX_REQUEST_RATE", "0", "too small"},
	{"REQUEST_COMPRESSION", "zstd", "not one of the words"},
	{"PEER_IPV6_PREFIX", "129", "too large"},
}

// TestBadValues holds what an error says: variable, value, cause, what is
// allowed; in one line, with nothing that steers a terminal.
func TestBadValues(t *testing.T) {
	seen := map[string]bool{}
	for _, tt := range badValues {
		seen[tt.name] = true
		t.Run(tt.name, func(t *testing.T) {
			entry := prefix + tt.name + "=" + tt.value
			cfg, err := Load([]string{entry})
			if err == nil {
				t.Fatalf("Load(%q) accepts it", entry)
			}
			message := err.Error()
			for _, want := range []string{prefix + tt.name + "=" + variable(tt.name).quote(tt.value) + ": ", tt.cause, "; allowed: " + plain(variable(tt.name).allowed)} {
				if !strings.Contains(message, want) {
					t.Errorf("Load(%q): %s\nwant it to contain %s", entry, message, want)
				}
			}
			if escape(message) != message {
				t.Errorf("Load(%q): %q holds control characters or a second line", entry, message)
			}
			// The default stands in, so that the rest can be shown.
			defaults, _ := Load(nil)
			if diff := cmp.Diff(defaults, cfg, cmpopts.IgnoreUnexported(Config{})); diff != "" {
				t.Errorf("after a bad value (-defaults +got):\n%s", diff)
			}
			for _, s := range cfg.Table() {
				if s.Variable == prefix+tt.name && (s.Source != "refused" || s.Value != variable(tt.name).quote(tt.value)) {
					t.Errorf("Table() has %+v, want the refused value", s)
				}
			}
		})
	}
	for _, v := range variables {
		if !seen[v.name] {
			t.Errorf("%s%s has no bad value in this test", prefix, v.name)
		}
	}
}

func TestErrorsAreJoinedInOrder(t *testing.T) {
	_, err := Load([]string{
		"TENDER_ZEBRA=1", "TENDER_DRAIN=x", "TENDER_LISTEN=x", "TENDER_ACK_WAITS=1s",
	})
	if err == nil {
		t.Fatal("LoadConfig accepts it")
	}
	var got []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		name, _, _ := strings.Cut(line, ":")
		got = append(got, name)
	}
	want := []string{`TENDER_LISTEN="x"`, `TENDER_DRAIN="x"`, "TENDER_ACK_WAITS", "TENDER_ZEBRA"}
	if !slices.Equal(got, want) {
		t.Errorf("errors of %q, want %q", got, want)
	}
}

func TestUnknownVariables(t *testing.T) {
	tests := []struct{ name, want string }{
		{"TENDER_ORIGN", "TENDER_ORIGN: unknown variable; did you mean TENDER_ORIGIN?"},
		{"TENDER_LISTENER", "TENDER_LISTENER: unknown variable; did you mean TENDER_LISTEN?"},
		{"TENDER_MAX_STREAM_PER_CONNECTION", "TENDER_MAX_STREAM_PER_CONNECTION: unknown variable; did you mean TENDER_MAX_STREAMS_PER_CONNECTION?"},
		{"TENDER_PROXY_WASM", "TENDER_PROXY_WASM: unknown variable; allowed: the variables that tender check lists"},
		{"TENDER_", "TENDER_: unknown variable; allowed: the variables that tender check lists"},
		{"TENDER_\x1b[31m", `"TENDER_\x1b[31m": unknown variable; allowed: the variables that tender check lists`},
		{"TENDER_ORIGIN_EAST_1_TLS_CA", `TENDER_ORIGIN_EAST_1_TLS_CA: TENDER_ORIGINS has no origin that is called "east-1"`},
		{"TENDER_ORIGIN_PROXY", "TENDER_ORIGIN_PROXY: not supported by this version; allowed: the variables that tender check lists"},
	}
	for _, tt := range tests {
		_, err := Load([]string{tt.name + "=secret"})
		if err == nil || err.Error() != tt.want {
			t.Errorf("Load(%q) = %v, want %s", tt.name, err, tt.want)
		}
	}
}

// TestPlannedVariables holds that variables of later versions are told apart
// from typing mistakes, and that none of them exists already.
func TestPlannedVariables(t *testing.T) {
	for _, name := range []string{
		"ORIGIN_PROXY",
	} {
		_, err := Load([]string{prefix + name + "=x"})
		if err == nil || !strings.Contains(err.Error(), prefix+name+": not supported by this version") {
			t.Errorf("Load(%s%s) = %v, want not supported", prefix, name, err)
		}
		if kubernetes.MatchString(name) {
			t.Errorf("%s%s is a name that Kubernetes sets", prefix, name)
		}
	}
	for _, v := range variables {
		if planned.MatchString(v.name) {
			t.Errorf("%s%s exists and is planned", prefix, v.name)
		}
	}
}

// TestKubernetesVariables holds that what Kubernetes sets for Services called
// tender or tender-x is ignored, and that no variable of ours has such a name.
func TestKubernetesVariables(t *testing.T) {
	environ := []string{
		"TENDER_SERVICE_HOST=10.96.0.7", "TENDER_SERVICE_PORT=18000", "TENDER_SERVICE_PORT_XDS=18000",
		"TENDER_PORT=tcp://10.96.0.7:18000", "TENDER_PORT_18000_TCP=tcp://10.96.0.7:18000",
		"TENDER_PORT_18000_TCP_PROTO=tcp", "TENDER_PORT_18000_TCP_PORT=18000", "TENDER_PORT_18000_TCP_ADDR=10.96.0.7",
		"TENDER_PORT_53_UDP_ADDR=10.96.0.7", "TENDER_PORT_99_SCTP=x",
		"TENDER_X_SERVICE_HOST=10.96.0.8", "TENDER_X_SERVICE_PORT=18080", "TENDER_X_SERVICE_PORT_HTTP_ADMIN=18080",
		"TENDER_X_PORT=tcp://10.96.0.8:18080", "TENDER_X_PORT_18080_TCP_ADDR=10.96.0.8",
	}
	if _, err := Load(environ); err != nil {
		t.Errorf("LoadConfig of what Kubernetes sets: %v", err)
	}
	for _, name := range []string{"TENDER_PORTS=1", "TENDER_SERVICE=1", "TENDER_PORT_X=1"} {
		if _, err := Load([]string{name}); err == nil {
			t.Errorf("Load(%q) ignores it, want an error: Kubernetes sets no such name", name)
		}
	}
	for _, v := range variables {
		if kubernetes.MatchString(v.name) {
			t.Errorf("%s%s is a name that Kubernetes sets", prefix, v.name)
		}
	}
}

func TestRequireOrigin(t *testing.T) {
	tests := []struct{ name, origin, want string }{
		{"missing", "", `TENDER_ORIGIN="": it is required; allowed: host:port, `},
		{"present", "a:1", ""},
		{"refused once already", "a", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, _ := Load([]string{"TENDER_ORIGIN=" + tt.origin})
			err := cfg.RequireOrigin()
			if (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("RequireOrigin() = %v, want %q", err, tt.want)
			}
		})
	}
}

// TestTableMatchesFields holds that each row has a field and each field a row,
// that a row's own default passes its own check, and that rows say what they
// are in one line.
func TestTableMatchesFields(t *testing.T) {
	fields := new(Config).fields()
	for _, v := range variables {
		field, ok := fields[v.name]
		if !ok {
			t.Errorf("%s%s has no field in Config", prefix, v.name)
			continue
		}
		delete(fields, v.name)
		if v.preset != "" {
			if value, err := v.parse(v.preset); err != nil || reflect.TypeOf(value) != field.Type() || show(reflect.ValueOf(value)) != v.preset {
				t.Errorf("%s%s: parse(%q) = %v, %v, want a %v that is shown so", prefix, v.name, v.preset, value, err, field.Type())
			}
		}
		for _, text := range []string{v.meaning, v.allowed} {
			if text == "" || strings.ContainsAny(text, "\n|") {
				t.Errorf("%s%s says %q, want one line for a cell", prefix, v.name, text)
			}
		}
	}
	for name := range fields {
		t.Errorf("the field for %s%s has no row in the table", prefix, name)
	}
	exported := reflect.VisibleFields(reflect.TypeFor[Config]())
	for _, field := range exported {
		if field.IsExported() && field.Tag.Get("env") == "" {
			t.Errorf("the field %s has no variable", field.Name)
		}
	}
}

func TestTableEscapes(t *testing.T) {
	cfg, err := Load([]string{`TENDER_NODE_METADATA={"a":"\u001b[31m"}`, "TENDER_ORIGIN=unix:/tmp/\x1b[2J"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range cfg.Table() {
		if strings.Contains(s.Value, "\x1b") {
			t.Errorf("%s has the value %q, which steers a terminal", s.Variable, s.Value)
		}
	}
}

func TestSize(t *testing.T) {
	tests := []struct {
		text string
		want Size
		back string
	}{
		{"0", 0, "0B"},
		{"1", 1, "1B"},
		{"1B", 1, "1B"},
		{"1024", 1024, "1KiB"},
		{"1025", 1025, "1025B"},
		{"3 MiB", 3 << 20, "3MiB"},
		{"8589934591GiB", (1<<33 - 1) << 30, "8589934591GiB"},
	}
	for _, tt := range tests {
		var s Size
		if err := s.UnmarshalText([]byte(tt.text)); err != nil || s != tt.want || s.String() != tt.back {
			t.Errorf("UnmarshalText(%q) = %d (%s), %v, want %d (%s)", tt.text, int64(s), s, err, int64(tt.want), tt.back)
		}
	}
	for _, text := range []string{"", "B", "KiB", "1K", "1kib", "+1", "-1", "1.5MiB", "8589934592GiB", "0x10"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("UnmarshalText(%q) = %d, want an error", text, s)
		}
	}
}

// The page's table of variables stands between these lines.
const (
	tableBegins = "<!-- variables -->\n"
	tableEnds   = "<!-- /variables -->"
)

// TestConfigurationPage holds the table of deploy/docs/configuration.md to the one
// that the code uses. With -update it writes it.
func TestConfigurationPage(t *testing.T) {
	const name = "../../deploy/docs/configuration.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableBegins)
	table, after, ok2 := strings.Cut(rest, tableEnds)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the lines %s and %s: put them where the table of variables belongs, then run\n\tgo test ./relay/config -run TestConfigurationPage -update",
			name, strings.TrimSpace(tableBegins), tableEnds)
	}
	want := MarkdownTable()
	if strings.TrimSpace(table) == strings.TrimSpace(want) {
		return
	}
	if !*update {
		t.Fatalf("%s has another table of variables than the code; run\n\tgo test ./relay/config -run TestConfigurationPage -update\n(-want +got)\n%s",
			name, cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(table)))
	}
	if err := os.WriteFile(name, []byte(before+tableBegins+"\n"+want+"\n"+tableEnds+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// manyOrigins returns as many of TENDER_ORIGINS.
func manyOrigins(n int) (items []string) {
	for i := range n {
		items = append(items, fmt.Sprintf("w%d=b:1", i))
	}
	return items
}
