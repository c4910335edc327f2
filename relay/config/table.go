package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/humanize"
)

// A spec is one variable: the one place where its name, its default, what is
// allowed and what it means are written. LoadConfig, tender check and the
// table of deploy/docs/configuration.md are made from it.
type spec struct {
	name    string // without the prefix
	preset  string // the default, as one would write it; may be empty
	shown   string // the default in words, where preset cannot say it
	empty   string // the word for nothing, where that is not the default
	allowed string
	meaning string
	secret  bool // no error quotes its value

	// parse returns a value of the type of the field.
	parse func(raw string) (any, error)

	// shows returns the text of a value; nil if the type of the field says it.
	shows func(value any) string
}

// typed returns parse as a spec has it.
func typed[T any](parse func(raw string) (T, error)) func(string) (any, error) {
	return func(raw string) (any, error) { return parse(raw) }
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
	return humanize.Quote(raw)
}

// adminListen is where operators find the relay by default.
const adminListen = "127.0.0.1:18080"

// variables is the table of variables, in the order in which people read it.
var variables = []spec{
	{
		name: "ORIGIN", shown: "required by `tender serve`",
		allowed: "`host:port`, `dns:///host:port`, `unix:///path`, several separated by commas, or one `file:///dir`",
		meaning: "the control plane; several are tried in that order",
		parse:   typed(parseOrigin),
	},
	{
		name:    "ORIGINS",
		allowed: "`name=target`, several separated by `;`, at most 31, each target as for `TENDER_ORIGIN`; names of `a-z`, `0-9` and `-` except `default`",
		meaning: "further control planes, for `TENDER_ROUTES`",
		parse:   typed(parseOrigins),
	},
	{
		name:    "ROUTES",
		allowed: "`type:<type>=name`, `authority:<authority>=name`, several separated by `;`: a short name or a type URL; an xdstp authority in canonical form, or `*` for all others; a name of `TENDER_ORIGINS`, each of which needs a route, or `default`",
		meaning: "what goes to which origin; an authority's route beats a type's, and the rest goes to `default`, which is `TENDER_ORIGIN`",
		parse:   typed(parseRoutes),
	},
	choice("ORIGIN_PROTOCOL", "variant of xDS to speak with control planes; `auto` is Delta, or SotW where the control plane has no Delta", ProtocolAuto, ProtocolDelta, ProtocolSotW),
	{
		name: "ORIGIN_TLS", shown: "`off`; `on` if any file is given",
		allowed: "`off`, `on` or `insecure` (anybody is taken for the control plane)",
		meaning: "TLS to the control plane, verified by the system's CAs unless there is a file of others. For a further origin, this and the next six are `TENDER_ORIGIN_<NAME>_TLS` and so on: its name in capitals, with `_` for `-`",
		parse:   typed(oneOf(TLSOff, TLSOn, TLSInsecure)),
	},
	file("ORIGIN_TLS_CA", "", "PEM file with the CAs of the control plane; read again when it changes, as are the others"),
	file("ORIGIN_TLS_CERT", ", beside its key", "PEM file with the relay's certificate for the control plane, and what is between it and its CA"),
	file("ORIGIN_TLS_KEY", ", beside its certificate", "PEM file with the key of that certificate"),
	{
		name: "ORIGIN_TLS_SERVER_NAME", shown: "the host of the target",
		allowed: "a DNS name, an IP address, or a SPIFFE ID with a path, which needs `TENDER_ORIGIN_TLS_CA`",
		meaning: "who the certificate of the control plane must be for; a name or an address is the `:authority` of requests too",
		parse:   typed(parseServerName),
	},
	file("ORIGIN_TOKEN_FILE", ", with TLS that is not `insecure`", "file with a bearer token for the control plane; a new one goes with the next stream"),
	{
		name: "ORIGIN_HEADERS", secret: true,
		allowed: "`name=value`, several separated by `;`: names of gRPC metadata, values of printable ASCII",
		meaning: "headers for the control plane",
		parse:   typed(parseHeaders),
	},
	{
		name: "LISTEN", preset: ":18000",
		allowed: "`:port`, `host:port`, `unix:/path`, several separated by commas",
		meaning: "where clients find the relay",
		parse:   typed(parseListen),
	},
	{
		name: "REST_LISTEN", shown: "`off`",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are not in it",
		meaning: "where clients that poll by REST find the relay",
		parse:   typed(offOr(parseListen)),
	},
	{
		name: "TLS_LISTEN", shown: "`off`",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are in no other variable, with `TENDER_TLS_CERT`",
		meaning: "where clients find the relay by TLS while `TENDER_LISTEN` stays plaintext, for moving a fleet; without it, `TENDER_LISTEN` is what has TLS",
		parse:   typed(offOr(parseListen)),
	},
	{
		name: "TLS_CERT", shown: "empty: plaintext",
		allowed: allowedFile + ", beside its key",
		meaning: "PEM file with the certificate that clients are shown, by REST too, and what is between it and its CA; read again when it changes, as are the next two",
		parse:   typed(parseFile),
	},
	file("TLS_KEY", ", beside its certificate", "PEM file with the key of that certificate"),
	file("TLS_CLIENT_CA", ", with `TENDER_TLS_CERT`", "PEM file with the CAs of clients, which makes it mTLS: nobody is served by TLS without a certificate of theirs"),
	{
		name: "TLS_TRUST_DOMAINS", shown: "empty: any",
		allowed: "`domain` or `domain=path`, several separated by `;`, with `TENDER_TLS_CLIENT_CA`: a SPIFFE trust domain such as `example.org`, and a path",
		meaning: "trust domains that SPIFFE IDs of clients may be of, each with the PEM file of the CAs that vouch for it and for nothing else; without a path, those of `TENDER_TLS_CLIENT_CA` do. Read again when it changes; [security.md](security.md#trust-domains) says when to set it",
		parse:   typed(parseTrustDomains),
	},
	choice("TLS_MIN", "least version of TLS that clients must speak; Envoys speak 1.2 at most unless they are told otherwise", "1.2", "1.3"),
	{
		name: "AUTHZ", shown: "empty: all may be any node",
		allowed: allowedFile + ", with `TENDER_TLS_CLIENT_CA`",
		meaning: "YAML file of rules: which clients, by their certificates, may be which nodes, and have which types and Secrets; read again when it changes, also for streams that there are",
		parse:   typed(parseFile),
	},
	choice("SECRETS", "who is served Secrets (SDS): clients with a certificate to whom a rule of `TENDER_AUTHZ` gives them; those on this host too, without TLS, by the rules or if there are none; nobody", SecretsMTLS, SecretsLoopback, SecretsOff),
	{
		name: "ADMIN_LISTEN", preset: adminListen, empty: "off",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are in no other variable; others than loopback and `unix:` with `TENDER_TLS_CLIENT_CA` and `TENDER_AUTHZ`",
		meaning: "where operators find the relay: `/livez`, `/readyz`, `/metrics`, `/api/v1/status` and what changes it; by mTLS where other hosts can reach it",
		parse:   typed(offOr(parseListen)),
	},
	{
		name: "PROBE_LISTEN", shown: "`off`",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are in no other variable",
		meaning: "where a kubelet and Prometheus find `/livez`, `/readyz` and `/metrics`, and nothing else",
		parse:   typed(offOr(parseListen)),
	},
	{
		name: "PEERS", shown: "`off`",
		allowed: "`off`, or `host:port` or `dns:///host:port`, at most 100, separated by commas; with `TENDER_PEERS_TLS_CERT` and `TENDER_PEERS_TLS_KEY`",
		meaning: "admin addresses of the relays of the same tier, for `tender status --fleet` and commands with `--fleet`; a `dns` name stands for all of its addresses, and the relay itself may be among them",
		parse:   typed(offOr(parsePeers)),
	},
	file("PEERS_TLS_CA", "", "PEM file with the CAs that verify peers; without it, those of the system do"),
	file("PEERS_TLS_CERT", ", beside its key", "PEM file with the certificate that the relay shows to peers, whose rules list it under `peers`"),
	file("PEERS_TLS_KEY", ", beside its certificate", "PEM file with the key of that certificate"),
	{
		name: "PEERS_TLS_SERVER_NAME", shown: "the host of the peer",
		allowed: "a DNS name, an IP address, or a SPIFFE ID with a path, which needs `TENDER_PEERS_TLS_CA`",
		meaning: "name that the certificates of peers must have",
		parse:   typed(parseServerName),
	},
	{
		name: "NODE_ID", shown: "`tender/<hostname>`",
		allowed: "printable text of at most 4KiB, in which `{field}` may be a field of `TENDER_NODE_GROUP_BY`",
		meaning: "id of the Node that the relay presents to the origin; with `{cluster}`, say, each group has one of its own",
		parse:   typed(parseText),
	},
	{
		name: "NODE_CLUSTER", preset: "tender",
		allowed: "printable text of at most 4KiB",
		meaning: "cluster of that Node",
		parse:   typed(parseText),
	},
	{
		name:    "NODE_LOCALITY",
		allowed: "`region`, `region/zone` or `region/zone/sub_zone`",
		meaning: "locality of that Node",
		parse:   typed(parseLocality),
	},
	{
		name:    "NODE_METADATA",
		allowed: "a JSON object",
		meaning: "metadata of that Node",
		parse:   typed(parseMetadata),
	},
	{
		name: "NODE_GROUP_BY", preset: "user_agent_name", empty: groupByNone,
		allowed: "`none`, or a list of " + groupFieldList + ", `metadata.<path>`",
		meaning: "Node fields that make the origin answer differently; clients that agree in them share one view",
		parse:   typed(parseGroupBy),
	},
	choice("RESYNC", "after a reconnect, tell the origin which versions are held, or ask for everything again", ResyncTrustVersions, ResyncFull),
	types("PREWARM", parseTypeButSecrets, "types to subscribe to by wildcard for every node group, before a client asks"),
	choice("VERSION_SOURCE", "what `version_info` in SotW is made from: the bytes, or the origin's resource versions (only if those are hashes)", VersionsOfContent, VersionsOfOrigin),
	choice("DELTA_VERSIONS", "resource versions in Delta: the origin's own, or made from the bytes (for origins that number by a counter)", VersionsOfOrigin, VersionsOfContent),
	types("FULL_STATE_TYPES", parseType, "further types whose SotW responses hold all that the stream asked for; a type that the protocol does not define needs it only where it is asked for by name"),
	types("WILDCARD_TYPES", parseTypeButSecrets, "further types for which a first request without names means all of them"),
	onOff("EDS_AFTER_CDS", "on", "send the endpoints again after a cluster that changed, as Envoy expects"),
	{
		name: "LRS", preset: LRSOff,
		allowed: "`off`, `passthrough` or `aggregate`; only `off` if `TENDER_ORIGIN` is a directory",
		meaning: "load reports of the clients: refused, passed on one by one, or summed up for the origin",
		parse:   typed(oneOf(LRSOff, LRSPassthrough, LRSAggregate)),
	},
	onOff("DYNAMIC_PARAMETERS", "off", "variants of one name, chosen by each client's dynamic parameters (xDS TP2)"),
	duration("COLD_WAIT", "10s", 100*time.Millisecond, 10*time.Minute, "how long a client waits for an origin that has never answered, before its stream is closed; and how long no new name must come until a set counts as complete"),
	duration("MASS_DELETE_HOLD", "10m", time.Second, 24*time.Hour, "how long large removals are held that were inferred, or said in the first answers of a connection"),
	onOff("HOLD_EXPLICIT", "off", "hold large removals also when the origin states them later"),
	{
		name: "SNAPSHOT_DIR", shown: "`off`",
		allowed: "`off`, or a directory that no other relay uses; it is made if only its last part is missing",
		meaning: "where what is known survives a restart: it is served at once, until the origin says what has changed",
		parse:   typed(offOr(parseFile)),
	},
	duration("MAX_SNAPSHOT_AGE", "24h", time.Minute, 8760*time.Hour, "how old what is in that directory may be"),
	onOff("SNAPSHOT_SENSITIVE", "off", "keep there also resources that have sensitive fields, or cannot be looked into; secrets never are"),
	{
		name: "ROLLOUT", shown: "`off`",
		allowed: "`off`, or one to four stages, separated by commas, each of them who and how long. Who: a share of the clients such as `5%`, which includes those before, or `id`, `cluster`, `locality.region`, `locality.zone`, `locality.sub_zone` or `metadata.<path>`, `=` and a glob. How long: a duration from 1s to 168h, or `approve`. It needs `TENDER_SNAPSHOT_DIR`, and `content` as `TENDER_VERSION_SOURCE` and `TENDER_DELTA_VERSIONS`",
		meaning: "stages in which changes of the control plane reach clients, as in `metadata.canary=true 10m, 5% 10m, 25% approve`; the rest follows the last of them ([rollout.md](rollout.md))",
		parse:   typed(offOr(parseStages)),
	},
	{
		name: "ROLLOUT_TYPES", preset: "cds,lds,rds,srds,vhds,ecds,rtds",
		allowed: allowedTypes + "; not `eds`, `leds` and `sds`",
		meaning: "types whose changes are distributed in these stages; those of endpoints and Secrets never wait",
		parse:   typed(listOf(",", parseTypeThatWaits)), shows: shortNames,
	},
	whole("ROLLOUT_REFUSALS", "0", 0, 1_000_000, "clients that may refuse a change before it is taken back from all of its stages"),
	{
		name: "ROLLOUT_CHECK", shown: "`off`", secret: true,
		allowed: "`off`, or an `http` or `https` URL, which may have a user and a password",
		meaning: "who else is asked whether a change may go on, before each stage and every 15 s: by a POST that is answered 200 or 204, or 403 or 409 to take it back. With `TENDER_ROLLOUT_QUERY` it is a Prometheus, without `/api/v1/query`. A user, a password and a query are not shown",
		parse:   typed(offOr(parseCheckURL)), shows: maskURL,
	},
	{
		name:    "ROLLOUT_QUERY",
		allowed: "printable text of at most 4KiB, with `TENDER_ROLLOUT_CHECK`",
		meaning: "PromQL whose samples take a change back, as in `ALERTS{alertname=\"ErrorBudgetBurn\"}`; `{changed}` stands for when the change came, in Unix seconds",
		parse:   typed(parseText),
	},
	duration("ORIGIN_KEEPALIVE", "5m30s", 10*time.Second, 24*time.Hour, "time between HTTP/2 pings to the origin; many origins end clients that ping more often than every 5m"),
	{
		name: "LOG_LEVEL", preset: "info",
		allowed: "`debug`, `info`, `warn` or `error`",
		meaning: "least level that is logged",
		parse:   typed(parseLevel),
	},
	{
		name: "LOG_FORMAT", shown: "`json`, or `text` on a terminal",
		allowed: "`json` or `text`",
		meaning: "form of the log, which goes to stderr",
		parse:   typed(oneOf("json", "text")),
	},
	whole("TRACE_DELIVERIES", "100", 0, 1_000_000, "of how many deliveries of a change that is traced one is, with all that are slow or refused; `0` is these alone. `OTEL_…` variables switch [tracing](tracing.md) on"),
	{
		name: "TRACE_SLOW", preset: "1s",
		allowed: "`off`, or " + between(time.Millisecond, time.Hour),
		meaning: "how long a delivery takes at least, from the receipt of the origin's message to the client's answer, that is traced for that",
		parse:   typed(offOr(durationBetween(time.Millisecond, time.Hour))),
	},
	limit("MAX_CONNECTIONS", "50000", 10_000_000, "open connections of clients"),
	limit("MAX_PEER_CONNECTIONS", "10000", 10_000_000, "those of one peer; all clients behind an address, as of a load balancer, are one peer"),
	sizeLimit("MAX_UNREAD_BYTES", defaultUnreadBytes.String(), mebibyte, 1024*gibibyte, "memory that requests of all clients take until they are handled, a fourth of it for one peer: what is not whole or not read yet, and what it is decompressed and decoded; 64KiB of each connection do not count"),
	limit("MAX_STREAMS", "50000", 10_000_000, "open streams of all services, and polls; while more than half of them are open, one peer may have a tenth, and at least 100: a peer is what its certificate says, or else an address"),
	whole("PEER_IPV6_PREFIX", "64", 1, 128, "how many bits of an IPv6 address make a peer: who has one address of a network has them all"),
	limit("MAX_STREAMS_PER_CONNECTION", "2000", 1_000_000, "open streams on one connection"),
	limit("MAX_REQUEST_RATE", "100", 1_000_000, "requests a second that one stream may send beside its answers, ten times as many at once; more are read later"),
	choice("REQUEST_COMPRESSION", "how clients may compress requests of xDS and load reports; what one is decompressed counts for TENDER_MAX_UNREAD_BYTES, and TENDER_MAX_REQUEST_BYTES bounds it", CompressionOff, CompressionGzip),
	limit("MAX_FRAME_RATE", "5000", 10_000_000, "HTTP/2 frames a second that one connection may send beside answers, ten times as many at once, and four times of both for one peer; 2KiB count as one, a frame of data, the beginning of a stream or a poll as 10, the reset of a stream as 50; a new connection is 100 of those of the peer, but of these there may be 50 seconds' worth at once; more are read later"),
	limit("MAX_NAMES", "100000", 100_000_000, "names that one stream subscribes to, and of which it says beforehand that it has them"),
	limit("MAX_GLOBS", "1000", 1_000_000, "globs that one stream subscribes to"),
	limit("MAX_GROUP_GLOBS", "10000", 1_000_000, "globs that the clients of one node group subscribe to"),
	sizeLimit("MAX_NAME_BYTES", "4KiB", 16, mebibyte, "length of a resource name"),
	sizeLimit("MAX_NODE_BYTES", "1MiB", kibibyte, gibibyte, "size of a client's Node; beside its extensions it has 256KiB and 10000 values at most, and what is kept of the Nodes of one peer takes 64 times this, beside 16KiB of each"),
	sizeLimit("MAX_REQUEST_BYTES", "16MiB", 4*kibibyte, gibibyte, "size of a client's request"),
	sizeLimit("MAX_ORIGIN_RESPONSE_BYTES", "256MiB", mebibyte, gibibyte, "size of an origin's response"),
	{
		name: "MAX_RESOURCE_BYTES", shown: "`off`",
		allowed: fmt.Sprintf("`off`, or a size from %s to %s, in B, KiB, MiB or GiB", kibibyte, gibibyte),
		meaning: "limit: size of a resource in an origin's response; of one that is larger what was there before stays, the rest of the response is taken, and the NACK names it",
		parse:   typed(parseResourceBytes),
	},
	limit("MAX_TYPES", "64", 10_000, "resource types in one view; of those that the protocol does not know, one peer may ask for a tenth, and at least 8, while there are more than half of all"),
	limit("MAX_GROUPS", "256", 100_000, "node groups; those that no client is in make room for others, and their snapshots stay"),
	limit("MAX_PEER_GROUPS", "16", 100_000, "node groups that one peer has founded, while more than half of `TENDER_MAX_GROUPS` are there; and how many it may found in a minute, once it has founded `TENDER_MAX_GROUPS`. A peer is what its certificate says, or else an address, as of a load balancer"),
	limit("MAX_ORIGIN_NAMES", "1000000", 100_000_000, "names that clients want of one control plane; a name counts once for each node group, or for all if it is one of xdstp. While more than half of them are wanted, the clients of one peer may want a tenth, and at least 100. What is there is served in any case"),
	limit("ORIGIN_STREAM_RATE", "600", 1_000_000, "ADS streams that node groups open to each control plane in a minute, after two for each of `TENDER_MAX_GROUPS` at once; more wait"),
	duration("FIRST_REQUEST_TIMEOUT", "10s", 100*time.Millisecond, 10*time.Minute, "how long a new stream may stay silent, and the handshake of a connection or the body of a poll may take"),
	duration("ACK_WAIT", "5s", 100*time.Millisecond, 10*time.Minute, "how long a response may stay unanswered before the next one of its type is sent"),
	duration("SEND_STALL", "1m", time.Second, time.Hour, "how long one send may block before the stream is ended"),
	duration("LINGER", "5m", time.Second, 24*time.Hour, "how long a name that no client wants stays subscribed"),
	duration("WILDCARD_LINGER", "15m", time.Second, 24*time.Hour, "how long a wildcard that no client wants stays subscribed"),
	limit("MAX_LINGERING", "100000", 100_000_000, "names that linger; the oldest go first"),
	duration("DRAIN", "45s", time.Second, time.Hour, "how long ending the streams may take at most when the relay is told to stop: for the first ninth new ones are still taken, and two thirds later nearly all have ended, one by one"),
	{
		name: "CONNECTION_AGE", preset: "30m",
		allowed: "`off`, or " + between(10*time.Second, 24*time.Hour),
		meaning: "how old a client's connection gets before its streams are ended, one by one and without an error, so that clients spread over all relays",
		parse:   typed(offOr(durationBetween(10*time.Second, 24*time.Hour))),
	},
	{
		name: "HISTORY", preset: "10", empty: "off",
		allowed: "`off`, or a whole number from 1 to 100",
		meaning: "changes of each resource that `tender history` and the status page can tell of; there is none of Secrets",
		parse:   typed(offOr(intBetween(1, 100))),
	},
	sizeLimit("MAX_HISTORY_BYTES", "32MiB", kibibyte, 4*gibibyte, "memory for those changes, beyond which the oldest are forgotten"),
	onOff("DEBUG", "off", "profiles of the process for operators, at `/debug/pprof/` where `TENDER_ADMIN_LISTEN` says"),
}

