package config

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/access"
	"github.com/xdstender/tender/relay/rollout"
)

// prefix is the prefix of all variables of Tender.
const prefix = "TENDER_"

// A Config is the configuration of a relay. [Load] sets every field from the environment; Load(nil) returns the
// defaults. The tags of a field define its variable (variables.go), and its type decodes the value.
type Config struct {
	// Origin has the targets of the primary origin in failover order, or a single file:///dir. It is empty if
	// TENDER_ORIGIN is not set, for which RequireOrigin returns an error.
	Origin Targets `env:"ORIGIN"`

	// Origins are further origins, and Routes select the resources that come from them. Each route refers to an existing
	// origin, and each of Origins has a route.
	Origins Origins `env:"ORIGINS"`
	Routes  Routes  `env:"ROUTES"`

	// OriginProtocol is ProtocolAuto, ProtocolDelta or ProtocolSotW.
	OriginProtocol string `env:"ORIGIN_PROTOCOL, default=auto" oneof:"auto,delta,sotw"`

	// OriginAccess has the TLS settings and credentials for Origin. Each of Origins has its own.
	OriginAccess Access `env:",prefix=ORIGIN_"`

	// Listen has the addresses for xDS clients: host:port, or unix: and a path. RESTListen has those for clients that
	// poll over REST; it may be empty.
	Listen     Addresses `env:"LISTEN, default=:18000"`
	RESTListen Addresses `env:"REST_LISTEN" zero:"off"`

	// SocketMode has the permissions of Unix sockets, as an octal number. Only the owner and the group of the process may
	// use those of AdminListen.
	SocketMode string `env:"SOCKET_MODE, default=0660" oneof:"0600,0660,0666"`

	// TLS settings for clients. They apply to RESTListen and TLSListen, or to Listen if TLSListen is empty. If TLSCert is
	// empty, clients connect in plaintext.
	TLSListen   Addresses `env:"TLS_LISTEN" zero:"off"`
	TLSCert     Path      `env:"TLS_CERT"`
	TLSKey      Path      `env:"TLS_KEY"`
	TLSClientCA Path      `env:"TLS_CLIENT_CA"`

	// TLSTrustDomains are the trust domains that the SPIFFE IDs of clients may have; empty allows any.
	TLSTrustDomains TrustDomains `env:"TLS_TRUST_DOMAINS"`

	// Authz is the file of authorization rules; if empty, any client may present any Node. Secrets is SecretsMTLS,
	// SecretsLoopback or SecretsOff.
	Authz   Path   `env:"AUTHZ"`
	Secrets string `env:"SECRETS, default=mtls" oneof:"mtls,loopback,off"`

	// AdminListen has the addresses of the admin API: on loopback or unix:, or others if TLSClientCA and Authz are set.
	// ProbeListen has those for probes. Either may be empty.
	AdminListen Addresses `env:"ADMIN_LISTEN, default=127.0.0.1:18080" zero:"off"`
	ProbeListen Addresses `env:"PROBE_LISTEN" zero:"off"`

	// Peers are the admin addresses of the relays of the same tier: host:port, or dns:///host:port for all addresses of a
	// name. The certificate and key authenticate the relay to them. If PeersTLSCA is empty, the CAs of the system verify
	// peers. PeersTLSServerName is a name or a SPIFFE ID that the certificates of peers must have.
	Peers              PeerTargets `env:"PEERS" zero:"off"`
	PeersTLSCA         Path        `env:"PEERS_TLS_CA"`
	PeersTLSCert       Path        `env:"PEERS_TLS_CERT"`
	PeersTLSKey        Path        `env:"PEERS_TLS_KEY"`
	PeersTLSServerName ServerName  `env:"PEERS_TLS_SERVER_NAME"`

	// The Node that the relay presents to the origin.
	NodeID       Text     `env:"NODE_ID"`
	NodeCluster  Text     `env:"NODE_CLUSTER, default=tender"`
	NodeLocality Locality `env:"NODE_LOCALITY"`
	NodeMetadata Metadata `env:"NODE_METADATA"`

	// NodeGroupBy has the Node fields that define a node group. It is empty for "none": all clients are one group.
	NodeGroupBy NodeFields `env:"NODE_GROUP_BY, default=user_agent_name" zero:"none"`

	// Upstream subscriptions and removals. Resync is ResyncTrustVersions or ResyncFull. Types are full type URLs without
	// duplicates.
	Resync               string        `env:"RESYNC, default=trust_versions" oneof:"trust_versions,full"`
	Prewarm              WildcardTypes `env:"PREWARM"`
	OriginKeepalive      time.Duration `env:"ORIGIN_KEEPALIVE, default=5m30s" range:"10s,24h"`
	ColdWait             time.Duration `env:"COLD_WAIT, default=10s" range:"100ms,10m"`
	MassDeleteHold       time.Duration `env:"MASS_DELETE_HOLD, default=10m" range:"1s,24h"`
	HoldExplicitRemovals bool          `env:"HOLD_EXPLICIT_REMOVALS, default=off"`
	HoldGrowth           int           `env:"HOLD_GROWTH, default=10" range:"2,1000" zero:"off"`
	Required             Required      `env:"REQUIRED" zero:"off"`
	ReportRejects        bool          `env:"REPORT_REJECTS, default=off"`
	Linger               time.Duration `env:"LINGER, default=5m" range:"1s,24h"`

	// Validate is ValidateOff, ValidateWarn or ValidateHold. StaticClusters are patterns of names of clusters in the
	// bootstrap of clients.
	Validate       string   `env:"VALIDATE, default=warn" oneof:"warn,hold,off"`
	StaticClusters Patterns `env:"STATIC_CLUSTERS"`

	// SnapshotDir is the directory of snapshots, which survive a restart; empty disables snapshots. Snapshots that are
	// older than MaxSnapshotAge are not restored. SnapshotSensitive includes resources with sensitive fields.
	SnapshotDir       Path          `env:"SNAPSHOT_DIR" zero:"off"`
	MaxSnapshotAge    time.Duration `env:"MAX_SNAPSHOT_AGE, default=24h" range:"1m,8760h"`
	SnapshotSensitive bool          `env:"SNAPSHOT_SENSITIVE, default=off"`

	// Rollout has the stages in which changes reach clients. If it and CheckEnvoy are empty, changes reach all clients at
	// once, and the other fields have no effect. RolloutTypes are full type URLs without duplicates. RolloutCheck is a URL, or empty. It may
	// contain credentials, so log it only in the form that Table returns.
	Rollout           rollout.Stages `env:"ROLLOUT" zero:"off"`
	RolloutTypes      StagedTypes    `env:"ROLLOUT_TYPES, default=cds,lds,rds,srds,vhds,ecds,rtds"`
	RolloutRejections int            `env:"ROLLOUT_REJECTIONS, default=0" range:"0,1000000"`
	RolloutCheck      CheckURL       `env:"ROLLOUT_CHECK" zero:"off" secret:"true"`

	// FollowHalts halts what a relay above has halted; otherwise that is only shown.
	FollowHalts bool `env:"FOLLOW_HALTS, default=off"`

	// CheckEnvoy is the path of an Envoy that receives changes before any client; empty for none.
	CheckEnvoy Path `env:"CHECK_ENVOY" zero:"off"`

	// Versions and responses for clients. DeltaVersions is VersionsOfContent or VersionsOfOrigin.
	DeltaVersions string `env:"DELTA_VERSIONS, default=origin" oneof:"origin,content"`
	EDSAfterCDS   bool   `env:"EDS_AFTER_CDS, default=on"`

	// Compression is CompressionOff or CompressionGzip.
	Compression string `env:"COMPRESSION, default=off" oneof:"off,gzip"`

	// LRS is LRSOff, LRSPassthrough or LRSAggregate. It is LRSOff if the primary origin is a directory.
	LRS string `env:"LRS, default=off" oneof:"off,passthrough,aggregate"`

	// DynamicParameters allows several variants of a resource name. A client receives the variant whose constraints match
	// its dynamic parameters.
	DynamicParameters bool `env:"DYNAMIC_PARAMETERS, default=off"`

	// Limits. All are positive unless noted otherwise.
	MaxConnections           int           `env:"MAX_CONNECTIONS, default=50000" range:"1,10000000"`
	MaxConnectionsPerAddress int           `env:"MAX_CONNECTIONS_PER_ADDRESS, default=10000" range:"1,10000000"`
	MaxStreams               int           `env:"MAX_STREAMS, default=50000" range:"1,10000000"`
	MaxNames                 int           `env:"MAX_NAMES, default=100000" range:"1,100000000"`
	MaxRequestBytes          Size          `env:"MAX_REQUEST_BYTES, default=16MiB" range:"4KiB,1GiB"`
	MaxOriginResponseBytes   Size          `env:"MAX_ORIGIN_RESPONSE_BYTES, default=256MiB" range:"1MiB,1GiB"`
	MaxResourceBytes         Size          `env:"MAX_RESOURCE_BYTES" range:"1KiB,1GiB" zero:"off"` // 0 for no limit
	MaxGroups                int           `env:"MAX_GROUPS, default=256" range:"1,100000"`
	MetricsGroups            int           `env:"METRICS_GROUPS, default=50" range:"0,100000"`
	MaxGroupsPerClient       int           `env:"MAX_GROUPS_PER_CLIENT, default=16" range:"1,100000"`
	MaxOriginNames           int           `env:"MAX_ORIGIN_NAMES, default=1000000" range:"1,100000000"`
	MaxRequestRate           int           `env:"MAX_REQUEST_RATE, default=100" range:"1,1000000"`
	FirstRequestTimeout      time.Duration `env:"FIRST_REQUEST_TIMEOUT, default=10s" range:"100ms,10m"`
	AckWait                  time.Duration `env:"ACK_WAIT, default=5s" range:"100ms,10m"`
	MinPushInterval          PushIntervals `env:"MIN_PUSH_INTERVAL" zero:"off"`
	SendTimeout              time.Duration `env:"SEND_TIMEOUT, default=1m" range:"1s,1h"`
	Drain                    time.Duration `env:"DRAIN, default=45s" range:"1s,1h"`

	// ConnectionAge is the maximum age of client connections; zero for no limit.
	ConnectionAge time.Duration `env:"CONNECTION_AGE, default=30m" range:"10s,24h" zero:"off"`

	// Transport is TransportGRPC or TransportADS.
	Transport string `env:"TRANSPORT, default=grpc" oneof:"grpc,ads"`

	// LogFormat is "json" or "text". If empty, the caller chooses: text for a terminal, else json.
	LogLevel  slog.Level `env:"LOG_LEVEL, default=info" oneof:"debug,info,warn,error"`
	LogFormat string     `env:"LOG_FORMAT" oneof:"json,text"`

	// TraceDeliveries is the number of deliveries of a traced change of which one is traced; zero traces none. TraceSlow
	// is the duration from which a delivery is traced because it is slow; zero disables this.
	TraceDeliveries int           `env:"TRACE_DELIVERIES, default=100" range:"0,1000000"`
	TraceSlow       time.Duration `env:"TRACE_SLOW, default=1s" range:"1ms,1h" zero:"off"`

	// History is the number of changes that are kept per resource; zero keeps none.
	History int `env:"HISTORY, default=10" range:"1,100" zero:"off"`

	// Debug serves profiles of the process at /debug/pprof/ on the admin addresses.
	Debug bool `env:"DEBUG, default=off"`

	// fromEnv has the variables with a valid value in the environment. rejected has the invalid values by variable.
	// missing has the variables that others require. unknown has errors of TENDER_ variables that do not exist.
	fromEnv  map[string]bool
	rejected map[string]string
	missing  map[string]bool
	unknown  []*Error

	// incomplete also has the values that were rejected only because they require others, for CheckFiles. It is nil if
	// there are none.
	incomplete *Config
}

