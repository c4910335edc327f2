package config

import (
	"cmp"
	"errors"
	"fmt"
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

// prefix starts the name of every variable of ours.
const prefix = "TENDER_"

// A Config is the configuration of a relay from the environment. [Load] fills every field; Load(nil) returns the
// defaults. The table of variables (table.go) has the meaning, default and bounds of each field, under the name in the
// field's tag.
type Config struct {
	// Origin lists the targets of the origin in failover order, or holds one
	// file:///dir. It is empty when TENDER_ORIGIN is not set: RequireOrigin
	// makes that an error.
	Origin []string `env:"ORIGIN"`

	// Origins are further origins, and Routes say what goes to them. Every route
	// leads to an origin that exists, and every one of Origins has a route.
	Origins        []NamedOrigin `env:"ORIGINS"`
	Routes         []Route       `env:"ROUTES"`
	OriginProtocol string        `env:"ORIGIN_PROTOCOL"` // ProtocolAuto, ProtocolDelta or ProtocolSotW

	// OriginAccess is how the origin of TENDER_ORIGIN is spoken to. Each of Origins has its own.
	OriginAccess Access `env:"ORIGIN_"`

	// Listen lists addresses for clients: host:port, or unix: and a path.
	// RESTListen lists those for clients that poll by REST; it may be empty.
	Listen     []string `env:"LISTEN"`
	RESTListen []string `env:"REST_LISTEN"`

	// TLS towards clients, on RESTListen and on TLSListen, or on Listen if TLSListen is empty. Without
	// TLSCert there is none. TLSMin is "1.2" or "1.3".
	TLSListen   []string `env:"TLS_LISTEN"`
	TLSCert     string   `env:"TLS_CERT"`
	TLSKey      string   `env:"TLS_KEY"`
	TLSClientCA string   `env:"TLS_CLIENT_CA"`
	TLSMin      string   `env:"TLS_MIN"`

	// TLSTrustDomains are the only ones that clients' SPIFFE IDs may be of; empty if they may be of any.
	TLSTrustDomains []TrustDomain `env:"TLS_TRUST_DOMAINS"`

	// Authz is the file of rules that say who may be whom; empty if everybody may be anybody.
	// Secrets is SecretsMTLS, SecretsLoopback or SecretsOff.
	Authz   string `env:"AUTHZ"`
	Secrets string `env:"SECRETS"`

	// AdminListen lists addresses for operators: on loopback, unix:, or with TLSClientCA and
	// Authz others. ProbeListen lists those for probes. Either may be empty.
	AdminListen []string `env:"ADMIN_LISTEN"`
	ProbeListen []string `env:"PROBE_LISTEN"`

	// Peers are the admin addresses of the relays of the same tier: host:port, or dns:///host:port for all addresses of a
	// name. The files are for connections to them: without PeersCA, the system's CAs verify peers. PeersServerName is a
	// name or a SPIFFE ID that their certificates must have.
	Peers           []string `env:"PEERS"`
	PeersCA         string   `env:"PEERS_TLS_CA"`
	PeersCert       string   `env:"PEERS_TLS_CERT"`
	PeersKey        string   `env:"PEERS_TLS_KEY"`
	PeersServerName string   `env:"PEERS_TLS_SERVER_NAME"`

	// The Node that the relay presents to the origin.
	NodeID       string   `env:"NODE_ID"`
	NodeCluster  string   `env:"NODE_CLUSTER"`
	NodeLocality Locality `env:"NODE_LOCALITY"`
	NodeMetadata Metadata `env:"NODE_METADATA"`

	// NodeGroupBy lists the Node fields that make a node group. It is empty
	// for "none": one group for all.
	NodeGroupBy []string `env:"NODE_GROUP_BY"`

	// What the relay asks of the origin. Types are full type URLs, each once.
	Resync          string        `env:"RESYNC"` // ResyncTrustVersions or ResyncFull
	Prewarm         []string      `env:"PREWARM"`
	OriginKeepalive time.Duration `env:"ORIGIN_KEEPALIVE"`
	ColdWait        time.Duration `env:"COLD_WAIT"`
	MassDeleteHold  time.Duration `env:"MASS_DELETE_HOLD"`
	HoldExplicit    bool          `env:"HOLD_EXPLICIT_REMOVALS"`
	Linger          time.Duration `env:"LINGER"`
	WildcardLinger  time.Duration `env:"WILDCARD_LINGER"`
	MaxLingering    int           `env:"MAX_UNUSED_NAMES"`

	// Validate is ValidateOff, ValidateWarn or ValidateHold. StaticClusters are patterns of names of clusters that clients have from
	// their bootstrap.
	Validate       string   `env:"VALIDATE"`
	StaticClusters []string `env:"STATIC_CLUSTERS"`

	// SnapshotDir is where views survive a restart; empty if they do not. Snapshots may
	// be MaxSnapshotAge old. SnapshotSensitive puts in what may hold secrets.
	SnapshotDir       string        `env:"SNAPSHOT_DIR"`
	MaxSnapshotAge    time.Duration `env:"MAX_SNAPSHOT_AGE"`
	SnapshotSensitive bool          `env:"SNAPSHOT_SENSITIVE"`

	// Rollout are the stages in which changes reach clients; none if changes reach all clients at once, and then the rest is of
	// no effect. RolloutTypes are full type URLs, each once. RolloutCheck is a URL, empty if nothing is asked; it may hold
	// credentials, so log it only as Table shows it.
	Rollout         rollout.Stages `env:"ROLLOUT"`
	RolloutTypes    []string       `env:"ROLLOUT_TYPES"`
	RolloutRefusals int            `env:"ROLLOUT_REFUSALS"`
	RolloutCheck    string         `env:"ROLLOUT_CHECK"`
	RolloutQuery    string         `env:"ROLLOUT_QUERY"`

	// What the relay says to its clients.
	VersionSource  string   `env:"SOTW_VERSIONS"`  // VersionsOfContent or VersionsOfOrigin
	DeltaVersions  string   `env:"DELTA_VERSIONS"` // VersionsOfContent or VersionsOfOrigin
	FullStateTypes []string `env:"FULL_STATE_TYPES"`
	WildcardTypes  []string `env:"WILDCARD_TYPES"`
	EDSAfterCDS    bool     `env:"EDS_AFTER_CDS"`

	// LRS says what becomes of load reports: LRSOff, LRSPassthrough or LRSAggregate.
	// It is LRSOff for an origin that is a directory.
	LRS string `env:"LRS"`

	// DynamicParameters lets one name have several variants, of which each client
	// gets the one whose constraints its parameters meet.
	DynamicParameters bool `env:"DYNAMIC_PARAMETERS"`

	// Limits. All are above zero.
	MaxConnections          int           `env:"MAX_CONNECTIONS"`
	MaxPeerConnections      int           `env:"MAX_CONNECTIONS_PER_ADDRESS"`
	MaxUnreadBytes          Size          `env:"MAX_BUFFERED_REQUEST_BYTES"`
	MaxStreams              int           `env:"MAX_STREAMS"`
	PeerIPv6Prefix          int           `env:"CLIENT_IPV6_PREFIX"` // bits
	MaxStreamsPerConnection int           `env:"MAX_STREAMS_PER_CONNECTION"`
	MaxNames                int           `env:"MAX_NAMES"`
	MaxGlobs                int           `env:"MAX_GLOBS"`
	MaxGroupGlobs           int           `env:"MAX_GROUP_GLOBS"`
	MaxNameBytes            Size          `env:"MAX_NAME_BYTES"`
	MaxNodeBytes            Size          `env:"MAX_NODE_BYTES"`
	MaxRequestBytes         Size          `env:"MAX_REQUEST_BYTES"`
	MaxOriginResponseBytes  Size          `env:"MAX_ORIGIN_RESPONSE_BYTES"`
	MaxResourceBytes        Size          `env:"MAX_RESOURCE_BYTES"` // 0 for any size
	MaxTypes                int           `env:"MAX_TYPES"`
	MaxGroups               int           `env:"MAX_GROUPS"`
	MetricsGroups           int           `env:"METRICS_GROUPS"`
	MaxPeerGroups           int           `env:"MAX_GROUPS_PER_CLIENT"`
	MaxOriginNames          int           `env:"MAX_ORIGIN_NAMES"`
	OriginStreamRate        int           `env:"ORIGIN_STREAM_RATE"` // a minute
	MaxRequestRate          int           `env:"MAX_REQUEST_RATE"`
	RequestCompression      string        `env:"REQUEST_COMPRESSION"` // CompressionOff or CompressionGzip
	MaxFrameRate            int           `env:"MAX_FRAME_RATE"`
	FirstRequestTimeout     time.Duration `env:"FIRST_REQUEST_TIMEOUT"`
	AckWait                 time.Duration `env:"ACK_WAIT"`
	MinPushInterval         PushIntervals `env:"MIN_PUSH_INTERVAL"`
	SendStall               time.Duration `env:"SEND_TIMEOUT"`
	Drain                   time.Duration `env:"DRAIN"`

	// ConnectionAge is zero if no connection is too old.
	ConnectionAge time.Duration `env:"CONNECTION_AGE"`

	// LogFormat is "json" or "text"; empty means json, or text where the log
	// goes to a terminal, which only the caller can know.
	LogLevel  slog.Level `env:"LOG_LEVEL"`
	LogFormat string     `env:"LOG_FORMAT"`

	// TraceDeliveries is of how many deliveries of a change that is traced one is; zero is none. TraceSlow
	// is how long one takes at least that is traced for that; zero traces none for it.
	TraceDeliveries int           `env:"TRACE_DELIVERIES"`
	TraceSlow       time.Duration `env:"TRACE_SLOW"`

	// History is how many changes of each resource are remembered, 0 if none; of all, as long as they
	// have at most MaxHistoryBytes.
	History         int  `env:"HISTORY"`
	MaxHistoryBytes Size `env:"MAX_HISTORY_BYTES"`

	// MaxGenerationBytes is how many bytes of earlier configurations are kept for rollbacks; 0 keeps none.
	MaxGenerationBytes Size `env:"MAX_GENERATION_BYTES"`

	// Debug has operators ask for profiles of the process.
	Debug bool `env:"DEBUG"`

	// fromEnv holds the variables that the environment set and Load took;
	// refused those whose value it did not take, with that value.
	fromEnv  map[string]bool
	rejected map[string]string

	// formerNames holds the former names under which variables are set, by their names today.
	formerNames map[string]string
}

// Values of [Config.Validate].
const (
	ValidateWarn = "warn" // findings are shown
	ValidateHold = "hold" // and changes that break clients are held
	ValidateOff  = "off"  // resources are not checked
)

// Values of [Config.Resync].
const (
	ResyncTrustVersions = "trust_versions" // tell the origin which versions we hold
	ResyncFull          = "full"           // ask for everything again
)

// Values of [Config.VersionSource] and [Config.DeltaVersions].
const (
	VersionsOfContent = "content" // versions are made from the bytes
	VersionsOfOrigin  = "origin"  // versions are the origin's own
)

// Values of [Config.OriginProtocol].
const (
	ProtocolAuto  = "auto"  // Delta, or SotW where the origin has no Delta
	ProtocolDelta = "delta" // Delta only
	ProtocolSotW  = "sotw"  // SotW only
)

// Values of [Config.LRS].
const (
	LRSOff         = "off"         // load reports are refused
	LRSPassthrough = "passthrough" // one stream to the origin for each client's
	LRSAggregate   = "aggregate"   // one stream to the origin for each node group, with sums
)

// Values of [Config.RequestCompression].
const (
	CompressionOff  = "off"  // requests that are compressed are refused
	CompressionGzip = "gzip" // they are understood
)

// Values of [Config.Secrets].
const (
	SecretsMTLS     = access.SecretsMTLS
	SecretsLoopback = access.SecretsLoopback
	SecretsOff      = access.SecretsOff
)

// Load reads the variables that start with TENDER_ from environ, whose
// entries have the form of os.Environ. An empty variable counts as unset, and so does one of blanks.
//
// The error joins one line for each thing that is wrong, in the order of the
// table of variables. The Config is complete even then: a refused value is
// replaced by the default, so that tender check can show what would apply.
func Load(environ []string) (Config, error) {
	env := tenderVariables(environ)
	cfg := Config{fromEnv: map[string]bool{}, rejected: map[string]string{}, formerNames: map[string]string{}}
	wrong := cfg.readFormerNames(env)
	cfg.set(variables, env, wrong)
	cfg.NodeID = cmp.Or(cfg.NodeID, defaultNodeID())
	rows := append(slices.Clip(variables), cfg.accessRows()...)
	cfg.set(rows[len(variables):], env, wrong)
	maps.Copy(wrong, cfg.conflicts(wrong))
	errs := append(cfg.recordInvalid(rows, env, wrong), explainUnknowns(env, rows, wrong)...)
	return cfg, errors.Join(errs...)
}

// set sets the fields of the rows to their defaults, and then to the values of env. It adds an error to wrong for each
// value that is not allowed.
func (c *Config) set(rows []spec, env map[string]string, wrong map[string]error) {
	fields := c.fields()
	for i := range rows {
		v := &rows[i]
		if v.defaultValue != "" {
			value, _ := v.parse(v.defaultValue) // a test holds that each default is allowed
			fields[v.name].Set(reflect.ValueOf(value))
		}
		raw := strings.TrimSpace(env[v.name])
		if raw == "" || wrong[v.name] != nil {
			continue
		}
		value, err := v.parse(raw)
		if err != nil {
			wrong[v.name] = err
			continue
		}
		fields[v.name].Set(reflect.ValueOf(value))
		c.fromEnv[v.name] = true
	}
}

// fields returns the fields by variable.
func (c *Config) fields() map[string]reflect.Value {
	fields := map[string]reflect.Value{}
	addFields(fields, "", reflect.ValueOf(c).Elem())
	for i := range c.Origins {
		o := &c.Origins[i]
		addFields(fields, accessPrefix(o.Name), reflect.ValueOf(&o.Access).Elem())
	}
	return fields
}

// addFields adds the fields of a struct, whose variables begin with prefix. A tag that ends with "_" is the prefix of
// the variables of a struct.
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

// recordInvalid records the values that are wrong, and returns an error for each.
func (c *Config) recordInvalid(rows []spec, env map[string]string, wrong map[string]error) (errs []error) {
	for i := range rows {
		v := &rows[i]
		if cause := wrong[v.name]; cause != nil {
			if former := c.formerNames[v.name]; former != "" {
				cause = fmt.Errorf("%w (set as %s%s)", cause, prefix, former)
			}
			errs = append(errs, v.invalid(env[v.name], cause))
			c.rejected[v.name] = env[v.name]
		}
	}
	return errs
}

// RequireOrigin returns an error if TENDER_ORIGIN is not set. A value that
// Load refused was reported there and is not reported again.
func (c Config) RequireOrigin() error {
	if _, refused := c.rejected["ORIGIN"]; len(c.Origin) > 0 || refused {
		return nil
	}
	v := variable("ORIGIN")
	return v.invalid("", errors.New("it is required"))
}

// tenderVariables returns what environ sets of ours, by name without prefix.
// The first of several entries for a name counts, as for os.Getenv.
func tenderVariables(environ []string) map[string]string {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		name, ours := strings.CutPrefix(name, prefix)
		if _, again := env[name]; !ok || !ours || again {
			continue
		}
		env[name] = value
	}
	return env
}

// defaultNodeID is tender/ and the host's name, so that an origin's operator
// can tell replicas apart.
func defaultNodeID() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return "tender/" + host
}