// choice is the row of one of several words, of which the first is the default.
func choice(name, meaning string, words ...string) spec {
	last := len(words) - 1
	allowed := "`" + strings.Join(words[:last], "`, `") + "` or `" + words[last] + "`"
	return spec{name: name, preset: words[0], allowed: allowed, meaning: meaning, parse: typed(oneOf(words...))}
}

// onOff is the row of a switch.
func onOff(name, preset, meaning string) spec {
	parse := func(raw string) (bool, error) {
		word, err := oneOf("on", "off")(raw)
		return word == "on", err
	}
	return spec{name: name, preset: preset, allowed: "`on` or `off`", meaning: meaning, parse: typed(parse)}
}

// file is the row of a path; needs says what else has to be set.
func file(name, needs, meaning string) spec {
	return spec{name: name, allowed: allowedFile + needs, meaning: meaning, parse: typed(parseFile)}
}

// types is the row of a list of types.
func types(name string, parse func(string) (string, error), meaning string) spec {
	return spec{
		name: name, meaning: meaning, parse: typed(listOf(",", parse)),
		allowed: allowedTypes,
	}
}

// allowedTypes is what the rows of types say.
const allowedTypes = "short names (`lds`, `cds`, `eds`, …) or type URLs, separated by commas"

// duration is the row of a duration.
func duration(name, preset string, least, most time.Duration, meaning string) spec {
	return spec{name: name, preset: preset, allowed: between(least, most), meaning: meaning, parse: typed(durationBetween(least, most))}
}

// whole is the row of a number.
func whole(name, preset string, least, most int, meaning string) spec {
	return spec{
		name: name, preset: preset, meaning: meaning, parse: typed(intBetween(least, most)),
		allowed: fmt.Sprintf("a whole number from %d to %d", least, most),
	}
}

// limit is the row of a number of things.
func limit(name, preset string, most int, of string) spec {
	return whole(name, preset, 1, most, "limit: "+of)
}

// sizeLimit is the row of a number of bytes.
func sizeLimit(name, preset string, least, most Size, of string) spec {
	return spec{
		name: name, preset: preset, meaning: "limit: " + of, parse: typed(sizeBetween(least, most)),
		allowed: fmt.Sprintf("a size from %s to %s, in B, KiB, MiB or GiB", least, most),
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