// Values of [Config.Validate].
const (
	ValidateWarn = "warn" // findings are reported
	ValidateHold = "hold" // findings are reported, and changes that break clients are held
	ValidateOff  = "off"  // resources are not checked
)

// Values of [Config.Resync].
const (
	ResyncTrustVersions = "trust_versions" // send the versions of cached resources to the origin
	ResyncFull          = "full"           // request all resources again
)

// Values of [Config.DeltaVersions].
const (
	VersionsOfContent = "content" // versions are hashes of the content
	VersionsOfOrigin  = "origin"  // versions are those of the origin
)

// Values of [Config.OriginProtocol].
const (
	ProtocolAuto  = "auto"  // Delta, or SotW if the origin does not implement Delta
	ProtocolDelta = "delta" // Delta only
	ProtocolSotW  = "sotw"  // SotW only
)

// Values of [Config.Compression].
const (
	CompressionOff  = "off"  // responses are not compressed
	CompressionGzip = "gzip" // responses to clients that accept gzip are compressed
)

// Values of [Config.Transport].
const (
	TransportGRPC = "grpc" // the server transport of grpc-go
	TransportADS  = "ads"  // package downstream/transport
)

// Values of [Config.LRS].
const (
	LRSOff         = "off"         // load reports are refused
	LRSPassthrough = "passthrough" // one stream to the origin per client stream
	LRSAggregate   = "aggregate"   // one stream to the origin per node group, with the sums of its clients
)

