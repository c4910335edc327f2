package relay

import (
	"go/ast"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/telemetry"
)

// handedOver has, for each field of Config, the fields of other configurations that it sets.
var handedOver = map[string]string{
	"AckWait":                  "cache.TombstoneAge downstream.AckWait",
	"AdminListen":              "listeners.3.addresses listeners.4.addresses",
	"ColdWait":                 "downstream.ColdWait files.ColdWait upstream.ColdWait",
	"ConnectionAge":            "downstream.ConnectionAge grpc.keepalive.MaxConnectionAge grpc.keepalive.MaxConnectionAgeGrace",
	"DeltaVersions":            "downstream.ContentVersions upstream.ContentVersions",
	"DynamicParameters":        "downstream.DynamicParameters",
	"EDSAfterCDS":              "downstream.NoEDSAfterCDS",
	"FirstRequestTimeout":      "downstream.FirstRequestTimeout grpc.handshakeTimeout rest.ReadTimeout",
	"History":                  "history.Changes",
	"HoldExplicitRemovals":     "files.HoldExplicit upstream.HoldExplicit",
	"LRS":                      "downstream.SumLoads",
	"Linger":                   "upstream.Linger",
	"Listen":                   "listeners.0.addresses",
	"MassDeleteHold":           "files.MassDeleteHold rollout.Hold upstream.MassDeleteHold",
	"MaxConnections":           "downstream.MaxConnections",
	"MaxGroups":                "groups.burst groups.shares.total upstream.StreamBurst",
	"MaxNames":                 "downstream.MaxNames",
	"MaxOriginNames":           "names.pool.share names.pool.total",
	"MaxOriginResponseBytes":   "upstream.MaxResponseBytes",
	"MaxConnectionsPerAddress": "downstream.MaxPeerConnections",
	"MaxGroupsPerClient":       "groups.perMinute groups.shares.share",
	"MaxRequestBytes":          "grpc.maxRequestBytes",
	"MaxRequestRate":           "downstream.MaxRequestRate",
	"MaxResourceBytes":         "upstream.MaxResourceBytes",
	"MaxStreams":               "downstream.MaxStreams",
	"MetricsGroups":            "labels.maxNamed",
	"MinPushInterval":          "push",
	"NodeCluster":              "node",
	"NodeID":                   "node",
	"NodeLocality":             "node",
	"NodeMetadata":             "node",
	"OriginKeepalive":          "upstream.Keepalive",
	"OriginProtocol":           "upstream.Protocol",
	"Origins":                  "router.origins",
	"Peers":                    "peers.Targets",
	"Prewarm":                  "upstream.Prewarm",
	"ProbeListen":              "listeners.5.addresses",
	"RESTListen":               "listeners.2.addresses",
	"Resync":                   "upstream.FullResync",
	"Rollout":                  "rollout.Stages",
	"RolloutCheck":             "check.Client check.URL rollout.Checked",
	"RolloutRefusals":          "rollout.RefusalLimit",
	"Routes":                   "router.types",
	"SendTimeout":              "cache.TombstoneAge downstream.SendStall rest.WriteTimeout",
	"StaticClusters":           "lint.Static",
	"TLSListen":                "listeners.1.addresses",
	"TraceDeliveries":          "traces.Every",
	"TraceSlow":                "traces.Slow",
}

// usedIn has the file that uses a field of Config, for fields that handedOver does not have.
var usedIn = map[string]string{
	"Authz":              "relay/config/credentials.go",
	"Debug":              "relay/admin.go",
	"Drain":              "relay/relay.go",
	"LogFormat":          "cmd/tender/serve.go",
	"LogLevel":           "cmd/tender/serve.go",
	"MaxSnapshotAge":     "relay/snapshots.go",
	"NodeGroupBy":        "relay/group.go",
	"Origin":             "relay/config/origins.go",
	"OriginAccess":       "relay/config/origins.go",
	"PeersTLSCA":         "relay/config/peers.go",
	"PeersTLSCert":       "relay/config/peers.go",
	"PeersTLSKey":        "relay/config/peers.go",
	"PeersTLSServerName": "relay/config/peers.go",
	"RolloutTypes":       "relay/rollback.go",
	"Secrets":            "relay/config/credentials.go",
	"SnapshotDir":        "relay/snapshots.go",
	"SnapshotSensitive":  "relay/snapshots.go",
	"TLSCert":            "relay/config/credentials.go",
	"TLSClientCA":        "relay/config/credentials.go",
	"TLSKey":             "relay/config/credentials.go",
	"TLSTrustDomains":    "relay/config/credentials.go",
	"Validate":           "relay/validation.go",
}

