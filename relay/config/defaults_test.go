package config

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestLoadConfigDefaults(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Listen:                   Addresses{":18000"},
		AdminListen:              Addresses{"127.0.0.1:18080"},
		NodeID:                   Text("tender/" + host),
		NodeCluster:              "tender",
		OriginProtocol:           ProtocolAuto,
		OriginAccess:             Access{TLS: TLSOff},
		NodeGroupBy:              NodeFields{"user_agent_name"},
		Resync:                   ResyncTrustVersions,
		DeltaVersions:            VersionsOfOrigin,
		RolloutTypes:             defaultRolloutTypes,
		EDSAfterCDS:              true,
		LRS:                      LRSOff,
		Secrets:                  SecretsMTLS,
		ColdWait:                 10 * time.Second,
		MassDeleteHold:           10 * time.Minute,
		Validate:                 ValidateWarn,
		OriginKeepalive:          330 * time.Second,
		MaxSnapshotAge:           24 * time.Hour,
		LogLevel:                 slog.LevelInfo,
		MaxConnections:           50_000,
		MaxConnectionsPerAddress: 10_000,
		MaxStreams:               50_000,
		MaxNames:                 100_000,
		MaxRequestBytes:          16 << 20,
		MaxOriginResponseBytes:   256 << 20,
		MaxGroups:                256,
		MetricsGroups:            50,
		MaxGroupsPerClient:       16,
		MaxOriginNames:           1_000_000,
		FirstRequestTimeout:      10 * time.Second,
		AckWait:                  5 * time.Second,
		SendTimeout:              time.Minute,
		Linger:                   5 * time.Minute,
		MaxRequestRate:           100,
		Drain:                    45 * time.Second,
		ConnectionAge:            30 * time.Minute,
		TraceDeliveries:          100,
		TraceSlow:                time.Second,
		History:                  10,
	}
	// An empty variable counts as unset. Variables without the prefix TENDER_ are ignored.
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