// Values of [Config.Secrets].
const (
	SecretsMTLS     = access.SecretsMTLS
	SecretsLoopback = access.SecretsLoopback
	SecretsOff      = access.SecretsOff
)

// Load reads the variables with the prefix TENDER_ from environ, whose entries have the form key=value, as in
// [os.Environ]. An empty or blank variable counts as unset.
//
// The error joins one [Error] per invalid variable, in the order of deploy/docs/configuration.md. The Config is complete
// even then: each invalid value is replaced by its default, so that tender check can show the result.
func Load(environ []string) (Config, error) {
	env, refused := tenderVariables(environ), refusals{}
	cfg := decode(env, refused)
	r := rules{Config: &cfg, env: env, fields: cfg.fields(), undecodable: maps.Clone(refused)}
	r.check()
	unmet := r.unmet()
	if len(r.conflicting) > 0 {
		maps.Copy(refused, r.conflicting)
		cfg = decode(env, refused)
	}
	if len(unmet) > 0 {
		incomplete := cfg
		incomplete.setAccess()
		maps.Copy(refused, unmet)
		cfg = decode(env, refused)
		cfg.incomplete = &incomplete
	}
	cfg.NodeID = cmp.Or(cfg.NodeID, defaultNodeID())
	cfg.setAccess()
	all := variablesOf(cfg.Origins)
	errs := cfg.record(all, env, refused)
	cfg.missing = unmet.lacking()
	cfg.unknown = explainUnknowns(env, all, refused)
	for _, err := range cfg.unknown {
		errs = append(errs, err)
	}
	return cfg, errors.Join(errs...)
}