// handedOverBy has the fields of other configurations that no field of Config sets.
var handedOverBy = map[string]string{
	"the relay": "cache.Cohorts cache.Fanout cache.FirstServed cache.Interner cache.PushInterval cache.Quotas cache.Route " +
		"cache.Sources cache.Waiting cache.Waits downstream.Authorizer downstream.Chain downstream.HerdServed " +
		"downstream.Identifier downstream.Loads downstream.Logger downstream.ProbeStatus downstream.Traces " +
		"downstream.Views lint.Logger lint.Views peers.TLS traces.Delivered",
	"openOrigin": "files.Check files.Dir files.Logger files.Trace upstream.Authority upstream.CallCredentials " +
		"upstream.Chain upstream.Check upstream.Credentials upstream.DialOptions upstream.Logger upstream.Requested " +
		"upstream.Targets upstream.Trace",
	"the limit of memory":           "downstream.MaxUnreadBytes",
	"nothing: their defaults apply": "downstream.ResponseBytes files.Poll history.Bytes upstream.MaxLingering upstream.MaxLingeringBytes",
}

// configured returns the other configurations that a Config sets.
func configured(cfg *Config) map[string]any {
	rollouts, external := rolloutConfig(cfg)
	var pushes time.Duration
	if interval := pushInterval(cfg); interval != nil {
		pushes = interval(wire.ClusterType)
	}
	return map[string]any{
		"downstream": downstreamConfig(cfg), "traces": tracesConfig(cfg), "grpc": grpcServerConfig(cfg, Options{}),
		"rest": newRESTServer(cfg, nil, slog.New(slog.DiscardHandler)), "upstream": upstreamConfig(cfg),
		"files": filesConfig(cfg), "cache": cacheConfig(cfg), "push": pushes, "names": originNames(cfg),
		"groups": newGroupQuota(cfg), "labels": telemetry.NewGroupLabels(cfg.MetricsGroups), "history": historyConfig(cfg),
		"rollout": rollouts, "check": external, "lint": lintConfig(cfg), "peers": peersConfig(cfg),
		"listeners": new(listeners).configured(cfg), "router": newRouter(*cfg), "node": cfg.Node("").String(),
	}
}

// otherValues has a value that differs from the default, for fields whose type or meaning requires one.
var otherValues = map[string]any{
	"AdminListen":   []string{"127.0.0.1:1", "192.0.2.1:1"}, // one plaintext and one with TLS
	"DeltaVersions": VersionsOfContent, "LRS": LRSAggregate, "MinPushInterval": config.PushIntervals{{Type: "*", Least: 1}},
	"NodeLocality": Locality{Zone: "other"}, "NodeMetadata": Metadata{"other": true}, "OriginAccess": Access{TLSCA: "other"},
	"OriginProtocol": ProtocolSotW, "Origins": []NamedOrigin{{Name: "other"}},
	"Resync": ResyncFull, "RolloutCheck": config.CheckURL(""), "Rollout": rollout.Stages{{Duration: time.Hour}}, "Routes": []Route{{TypeURL: "other"}},
	"TLSTrustDomains": []config.TrustDomain{{Name: "other"}},
}

// TestSettingsAreHandedOver checks which fields of other configurations each field of Config sets. A field that sets
// none is used directly by a file of usedIn. The relay itself sets all fields that no field of Config sets, or their
// defaults apply.
func TestSettingsAreHandedOver(t *testing.T) {
	cfg := check.Must(LoadConfig(nil))
	cfg.RolloutCheck = "http://check.example" // otherwise there is no check
	got, unset := check.Settings[Config]{Base: cfg, Others: otherValues, Configured: configured}.HandedOver(t)
	want := maps.Clone(handedOver)
	for name := range usedIn {
		want[name] = ""
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields that each field of Config sets (-want +got):\n%s", diff)
	}
	var others []string
	for _, fields := range handedOverBy {
		others = append(others, strings.Fields(fields)...)
	}
	slices.Sort(others)
	unset = slices.DeleteFunc(unset, func(path string) bool {
		part, _, _ := strings.Cut(path, ".")
		return !slices.Contains([]string{"cache", "check", "downstream", "files", "history", "lint", "peers", "rollout", "traces", "upstream"}, part)
	})
	if diff := cmp.Diff(others, unset); diff != "" {
		t.Errorf("fields that no field of Config sets (-handedOverBy +got):\n%s", diff)
	}
}

// TestSettingsAreUsed checks that each file of usedIn uses the field of Config.
func TestSettingsAreUsed(t *testing.T) {
	files := parseModule(t)
	for name, path := range usedIn {
		used := false
		for n := range ast.Preorder(files[path]) {
			selector, ok := n.(*ast.SelectorExpr)
			used = used || ok && selector.Sel.Name == name
		}
		if !used {
			t.Errorf("%s does not use Config.%s", path, name)
		}
	}
}
