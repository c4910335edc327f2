package config

import (
	"fmt"
	"time"
)

// A spec is one variable: the one place where its name, its default, what is
// allowed and what it means are written. LoadConfig, tender check and the
// table of deploy/docs/configuration.md are made from it.
type spec struct {
	name    string // without the prefix
	preset  string // the default, in the form that parse returns; may be empty
	shown   string // the default in words, where preset cannot say it
	empty   string // the word for nothing, where that is not the default
	allowed string
	meaning string
	secret  bool // no error quotes its value

	// parse returns a value in the form that the field's decoder reads.
	parse func(raw string) (string, error)
}

// refuse returns the error for a value that is not allowed. The value is
// quoted: it may hold control characters.
func (v *spec) refuse(raw string, cause error) error {
	return fmt.Errorf("%s%s=%s: %w; allowed: %s", prefix, v.name, v.quote(raw), cause, plain(v.allowed))
}

// quote returns a value as people may see it.
func (v *spec) quote(raw string) string {
	if v.secret && raw != "" {
		return "…"
	}
	return quote(raw)
}

// adminListen is where operators find the relay by default.
const adminListen = "127.0.0.1:18080"

// variables is the table of variables, in the order in which people read it.
var variables = []spec{
	{
		name: "ORIGIN", shown: "required by `tender serve`",
		allowed: "`host:port`, `dns:///host:port`, `unix:///path`, several separated by commas, or one `file:///dir`",
		meaning: "the control plane; several are tried in that order",
		parse:   parseOrigin,
	},
	{
		name:    "ORIGINS",
		allowed: "`name=target`, several separated by `;`, at most 31, each target as for `TENDER_ORIGIN`; names of `a-z`, `0-9` and `-` except `default`",
		meaning: "further control planes, for `TENDER_ROUTES`",
		parse:   parseOrigins,
	},
	{
		name:    "ROUTES",
		allowed: "`type:<type>=name`, `authority:<authority>=name`, several separated by `;`: a short name or a type URL; an xdstp authority in canonical form, or `*` for all others; a name of `TENDER_ORIGINS`, each of which needs a route, or `default`",
		meaning: "what goes to which origin; an authority's route beats a type's, and the rest goes to `default`, which is `TENDER_ORIGIN`",
		parse:   parseRoutes,
	},
	{
		name: "ORIGIN_PROTOCOL", preset: ProtocolAuto,
		allowed: "`auto`, `delta` or `sotw`",
		meaning: "variant of xDS to speak with control planes; `auto` is Delta, or SotW where the control plane has no Delta",
		parse:   oneOf(ProtocolAuto, ProtocolDelta, ProtocolSotW),
	},
	{
		name: "ORIGIN_TLS", shown: "`off`; `on` if any file is given",
		allowed: "`off`, `on` or `insecure` (anybody is taken for the control plane)",
		meaning: "TLS to the control plane, verified by the system's CAs unless there is a file of others. For a further origin, this and the next six are `TENDER_ORIGIN_<NAME>_TLS` and so on: its name in capitals, with `_` for `-`",
		parse:   oneOf(TLSOff, TLSOn, TLSInsecure),
	},
	{
		name:    "ORIGIN_TLS_CA",
		allowed: allowedFile,
		meaning: "PEM file with the CAs of the control plane; read again when it changes, as are the others",
		parse:   parseFile,
	},
	{
		name:    "ORIGIN_TLS_CERT",
		allowed: allowedFile + ", beside its key",
		meaning: "PEM file with the relay's certificate for the control plane, and what is between it and its CA",
		parse:   parseFile,
	},
	{
		name:    "ORIGIN_TLS_KEY",
		allowed: allowedFile + ", beside its certificate",
		meaning: "PEM file with the key of that certificate",
		parse:   parseFile,
	},
	{
		name: "ORIGIN_TLS_SERVER_NAME", shown: "the host of the target",
		allowed: "a DNS name, an IP address, or a SPIFFE ID with a path, which needs `TENDER_ORIGIN_TLS_CA`",
		meaning: "who the certificate of the control plane must be for; a name or an address is the `:authority` of requests too",
		parse:   parseServerName,
	},
	{
		name:    "ORIGIN_TOKEN_FILE",
		allowed: allowedFile + ", with TLS that is not `insecure`",
		meaning: "file with a bearer token for the control plane; a new one goes with the next stream",
		parse:   parseFile,
	},
	{
		name: "ORIGIN_HEADERS", secret: true,
		allowed: "`name=value`, several separated by `;`: names of gRPC metadata, values of printable ASCII",
		meaning: "headers for the control plane",
		parse:   parseHeaders,
	},
	{
		name: "LISTEN", preset: ":18000",
		allowed: "`:port`, `host:port`, `unix:/path`, several separated by commas",
		meaning: "where clients find the relay",
		parse:   parseListen,
	},
	{
		name: "REST_LISTEN", shown: "`off`",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are not in it",
		meaning: "where clients that poll by REST find the relay",
		parse:   offOr(parseListen),
	},
	{
		name: "TLS_LISTEN", shown: "`off`",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are in no other variable, with `TENDER_TLS_CERT`",
		meaning: "where clients find the relay by TLS while `TENDER_LISTEN` stays plaintext, for moving a fleet; without it, `TENDER_LISTEN` is what has TLS",
		parse:   offOr(parseListen),
	},
	{
		name: "TLS_CERT", shown: "empty: plaintext",
		allowed: allowedFile + ", beside its key",
		meaning: "PEM file with the certificate that clients are shown, by REST too, and what is between it and its CA; read again when it changes, as are the next two",
		parse:   parseFile,
	},
	{
		name:    "TLS_KEY",
		allowed: allowedFile + ", beside its certificate",
		meaning: "PEM file with the key of that certificate",
		parse:   parseFile,
	},
	{
		name:    "TLS_CLIENT_CA",
		allowed: allowedFile + ", with `TENDER_TLS_CERT`",
		meaning: "PEM file with the CAs of clients, which makes it mTLS: nobody is served by TLS without a certificate of theirs",
		parse:   parseFile,
	},
	{
		name: "TLS_TRUST_DOMAINS", shown: "empty: any",
		allowed: "`domain` or `domain=path`, several separated by `;`, with `TENDER_TLS_CLIENT_CA`: a SPIFFE trust domain such as `example.org`, and a path",
		meaning: "trust domains that SPIFFE IDs of clients may be of, each with the PEM file of the CAs that vouch for it and for nothing else; without a path, those of `TENDER_TLS_CLIENT_CA` do. Read again when it changes; [security.md](security.md#trust-domains) says when to set it",
		parse:   parseTrustDomains,
	},
	{
		name: "TLS_MIN", preset: "1.2",
		allowed: "`1.2` or `1.3`",
		meaning: "least version of TLS that clients must speak; Envoys speak 1.2 at most unless they are told otherwise",
		parse:   oneOf("1.2", "1.3"),
	},
	{
		name: "AUTHZ", shown: "empty: all may be any node",
		allowed: allowedFile + ", with `TENDER_TLS_CLIENT_CA`",
		meaning: "YAML file of rules: which clients, by their certificates, may be which nodes, and have which types and Secrets; read again when it changes, also for streams that there are",
		parse:   parseFile,
	},
	{
		name: "SECRETS", preset: SecretsMTLS,
		allowed: "`mtls`, `loopback` or `off`",
		meaning: "who is served Secrets (SDS): clients with a certificate to whom a rule of `TENDER_AUTHZ` gives them; those on this host too, without TLS, by the rules or if there are none; nobody",
		parse:   oneOf(SecretsMTLS, SecretsLoopback, SecretsOff),
	},
	{
		name: "ADMIN_LISTEN", preset: adminListen, empty: "off",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are in no other variable; others than loopback and `unix:` with `TENDER_TLS_CLIENT_CA` and `TENDER_AUTHZ`",
		meaning: "where operators find the relay: `/livez`, `/readyz`, `/metrics`, `/api/v1/status` and what changes it; by mTLS where other hosts can reach it",
		parse:   offOr(parseListen),
	},
	{
		name: "PROBE_LISTEN", shown: "`off`",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are in no other variable",
		meaning: "where a kubelet and Prometheus find `/livez`, `/readyz` and `/metrics`, and nothing else",
		parse:   offOr(parseListen),
	},
	{
		name: "NODE_ID", shown: "`tender/<hostname>`",
		allowed: "printable text of at most 4KiB, in which `{field}` may be a field of `TENDER_NODE_GROUP_BY`",
		meaning: "id of the Node that the relay presents to the origin; with `{cluster}`, say, each group has one of its own",
		parse:   parseText,
	},
	{
		name: "NODE_CLUSTER", preset: "tender",
		allowed: "printable text of at most 4KiB",
		meaning: "cluster of that Node",
		parse:   parseText,
	},
	{
		name:    "NODE_LOCALITY",
		allowed: "`region`, `region/zone` or `region/zone/sub_zone`",
		meaning: "locality of that Node",
		parse:   parseLocality,
	},
	{
		name:    "NODE_METADATA",
		allowed: "a JSON object",
		meaning: "metadata of that Node",
		parse:   parseMetadata,
	},
	{
		name: "NODE_GROUP_BY", preset: "user_agent_name", empty: groupByNone,
		allowed: "`none`, or a list of " + groupFieldList + ", `metadata.<path>`",
		meaning: "Node fields that make the origin answer differently; clients that agree in them share one view",
		parse:   parseGroupBy,
	},
	{
		name: "RESYNC", preset: ResyncTrustVersions,
		allowed: "`trust_versions` or `full`",
		meaning: "after a reconnect, tell the origin which versions are held, or ask for everything again",
		parse:   oneOf(ResyncTrustVersions, ResyncFull),
	},
	{
		name:    "PREWARM",
		allowed: allowedTypes,
		meaning: "types to subscribe to by wildcard for every node group, before a client asks",
		parse:   parseTypesButSecrets,
	},
	{
		name: "VERSION_SOURCE", preset: VersionsOfContent,
		allowed: "`content` or `origin`",
		meaning: "what `version_info` in SotW is made from: the bytes, or the origin's resource versions (only if those are hashes)",
		parse:   oneOf(VersionsOfContent, VersionsOfOrigin),
	},
	{
		name: "DELTA_VERSIONS", preset: VersionsOfOrigin,
		allowed: "`origin` or `content`",
		meaning: "resource versions in Delta: the origin's own, or made from the bytes (for origins that number by a counter)",
		parse:   oneOf(VersionsOfOrigin, VersionsOfContent),
	},
	{
		name:    "FULL_STATE_TYPES",
		allowed: allowedTypes,
		meaning: "further types whose SotW responses hold all that the stream asked for; a type that the protocol does not define needs it only where it is asked for by name",
		parse:   parseTypes,
	},
	{
		name:    "WILDCARD_TYPES",
		allowed: allowedTypes,
		meaning: "further types for which a first request without names means all of them",
		parse:   parseTypesButSecrets,
	},
	{
		name: "EDS_AFTER_CDS", preset: "true",
		allowed: "`on` or `off`",
		meaning: "send the endpoints again after a cluster that changed, as Envoy expects",
		parse:   parseSwitch,
	},
	{
		name: "LRS", preset: LRSOff,
		allowed: "`off`, `passthrough` or `aggregate`; only `off` if `TENDER_ORIGIN` is a directory",
		meaning: "load reports of the clients: refused, passed on one by one, or summed up for the origin",
		parse:   oneOf(LRSOff, LRSPassthrough, LRSAggregate),
	},
	{
		name: "DYNAMIC_PARAMETERS", preset: "false",
		allowed: "`on` or `off`",
		meaning: "variants of one name, chosen by each client's dynamic parameters (xDS TP2)",
		parse:   parseSwitch,
	},
	{
		name: "COLD_WAIT", preset: "10s",
		allowed: between(100*time.Millisecond, 10*time.Minute),
		meaning: "how long a client waits for an origin that has never answered, before its stream is closed; and how long no new name must come until a set counts as complete",
		parse:   durationBetween(100*time.Millisecond, 10*time.Minute),
	},
	{
		name: "MASS_DELETE_HOLD", preset: "10m0s",
		allowed: between(time.Second, 24*time.Hour),
		meaning: "how long large removals are held that were inferred, or said in the first answers of a connection",
		parse:   durationBetween(time.Second, 24*time.Hour),
	},
	{
		name: "HOLD_EXPLICIT", preset: "false",
		allowed: "`on` or `off`",
		meaning: "hold large removals also when the origin states them later",
		parse:   parseSwitch,
	},
	{
		name: "SNAPSHOT_DIR", shown: "`off`",
		allowed: "`off`, or a directory that no other relay uses; it is made if only its last part is missing",
		meaning: "where what is known survives a restart: it is served at once, until the origin says what has changed",
		parse:   parsePathOrOff,
	},
	{
		name: "MAX_SNAPSHOT_AGE", preset: "24h0m0s",
		allowed: between(time.Minute, 8760*time.Hour),
		meaning: "how old what is in that directory may be",
		parse:   durationBetween(time.Minute, 8760*time.Hour),
	},
	{
		name: "SNAPSHOT_SENSITIVE", preset: "false",
		allowed: "`on` or `off`",
		meaning: "keep there also resources that have sensitive fields, or cannot be looked into; secrets never are",
		parse:   parseSwitch,
	},
	{
		name: "ORIGIN_KEEPALIVE", preset: "5m30s",
		allowed: between(10*time.Second, 24*time.Hour),
		meaning: "time between HTTP/2 pings to the origin; many origins end clients that ping more often than every 5m",
		parse:   durationBetween(10*time.Second, 24*time.Hour),
	},
	{
		name: "LOG_LEVEL", preset: "info",
		allowed: "`debug`, `info`, `warn` or `error`",
		meaning: "least level that is logged",
		parse:   oneOf("debug", "info", "warn", "error"),
	},
	{
		name: "LOG_FORMAT", shown: "`json`, or `text` on a terminal",
		allowed: "`json` or `text`",
		meaning: "form of the log, which goes to stderr",
		parse:   oneOf("json", "text"),
	},
	{
		name: "TRACE_DELIVERIES", preset: "100",
		allowed: "a whole number from 0 to 1000000",
		meaning: "of how many deliveries of a change that is traced one is, with all that are slow or refused; `0` is these alone. `OTEL_…` variables switch [tracing](tracing.md) on",
		parse:   intBetween(0, 1_000_000),
	},
	{
		name: "TRACE_SLOW", preset: "1s",
		allowed: "`off`, or " + between(time.Millisecond, time.Hour),
		meaning: "how long a delivery takes at least, from the receipt of the origin's message to the client's answer, that is traced for that",
		parse:   offOr(durationBetween(time.Millisecond, time.Hour)),
	},
	limit("MAX_CONNECTIONS", "50000", 10_000_000, "open connections of clients"),
	limit("MAX_PEER_CONNECTIONS", "10000", 10_000_000, "those of one peer; all clients behind an address, as of a load balancer, are one peer"),
	sizeLimit("MAX_UNREAD_BYTES", defaultUnreadBytes.String(), mebibyte, 1024*gibibyte, "memory that requests of all clients take until they are handled, a fourth of it for one peer: what is not whole or not read yet, and what it is decompressed and decoded; 64KiB of each connection do not count"),
	limit("MAX_STREAMS", "50000", 10_000_000, "open streams of all services, and polls; while more than half of them are open, one peer may have a tenth, and at least 100: a peer is what its certificate says, or else an address"),
	{
		name: "PEER_IPV6_PREFIX", preset: "64",
		allowed: "a whole number from 1 to 128",
		meaning: "how many bits of an IPv6 address make a peer: who has one address of a network has them all",
		parse:   intBetween(1, 128),
	},
	limit("MAX_STREAMS_PER_CONNECTION", "2000", 1_000_000, "open streams on one connection"),
	limit("MAX_REQUEST_RATE", "100", 1_000_000, "requests a second that one stream may send beside its answers, ten times as many at once; more are read later"),
	{
		name: "REQUEST_COMPRESSION", preset: CompressionOff,
		allowed: "`off` or `gzip`",
		meaning: "how clients may compress requests of xDS and load reports; what one is decompressed counts for TENDER_MAX_UNREAD_BYTES, and TENDER_MAX_REQUEST_BYTES bounds it",
		parse:   oneOf(CompressionOff, CompressionGzip),
	},
	limit("MAX_FRAME_RATE", "5000", 10_000_000, "HTTP/2 frames a second that one connection may send beside answers, ten times as many at once, and four times of both for one peer; 2KiB count as one, a frame of data, the beginning of a stream or a poll as 10, the reset of a stream as 50; a new connection is 100 of those of the peer, but of these there may be 50 seconds' worth at once; more are read later"),
	limit("MAX_NAMES", "100000", 100_000_000, "names that one stream subscribes to, and of which it says beforehand that it has them"),
	limit("MAX_GLOBS", "1000", 1_000_000, "globs that one stream subscribes to"),
	limit("MAX_GROUP_GLOBS", "10000", 1_000_000, "globs that the clients of one node group subscribe to"),
	sizeLimit("MAX_NAME_BYTES", "4KiB", 16, mebibyte, "length of a resource name"),
	sizeLimit("MAX_NODE_BYTES", "1MiB", kibibyte, gibibyte, "size of a client's Node; beside its extensions it has 256KiB and 10000 values at most, and what is kept of the Nodes of one peer takes 64 times this, beside 16KiB of each"),
	sizeLimit("MAX_REQUEST_BYTES", "16MiB", 4*kibibyte, gibibyte, "size of a client's request"),
	sizeLimit("MAX_ORIGIN_RESPONSE_BYTES", "256MiB", mebibyte, gibibyte, "size of an origin's response"),
	{
		name: "MAX_RESOURCE_BYTES", preset: Size(0).String(), shown: "`off`", empty: "off",
		allowed: fmt.Sprintf("`off`, or a size from %s to %s, in B, KiB, MiB or GiB", kibibyte, gibibyte),
		meaning: "limit: size of a resource in an origin's response; of one that is larger what was there before stays, the rest of the response is taken, and the NACK names it",
		parse:   zeroOr(sizeBetween(kibibyte, gibibyte)),
	},
	limit("MAX_TYPES", "64", 10_000, "resource types in one view; of those that the protocol does not know, one peer may ask for a tenth, and at least 8, while there are more than half of all"),
	limit("MAX_GROUPS", "256", 100_000, "node groups; those that no client is in make room for others, and their snapshots stay"),
	limit("MAX_PEER_GROUPS", "16", 100_000, "node groups that one peer has founded, while more than half of `TENDER_MAX_GROUPS` are there; and how many it may found in a minute, once it has founded `TENDER_MAX_GROUPS`. A peer is what its certificate says, or else an address, as of a load balancer"),
	limit("MAX_ORIGIN_NAMES", "1000000", 100_000_000, "names that clients want of one control plane; a name counts once for each node group, or for all if it is one of xdstp. While more than half of them are wanted, the clients of one peer may want a tenth, and at least 100. What is there is served in any case"),
	limit("ORIGIN_STREAM_RATE", "600", 1_000_000, "ADS streams that node groups open to each control plane in a minute, after two for each of `TENDER_MAX_GROUPS` at once; more wait"),
	{
		name: "FIRST_REQUEST_TIMEOUT", preset: "10s",
		allowed: between(100*time.Millisecond, 10*time.Minute),
		meaning: "how long a new stream may stay silent, and the handshake of a connection or the body of a poll may take",
		parse:   durationBetween(100*time.Millisecond, 10*time.Minute),
	},
	{
		name: "ACK_WAIT", preset: "5s",
		allowed: between(100*time.Millisecond, 10*time.Minute),
		meaning: "how long a response may stay unanswered before the next one of its type is sent",
		parse:   durationBetween(100*time.Millisecond, 10*time.Minute),
	},
	{
		name: "SEND_STALL", preset: "1m0s",
		allowed: between(time.Second, time.Hour),
		meaning: "how long one send may block before the stream is ended",
		parse:   durationBetween(time.Second, time.Hour),
	},
	{
		name: "LINGER", preset: "5m0s",
		allowed: between(time.Second, 24*time.Hour),
		meaning: "how long a name that no client wants stays subscribed",
		parse:   durationBetween(time.Second, 24*time.Hour),
	},
	{
		name: "WILDCARD_LINGER", preset: "15m0s",
		allowed: between(time.Second, 24*time.Hour),
		meaning: "how long a wildcard that no client wants stays subscribed",
		parse:   durationBetween(time.Second, 24*time.Hour),
	},
	limit("MAX_LINGERING", "100000", 100_000_000, "names that linger; the oldest go first"),
	{
		name: "DRAIN", preset: "45s",
		allowed: between(time.Second, time.Hour),
		meaning: "how long ending the streams may take at most when the relay is told to stop: for the first ninth new ones are still taken, and two thirds later nearly all have ended, one by one",
		parse:   durationBetween(time.Second, time.Hour),
	},
	{
		name: "CONNECTION_AGE", preset: "30m0s",
		allowed: "`off`, or " + between(10*time.Second, 24*time.Hour),
		meaning: "how old a client's connection gets before its streams are ended, one by one and without an error, so that clients spread over all relays",
		parse:   offOr(durationBetween(10*time.Second, 24*time.Hour)),
	},
	{
		name: "HISTORY", preset: "10", empty: "off",
		allowed: "`off`, or a whole number from 1 to 100",
		meaning: "changes of each resource that `tender history` and the status page can tell of; there is none of Secrets",
		parse:   offOr(intBetween(1, 100)),
	},
	sizeLimit("MAX_HISTORY_BYTES", "32MiB", kibibyte, 4*gibibyte, "memory for those changes, beyond which the oldest are forgotten"),
	{
		name: "DEBUG", preset: "false",
		allowed: "`on` or `off`",
		meaning: "profiles of the process for operators, at `/debug/pprof/` where `TENDER_ADMIN_LISTEN` says",
		parse:   parseSwitch,
	},
}

// limit is the row of a number of things.
func limit(name, preset string, most int, of string) spec {
	return spec{
		name: name, preset: preset,
		allowed: fmt.Sprintf("a whole number from 1 to %d", most),
		meaning: "limit: " + of,
		parse:   intBetween(1, most),
	}
}

// sizeLimit is the row of a number of bytes.
func sizeLimit(name, preset string, least, most Size, of string) spec {
	return spec{
		name: name, preset: preset,
		allowed: fmt.Sprintf("a size from %s to %s, in B, KiB, MiB or GiB", least, most),
		meaning: "limit: " + of,
		parse:   sizeBetween(least, most),
	}
}

// variable returns the row of name, which must exist.
func variable(name string) *spec {
	for i := range variables {
		if variables[i].name == name {
			return &variables[i]
		}
	}
	panic("config: no variable " + prefix + name)
}