// fields returns the fields by the name of their variable, without TENDER_.
func (c *Config) fields() map[string]reflect.Value {
	fields := map[string]reflect.Value{}
	visit := func(name string, _ []string, _ reflect.StructField, value reflect.Value) { fields[name] = value }
	walk(reflect.ValueOf(c).Elem(), "", nil, visit)
	for i := range c.Origins {
		walk(reflect.ValueOf(&c.Origins[i].Access).Elem(), accessPrefix(c.Origins[i].Name), nil, visit)
	}
	return fields
}

// record records the source of the values, and returns an error for each invalid value.
func (c *Config) record(all []variable, env map[string]string, refused refusals) (errs []error) {
	c.fromEnv, c.rejected = map[string]bool{}, map[string]string{}
	for i := range all {
		v := &all[i]
		if refused.has(v.name) {
			errs = append(errs, v.invalid(env[v.name], refused[v.name]...))
			c.rejected[v.name] = env[v.name]
		} else if strings.TrimSpace(env[v.name]) != "" {
			c.fromEnv[v.name] = true
		}
	}
	return errs
}

// RequireOrigin returns an error if TENDER_ORIGIN is not set. It returns nil for an invalid value, for which Load has
// returned an error.
func (c Config) RequireOrigin() error {
	if _, refused := c.rejected["ORIGIN"]; len(c.Origin) > 0 || refused {
		return nil
	}
	return find(variables, "ORIGIN").invalid("", refusal{cause: errors.New("it is required")})
}

// tenderVariables returns the TENDER_ variables of environ, by name without the prefix. The first of several entries
// for a name counts, as for [os.Getenv].
func tenderVariables(environ []string) map[string]string {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		name, hasPrefix := strings.CutPrefix(name, prefix)
		if _, duplicate := env[name]; !ok || !hasPrefix || duplicate {
			continue
		}
		env[name] = value
	}
	return env
}

// defaultNodeID returns tender/ and the host name, so that operators of an origin can distinguish replicas.
func defaultNodeID() Text {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return Text("tender/" + host)
}
