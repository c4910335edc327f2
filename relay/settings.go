package relay

import (
	"cmp"
	"time"

	"google.golang.org/grpc/keepalive"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/history"
	"github.com/xdstender/tender/relay/lint"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/peers"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/files"
)

// The functions below convert a Config into the configurations of other packages. They only copy settings. Their callers
// add what belongs to one relay or origin: views, credentials, callbacks and loggers.

// downstreamConfig returns the settings of the xDS server.
func downstreamConfig(cfg *Config) downstream.Config {
	return downstream.Config{
		AckWait:             cfg.AckWait,
		SendStall:           cfg.SendTimeout,
		ColdWait:            cfg.ColdWait,
		FirstRequestTimeout: cfg.FirstRequestTimeout,
		ConnectionAge:       cfg.ConnectionAge,
		Limits: guard.Limits{
			MaxConnections:     cfg.MaxConnections,
			MaxPeerConnections: cfg.MaxConnectionsPerAddress,
			MaxUnreadBytes:     bufferedBytes(readMemory(), int(cfg.MaxRequestBytes)),
			MaxStreams:         cfg.MaxStreams,
		},
		MaxRequestRate:    cfg.MaxRequestRate,
		MaxNames:          cfg.MaxNames,
		NoEDSAfterCDS:     !cfg.EDSAfterCDS,
		DynamicParameters: cfg.DynamicParameters,
		ContentVersions:   cfg.DeltaVersions == VersionsOfContent,
		SumLoads:          cfg.LRS == LRSAggregate,
	}
}

// tracesConfig returns the settings of delivery spans.
func tracesConfig(cfg *Config) downstream.Traces {
	return downstream.Traces{Every: cfg.TraceDeliveries, Slow: cfg.TraceSlow}
}

// A grpcConfig has the settings of a gRPC server for clients.
type grpcConfig struct {
	maxRequestBytes  int
	handshakeTimeout time.Duration
	keepalive        keepalive.ServerParameters
}

// grpcServerConfig returns the settings of a gRPC server for clients. The keepalive parameters include the maximum age
// of connections (B.33).
func grpcServerConfig(cfg *Config, opts Options) grpcConfig {
	c := grpcConfig{
		maxRequestBytes:  int(cfg.MaxRequestBytes),
		handshakeTimeout: cfg.FirstRequestTimeout,
		keepalive: keepalive.ServerParameters{
			Time: cmp.Or(opts.PingAfter, pings.Time), Timeout: cmp.Or(opts.PingTimeout, pings.Timeout),
		},
	}
	if cfg.ConnectionAge > 0 {
		c.keepalive.MaxConnectionAge = cfg.ConnectionAge
		c.keepalive.MaxConnectionAgeGrace = guard.Grace(cfg.ConnectionAge)
	}
	return c
}

// protocols maps the values of [Config.OriginProtocol].
var protocols = map[string]upstream.Protocol{
	ProtocolAuto:  upstream.ProtocolAuto,
	ProtocolDelta: upstream.ProtocolDelta,
	ProtocolSotW:  upstream.ProtocolSotW,
}

// streamsPerView is the maximum number of upstream streams of a view. All views open their streams at once when the
// relay starts, and when its origin becomes reachable again. The rate limit must permit that burst.
const streamsPerView = 2

// upstreamConfig returns the settings of the sessions with control planes.
func upstreamConfig(cfg *Config) upstream.Config {
	return upstream.Config{
		Protocol:         protocols[cfg.OriginProtocol],
		Keepalive:        cfg.OriginKeepalive,
		MaxResponseBytes: int(cfg.MaxOriginResponseBytes),
		MaxResourceBytes: int(cfg.MaxResourceBytes),
		StreamBurst:      streamsPerView * (cfg.MaxGroups + 1<<len(nodegroup.ContentFeatures)),
		FullResync:       cfg.Resync == ResyncFull,
		ContentVersions:  cfg.DeltaVersions == VersionsOfContent,
		Linger:           cfg.Linger,
		ColdWait:         cfg.ColdWait,
		MassDeleteHold:   cfg.MassDeleteHold,
		HoldExplicit:     cfg.HoldExplicitRemovals,
		Prewarm:          cfg.Prewarm,
	}
}

// filesConfig returns the settings of origins that are directories.
func filesConfig(cfg *Config) files.Config {
	return files.Config{ColdWait: cfg.ColdWait, MassDeleteHold: cfg.MassDeleteHold, HoldExplicit: cfg.HoldExplicitRemovals}
}

// cacheConfig returns the settings of all views.
func cacheConfig(cfg *Config) cache.Config {
	return cache.Config{TombstoneAge: 2 * (cfg.AckWait + cfg.SendTimeout)}
}

// pushInterval returns the minimum time between two changes of a type that clients of a node group are sent, or nil if
// changes are sent at once.
func pushInterval(cfg *Config) func(typeURL string) time.Duration {
	if len(cfg.MinPushInterval) == 0 {
		return nil
	}
	return cfg.MinPushInterval.Of
}

// originNames returns the quota of the names that clients subscribe to at one origin.
func originNames(cfg *Config) quota.Names {
	return quota.NewNames(quota.NewPool(cfg.MaxOriginNames, quota.Tenth(cfg.MaxOriginNames)))
}

// historyConfig returns the settings of the history of resources.
func historyConfig(cfg *Config) history.Config {
	return history.Config{Changes: cfg.History}
}

// rolloutConfig returns the settings of rollouts, and the external check, or nil if there is none.
func rolloutConfig(cfg *Config) (rollout.Config, *rollout.Check) {
	c := rollout.Config{
		Stages: cfg.Rollout, RefusalLimit: cfg.RolloutRefusals, Hold: cfg.MassDeleteHold, Checked: cfg.RolloutCheck != "",
	}
	if !c.Checked {
		return c, nil
	}
	return c, &rollout.Check{URL: string(cfg.RolloutCheck)}
}

// lintConfig returns the settings of the linter.
func lintConfig(cfg *Config) lint.Config {
	return lint.Config{Static: lint.Patterns(cfg.StaticClusters)}
}

// peersConfig returns the settings of the peers.
func peersConfig(cfg *Config) peers.Config { return peers.Config{Targets: cfg.Peers} }
