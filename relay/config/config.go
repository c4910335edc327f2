package config

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/access"
	"github.com/xdstender/tender/relay/rollout"
)

// prefix is the prefix of all variables of Tender.
const prefix = "TENDER_"

// A Config is the configuration of a relay. [Load] sets every field from the environment; Load(nil) returns the
// defaults. The table of variables (table.go) has the meaning, default and bounds of each field. The tag of a field is
// the name of its variable without TENDER_.
type Config struct {
	// Origin has the targets of the primary origin in failover order, or a single file:///dir. It is empty if
	// TENDER_ORIGIN is not set, for which RequireOrigin returns an error.
	Origin []string `env:"ORIGIN"`

	// Origins are further origins, and Routes select the resources that come from them. Each route refers to an existing
	// origin, and each of Origins has a route.
	Origins        []NamedOrigin `env:"ORIGINS"`
	Routes         []Route       `env:"ROUTES"`
	OriginProtocol string        `env:"ORIGIN_PROTOCOL"` // ProtocolAuto, ProtocolDelta or ProtocolSotW

	// OriginAccess has the TLS settings and credentials for Origin. Each of Origins has its own.
	OriginAccess Access `env:"ORIGIN_"`

	// Listen has the addresses for xDS clients: host:port, or unix: and a path. RESTListen has those for clients that
	// poll over REST; it may be empty.
	Listen     []string `env:"LISTEN"`
	RESTListen []string `env:"REST_LISTEN"`

	// TLS settings for clients. They apply to RESTListen and TLSListen, or to Listen if TLSListen is empty. If TLSCert is
	// empty, clients connect in plaintext.
	TLSListen   []string `env:"TLS_LISTEN"`
	TLSCert     string   `env:"TLS_CERT"`
	TLSKey      string   `env:"TLS_KEY"`
	TLSClientCA string   `env:"TLS_CLIENT_CA"`

	// TLSTrustDomains are the trust domains that the SPIFFE IDs of clients may have; empty allows any.
	TLSTrustDomains []TrustDomain `env:"TLS_TRUST_DOMAINS"`

	// Authz is the file of authorization rules; if empty, any client may present any Node. Secrets is SecretsMTLS,
	// SecretsLoopback or SecretsOff.
	Authz   string `env:"AUTHZ"`
	Secrets string `env:"SECRETS"`

	// AdminListen has the addresses of the admin API: on loopback or unix:, or others if TLSClientCA and Authz are set.
	// ProbeListen has those for probes. Either may be empty.
	AdminListen []string `env:"ADMIN_LISTEN"`
	ProbeListen []string `env:"PROBE_LISTEN"`

	// Peers are the admin addresses of the relays of the same tier: host:port, or dns:///host:port for all addresses of a
	// name. The certificate and key authenticate the relay to them. If PeersTLSCA is empty, the CAs of the system verify
	// peers. PeersTLSServerName is a name or a SPIFFE ID that the certificates of peers must have.
	Peers              []string `env:"PEERS"`
	PeersTLSCA         string   `env:"PEERS_TLS_CA"`
	PeersTLSCert       string   `env:"PEERS_TLS_CERT"`
	PeersTLSKey        string   `env:"PEERS_TLS_KEY"`
	PeersTLSServerName string   `env:"PEERS_TLS_SERVER_NAME"`

	// The Node that the relay presents to the origin.
	NodeID       string   `env:"NODE_ID"`
	NodeCluster  string   `env:"NODE_CLUSTER"`
	NodeLocality Locality `env:"NODE_LOCALITY"`
	NodeMetadata Metadata `env:"NODE_METADATA"`

	// NodeGroupBy has the Node fields that define a node group. It is empty for "none": all clients are one group.
	NodeGroupBy []string `env:"NODE_GROUP_BY"`

	// Upstream subscriptions and removals. Types are full type URLs without duplicates.
	Resync               string        `env:"RESYNC"` // ResyncTrustVersions or ResyncFull
	Prewarm              []string      `env:"PREWARM"`
	OriginKeepalive      time.Duration `env:"ORIGIN_KEEPALIVE"`
	ColdWait             time.Duration `env:"COLD_WAIT"`
	MassDeleteHold       time.Duration `env:"MASS_DELETE_HOLD"`
	HoldExplicitRemovals bool          `env:"HOLD_EXPLICIT_REMOVALS"`
	Linger               time.Duration `env:"LINGER"`

	// Validate is ValidateOff, ValidateWarn or ValidateHold. StaticClusters are patterns of names of clusters in the
	// bootstrap of clients.
	Validate       string   `env:"VALIDATE"`
	StaticClusters []string `env:"STATIC_CLUSTERS"`

	// SnapshotDir is the directory of snapshots, which survive a restart; empty disables snapshots. Snapshots that are
	// older than MaxSnapshotAge are not restored. SnapshotSensitive includes resources with sensitive fields.
	SnapshotDir       string        `env:"SNAPSHOT_DIR"`
	MaxSnapshotAge    time.Duration `env:"MAX_SNAPSHOT_AGE"`
	SnapshotSensitive bool          `env:"SNAPSHOT_SENSITIVE"`

	// Rollout has the stages in which changes reach clients. If empty, changes reach all clients at once, and the other
	// fields have no effect. RolloutTypes are full type URLs without duplicates. RolloutCheck is a URL, or empty. It may
	// contain credentials, so log it only in the form that Table returns.
	Rollout         rollout.Stages `env:"ROLLOUT"`
	RolloutTypes    []string       `env:"ROLLOUT_TYPES"`
	RolloutRefusals int            `env:"ROLLOUT_REFUSALS"`
	RolloutCheck    string         `env:"ROLLOUT_CHECK"`

	// Versions and responses for clients.
	DeltaVersions string `env:"DELTA_VERSIONS"` // VersionsOfContent or VersionsOfOrigin
	EDSAfterCDS   bool   `env:"EDS_AFTER_CDS"`

	// LRS is LRSOff, LRSPassthrough or LRSAggregate. It is LRSOff if the primary origin is a directory.
	LRS string `env:"LRS"`

	// DynamicParameters allows several variants of a resource name. A client receives the variant whose constraints match
	// its dynamic parameters.
	DynamicParameters bool `env:"DYNAMIC_PARAMETERS"`

	// Limits. All are positive unless noted otherwise.
	MaxConnections           int           `env:"MAX_CONNECTIONS"`
	MaxConnectionsPerAddress int           `env:"MAX_CONNECTIONS_PER_ADDRESS"`
	MaxStreams               int           `env:"MAX_STREAMS"`
	MaxNames                 int           `env:"MAX_NAMES"`
	MaxRequestBytes          Size          `env:"MAX_REQUEST_BYTES"`
	MaxOriginResponseBytes   Size          `env:"MAX_ORIGIN_RESPONSE_BYTES"`
	MaxResourceBytes         Size          `env:"MAX_RESOURCE_BYTES"` // 0 for no limit
	MaxGroups                int           `env:"MAX_GROUPS"`
	MetricsGroups            int           `env:"METRICS_GROUPS"`
	MaxGroupsPerClient       int           `env:"MAX_GROUPS_PER_CLIENT"`
	MaxOriginNames           int           `env:"MAX_ORIGIN_NAMES"`
	MaxRequestRate           int           `env:"MAX_REQUEST_RATE"`
	FirstRequestTimeout      time.Duration `env:"FIRST_REQUEST_TIMEOUT"`
	AckWait                  time.Duration `env:"ACK_WAIT"`
	MinPushInterval          PushIntervals `env:"MIN_PUSH_INTERVAL"`
	SendTimeout              time.Duration `env:"SEND_TIMEOUT"`
	Drain                    time.Duration `env:"DRAIN"`

	// ConnectionAge is the maximum age of client connections; zero for no limit.
	ConnectionAge time.Duration `env:"CONNECTION_AGE"`

	// LogFormat is "json" or "text". If empty, the caller chooses: text for a terminal, else json.
	LogLevel  slog.Level `env:"LOG_LEVEL"`
	LogFormat string     `env:"LOG_FORMAT"`

	// TraceDeliveries is the number of deliveries of a traced change of which one is traced; zero traces none. TraceSlow
	// is the duration from which a delivery is traced because it is slow; zero disables this.
	TraceDeliveries int           `env:"TRACE_DELIVERIES"`
	TraceSlow       time.Duration `env:"TRACE_SLOW"`

	// History is the number of changes that are kept per resource; zero keeps none.
	History int `env:"HISTORY"`

	// Debug serves profiles of the process at /debug/pprof/ on the admin addresses.
	Debug bool `env:"DEBUG"`

	// fromEnv has the variables with a valid value in the environment. rejected has the invalid values by variable.
	fromEnv  map[string]bool
	rejected map[string]string
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

// Values of [Config.LRS].
const (
	LRSOff         = "off"         // load reports are rejected
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
// The error joins one error per invalid variable, in the order of the table of variables. The Config is complete even
// then: each invalid value is replaced by its default, so that tender check can show the result.
func Load(environ []string) (Config, error) {
	env := tenderVariables(environ)
	cfg := Config{fromEnv: map[string]bool{}, rejected: map[string]string{}}
	invalid := map[string]error{}
	cfg.set(variables, env, invalid)
	cfg.NodeID = cmp.Or(cfg.NodeID, defaultNodeID())
	rows := append(slices.Clip(variables), cfg.accessRows()...)
	cfg.set(rows[len(variables):], env, invalid)
	maps.Copy(invalid, cfg.conflicts(invalid))
	errs := append(cfg.recordInvalid(rows, env, invalid), explainUnknowns(env, rows, invalid)...)
	return cfg, errors.Join(errs...)
}

// set sets the fields of rows to their defaults, and then to the values in env. It adds an error to invalid for each
// invalid value.
func (c *Config) set(rows []spec, env map[string]string, invalid map[string]error) {
	fields := c.fields()
	for i := range rows {
		v := &rows[i]
		if v.defaultValue != "" {
			value, _ := v.parse(v.defaultValue) // cannot fail: a test parses all defaults
			fields[v.name].Set(reflect.ValueOf(value))
		}
		raw := strings.TrimSpace(env[v.name])
		if raw == "" {
			continue
		}
		value, err := v.parse(raw)
		if err != nil {
			invalid[v.name] = err
			continue
		}
		fields[v.name].Set(reflect.ValueOf(value))
		c.fromEnv[v.name] = true
	}
}

// fields returns the fields by the name of their variable, without TENDER_.
func (c *Config) fields() map[string]reflect.Value {
	fields := map[string]reflect.Value{}
	addFields(fields, "", reflect.ValueOf(c).Elem())
	for i := range c.Origins {
		o := &c.Origins[i]
		addFields(fields, accessPrefix(o.Name), reflect.ValueOf(&o.Access).Elem())
	}
	return fields
}

// addFields adds the fields of a struct whose variables have a prefix. A tag that ends with "_" is the prefix of the
// variables of a nested struct.
func addFields(fields map[string]reflect.Value, prefix string, of reflect.Value) {
	for field, value := range of.Fields() {
		switch name := field.Tag.Get("env"); {
		case strings.HasSuffix(name, "_"):
			addFields(fields, prefix+name, value)
		case name != "":
			fields[prefix+name] = value
		}
	}
}

// recordInvalid records the invalid values, and returns an error for each.
func (c *Config) recordInvalid(rows []spec, env map[string]string, invalid map[string]error) (errs []error) {
	for i := range rows {
		v := &rows[i]
		if cause := invalid[v.name]; cause != nil {
			errs = append(errs, v.invalid(env[v.name], cause))
			c.rejected[v.name] = env[v.name]
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
	v := variable("ORIGIN")
	return v.invalid("", errors.New("it is required"))
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
func defaultNodeID() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return "tender/" + host
}
