package relay

import (
	"io/fs"
	"strconv"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/keepalive"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/relay/history"
	"github.com/xdstender/tender/relay/lint"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/peers"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/files"
	"github.com/xdstender/tender/upstream/reconcile"
)

// settings are what a Config sets in a relay. Only this file reads fields of Config. The relay adds to the configurations
// of other packages what belongs to one relay, origin or view: credentials, callbacks and loggers. Settings are
// immutable.
type settings struct {
	downstream     downstream.Config // the xDS server
	traces         downstream.Traces // delivery spans
	grpc           grpcConfig        // gRPC servers for clients
	rest           restConfig
	upstream       upstream.Config // sessions with control planes
	files          files.Config    // origins that are directories
	cache          cache.Config    // all views
	history        history.Config  // of resources
	rollout        rollout.Config
	followHalts    bool
	staticClusters []string // names of clusters in the bootstrap of clients, without patterns

	check *rollout.Check // the external check of rollouts; nil if there is none
	lint  lint.Config
	peers peers.Config

	addresses addresses
	node      *corepb.Node // of the relay
	nodeID    string
	groupBy   []string             // fields of a Node that define its group
	origins   []config.NamedOrigin // without Access, which config.OpenCredentials reads
	routes    []Route
	loads     bool // clients may report load

	maxGroups, maxGroupsPerClient, metricsGroups int
	maxOriginNames                               int // that clients may request of one origin

	// pushInterval returns the minimum time between two changes of a type that clients of a node group are sent. It is nil
	// if changes are sent at once.
	pushInterval func(typeURL string) time.Duration

	snapshotDir       string // empty without snapshots
	maxSnapshotAge    time.Duration
	snapshotSensitive bool

	coldWait      time.Duration
	linger        time.Duration
	drain         time.Duration
	reportRejects bool
	validate      string
	deltaVersions string
	stagedTypes   []string
	debug         bool
}

// addresses are the addresses of the listeners with the same names.
type addresses struct {
	xds, tls, rest, admin, adminTLS, probes []string

	mode fs.FileMode // of Unix sockets
}

// settingsOf returns the settings of a relay of a version.
func settingsOf(cfg *Config, version string) *settings {
	s := &settings{
		downstream: downstreamConfig(cfg),
		traces:     downstream.Traces{Every: cfg.TraceDeliveries, Slow: cfg.TraceSlow},
		grpc:       grpcServerConfig(cfg),
		rest:       restConfig{readTimeout: cfg.FirstRequestTimeout, sendTimeout: cfg.SendTimeout},
		upstream:   upstreamConfig(cfg),
		files: files.Config{
			ColdWait: cfg.ColdWait, MassDeleteHold: cfg.MassDeleteHold, HoldExplicit: cfg.HoldExplicitRemovals,
			Required: cfg.Required.Reports(), Growth: reconcile.NewGrowthLimit(cfg.HoldGrowth),
		},
		cache:   cache.Config{TombstoneAge: 2 * (cfg.AckWait + cfg.SendTimeout)},
		history: history.Config{Changes: cfg.History},
		rollout: rollout.Config{
			Stages: cfg.Rollout, RejectionLimit: cfg.RolloutRejections, Hold: cfg.MassDeleteHold, Checked: cfg.RolloutCheck != "",
			Judged: cfg.CheckEnvoy != "",
		},
		followHalts:    cfg.FollowHalts,
		staticClusters: literal(cfg.StaticClusters),
		lint:           lint.Config{Static: lint.Patterns(cfg.StaticClusters)},
		peers:          peers.Config{Targets: cfg.Peers},
		addresses: addresses{
			xds: cfg.Listen, tls: cfg.TLSListen, rest: cfg.RESTListen, admin: config.LoopbackOnly(cfg.AdminListen),
			adminTLS: config.NonLoopback(cfg.AdminListen), probes: cfg.ProbeListen,
			mode: socketMode(cfg.SocketMode),
		},
		node: cfg.Node(version), nodeID: string(cfg.NodeID), groupBy: cfg.NodeGroupBy,
		routes: cfg.Routes, loads: cfg.LRS != "" && cfg.LRS != LRSOff,
		maxGroups: cfg.MaxGroups, maxGroupsPerClient: cfg.MaxGroupsPerClient, metricsGroups: cfg.MetricsGroups,
		maxOriginNames: cfg.MaxOriginNames,
		snapshotDir:    string(cfg.SnapshotDir), maxSnapshotAge: cfg.MaxSnapshotAge, snapshotSensitive: cfg.SnapshotSensitive,
		coldWait: cfg.ColdWait, linger: cfg.Linger, drain: cfg.Drain, validate: cfg.Validate,
		reportRejects: cfg.ReportRejects,
		deltaVersions: cfg.DeltaVersions, stagedTypes: cfg.RolloutTypes, debug: cfg.Debug,
	}
	for _, o := range config.AllOrigins(cfg) {
		s.origins = append(s.origins, config.NamedOrigin{Name: o.Name, Targets: o.Targets})
	}
	if s.rollout.Checked {
		s.check = &rollout.Check{URL: string(cfg.RolloutCheck)}
	}
	if len(cfg.MinPushInterval) > 0 {
		s.pushInterval = cfg.MinPushInterval.Of
	}
	return s
}

// literal returns the patterns that match only themselves.
func literal(all config.Patterns) (names []string) {
	for _, pattern := range all {
		if !strings.ContainsAny(pattern, `*?[\`) {
			names = append(names, pattern)
		}
	}
	return names
}

// socketMode returns the mode in the text of [Config.SocketMode].
func socketMode(octal string) fs.FileMode {
	mode, _ := strconv.ParseUint(octal, 8, 32) // cannot fail: Config has one of three texts
	return fs.FileMode(mode)
}

// originNames returns the names of all origins.
func (s *settings) originNames() (names []string) {
	for _, o := range s.origins {
		names = append(names, o.Name)
	}
	return names
}

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
			MaxStreams:         cfg.MaxStreams,
		},
		MaxRequestRate:    cfg.MaxRequestRate,
		MaxNames:          cfg.MaxNames,
		NoResend:          !cfg.EDSAfterCDS,
		DynamicParameters: cfg.DynamicParameters,
		ContentVersions:   cfg.DeltaVersions == VersionsOfContent,
		SumLoads:          cfg.LRS == LRSAggregate,
		Gzip:              cfg.Compression == CompressionGzip,
	}
}

// A grpcConfig has the settings of a gRPC server for clients.
type grpcConfig struct {
	transport        string
	maxRequestBytes  int
	handshakeTimeout time.Duration
	keepalive        keepalive.ServerParameters
}

// grpcServerConfig returns the settings of a gRPC server for clients. The keepalive parameters include the maximum age
// of connections (B.33).
func grpcServerConfig(cfg *Config) grpcConfig {
	c := grpcConfig{
		transport: cfg.Transport, maxRequestBytes: int(cfg.MaxRequestBytes), handshakeTimeout: cfg.FirstRequestTimeout, keepalive: pings,
	}
	if cfg.ConnectionAge > 0 {
		c.keepalive.MaxConnectionAge = cfg.ConnectionAge
		c.keepalive.MaxConnectionAgeGrace = guard.Grace(cfg.ConnectionAge)
	}
	return c
}

// A restConfig has the settings of the server for REST polls.
type restConfig struct{ readTimeout, sendTimeout time.Duration }

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
		Required:         cfg.Required.Reports(),
		Growth:           reconcile.NewGrowthLimit(cfg.HoldGrowth),
		Prewarm:          cfg.Prewarm,
	}
}
