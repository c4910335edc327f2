package config

import (
	"time"
)

// defaultAdminListen is the default address for operators.
const defaultAdminListen = "127.0.0.1:18080"

// servingRows are the variables on listeners for clients, TLS and authorization.
var servingRows = []spec{
	{
		name: "LISTEN", defaultValue: ":18000",
		allowed: "`:port`, `host:port`, `unix:/path`, several separated by commas",
		meaning: "Addresses for xDS clients",
		advice:  "Change it when the port is in use, or clients must reach one interface only.",
		parse:   untyped(parseListen),
	},
	{
		name: "REST_LISTEN", defaultText: "`off`",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are not in it",
		meaning: "Addresses for clients that poll by REST",
		advice:  "Set it when clients cannot use gRPC.",
		parse:   untyped(offOr(parseListen)),
	},
	{
		name: "TLS_LISTEN", defaultText: "`off`",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are in no other variable, with `TENDER_TLS_CERT`",
		meaning: "Addresses for TLS while `TENDER_LISTEN` stays plaintext",
		advice:  "Without it, `TENDER_LISTEN` has TLS. Set it when a fleet moves from plaintext to TLS.",
		parse:   untyped(offOr(parseListen)),
	},
	{
		name: "TLS_CERT", defaultText: "empty: plaintext",
		allowed: allowedPath + ", beside its key",
		meaning: "PEM file with the server certificate for clients, and its intermediates",
		advice: "REST uses it too. This file and the next two are read again when they change. Set it when clients " +
			"connect over a network that you do not trust.",
		parse: untyped(parseFile),
	},
	file("TLS_KEY", ", beside its certificate", "PEM file with the key of the server certificate",
		"Set it when `TENDER_TLS_CERT` is set."),
	file("TLS_CLIENT_CA", ", with `TENDER_TLS_CERT`", "PEM file with the CAs of clients, which enables mTLS",
		"Set it when only known clients may connect. TLS clients without a certificate of these CAs are then rejected."),
	{
		name: "TLS_TRUST_DOMAINS", defaultText: "empty: any",
		allowed: "`domain` or `domain=path`, several separated by `;`, with `TENDER_TLS_CLIENT_CA`: a SPIFFE trust domain " +
			"such as `example.org`, and a path",
		meaning: "SPIFFE trust domains of clients, each with the PEM file of its CAs",
		advice: "Without a path, the CAs of `TENDER_TLS_CLIENT_CA` apply. The files are read again when they change. " +
			"Set it when clients come from several trust domains ([security.md](security.md#trust-domains)).",
		parse: untyped(parseTrustDomains),
	},
	{
		name: "AUTHZ", defaultText: "empty: any client, any Node",
		allowed: allowedPath + ", with `TENDER_TLS_CLIENT_CA`",
		meaning: "YAML file of rules: which certificate may present which Nodes and receive which types and Secrets",
		advice:  "Changes apply to open streams too. Set it when node groups must not read the resources of others.",
		parse:   untyped(parseFile),
	},
	choice("SECRETS", "Clients that may receive Secrets (SDS)",
		"`mtls` requires a certificate and a rule of `TENDER_AUTHZ`. `loopback` adds plaintext clients on this host, by "+
			"the rules or if there are none. Set it to `loopback` when the relay is a sidecar, and to `off` when no client "+
			"needs Secrets.",
		SecretsMTLS, SecretsLoopback, SecretsOff),
}

// operatorRows are the variables for operators: addresses, peers, logs and traces.
var operatorRows = []spec{
	{
		name: "ADMIN_LISTEN", defaultValue: defaultAdminListen, emptyText: "off",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are in no other variable; others than loopback and " +
			"`unix:` with `TENDER_TLS_CLIENT_CA` and `TENDER_AUTHZ`",
		meaning: "Addresses for operators: status page, `/api/v1/…`, commands, probes and metrics",
		advice:  "Change it when operators or peers connect from other hosts, which requires mTLS.",
		parse:   untyped(offOr(parseListen)),
	},
	{
		name: "PROBE_LISTEN", defaultText: "`off`",
		allowed: "`off`, or addresses as for `TENDER_LISTEN` that are in no other variable",
		meaning: "Addresses for `/livez`, `/readyz` and `/metrics` alone",
		advice:  "Set it when a kubelet or Prometheus connects from another host.",
		parse:   untyped(offOr(parseListen)),
	},
	{
		name: "PEERS", defaultText: "`off`",
		allowed: "`off`, or `host:port` or `dns:///host:port`, at most 100, separated by commas; with " +
			"`TENDER_PEERS_TLS_CERT` and `TENDER_PEERS_TLS_KEY`",
		meaning: "Admin addresses of the relays of the same tier, for `--fleet`",
		advice: "A `dns` name stands for all of its addresses, and may include the relay itself. Set it when the tier " +
			"has several relays.",
		parse: untyped(offOr(parsePeers)),
	},
	file("PEERS_TLS_CA", "", "PEM file with the CAs of peers",
		"Set it when a private CA signs the certificates of peers; without it, the CAs of the system apply."),
	file("PEERS_TLS_CERT", ", beside its key", "PEM file with the certificate that the relay presents to peers",
		"Set it when `TENDER_PEERS` is set. The rules of peers list it under `peers`."),
	file("PEERS_TLS_KEY", ", beside its certificate", "PEM file with the key of the certificate for peers",
		"Set it when `TENDER_PEERS` is set."),
	{
		name: "PEERS_TLS_SERVER_NAME", defaultText: "the host of the peer",
		allowed: "a DNS name, an IP address, or a SPIFFE ID with a path, which needs `TENDER_PEERS_TLS_CA`",
		meaning: "Name that the certificates of peers must have",
		advice:  "Set it when peers are found by another name than the one in their certificates.",
		parse:   untyped(parseServerName),
	},
	{
		name: "LOG_LEVEL", defaultValue: "info",
		allowed: "`debug`, `info`, `warn` or `error`",
		meaning: "Minimum level of log records",
		advice:  "Change it when you investigate a problem; `tender log-level` changes it at run time.",
		parse:   untyped(parseLevel),
	},
	{
		name: "LOG_FORMAT", defaultText: "`json`, or `text` on a terminal",
		allowed: "`json` or `text`",
		meaning: "Format of the log, which is written to stderr",
		advice:  "Change it when the log collector expects the other format.",
		parse:   untyped(oneOf("json", "text")),
	},
	whole("TRACE_DELIVERIES", "100", 0, 1_000_000, "One of this many deliveries of a traced change is traced",
		"Slow and rejected deliveries are always traced; `0` traces only these. `OTEL_…` variables enable "+
			"[tracing](tracing.md). Raise it when traces cost too much."),
	whole("METRICS_GROUPS", "50", 0, 100_000,
		"Node groups with metrics of their own; all further groups have the label `other`",
		"A group keeps its label for as long as it exists, so no counter decreases. Raise it when there are more groups "+
			"and the metrics system can store the [series](metrics.md#number-of-series)."),
	{
		name: "TRACE_SLOW", defaultValue: "1s",
		allowed: "`off`, or " + between(time.Millisecond, time.Hour),
		meaning: "Duration from which a delivery counts as slow, and is traced",
		advice: "It runs from the receipt of the response to the answer of the client. Change it when your delivery " +
			"objective differs.",
		parse: untyped(offOr(durationBetween(time.Millisecond, time.Hour))),
	},
	{
		name: "HISTORY", defaultValue: "10", emptyText: "off",
		allowed: "`off`, or a whole number from 1 to 100",
		meaning: "Changes per resource that `tender history` and the status page show",
		advice: "Secrets have none. All changes use at most 32 MiB. Raise it when resources change often, or turn it off to save memory when nobody " +
			"reads it.",
		parse: untyped(offOr(intBetween(1, 100))),
	},
	onOff("DEBUG", "off", "Profiles of the process at `/debug/pprof/` on the admin address",
		"Turn it on when you profile the relay."),
}

// rolloutRows are the variables on snapshots and on distribution in stages.
var rolloutRows = []spec{
	{
		name: "SNAPSHOT_DIR", defaultText: "`off`",
		allowed: "`off`, or a directory that no other relay uses; it is made if only its last part is missing",
		meaning: "Directory that keeps the configuration across a restart",
		advice: "Set it when clients must start while the control plane is unavailable. The relay serves the snapshot at " +
			"once, and updates it when the control plane responds.",
		parse: untyped(offOr(parseFile)),
	},
	duration("MAX_SNAPSHOT_AGE", "24h", time.Minute, 8760*time.Hour, "Maximum age of a snapshot that is restored",
		"Raise it when old configuration is better than none."),
	onOff("SNAPSHOT_SENSITIVE", "off", "Include resources with sensitive fields, or with unknown types, in snapshots",
		"Secrets are never stored. Turn it on when clients need such resources after a restart, and the directory is "+
			"protected."),
	{
		name: "ROLLOUT", defaultText: "`off`",
		allowed: "`off`, or one to four stages, separated by commas, each of them clients and a time. Clients: a share " +
			"such as `5%`, which includes earlier stages, or `id`, `cluster`, `locality.region`, `locality.zone`, " +
			"`locality.sub_zone` or `metadata.<path>`, `=` and a glob. Time: a duration from 1s to 168h, or `approve`. It " +
			"needs `TENDER_SNAPSHOT_DIR` and `TENDER_DELTA_VERSIONS=content`",
		meaning: "Stages in which changes reach clients",
		advice: "Set it when canaries should receive changes first, as in `metadata.canary=true 10m, 5% 10m, 25% " +
			"approve`. All other clients follow the last stage ([rollout.md](rollout.md)).",
		parse: untyped(offOr(parseStages)),
	},
	{
		name: "ROLLOUT_TYPES", defaultValue: "cds,lds,rds,srds,vhds,ecds,rtds",
		allowed: allowedTypes + "; not `eds`, `leds` and `sds`",
		meaning: "Types whose changes are distributed in stages, and which `tender rollback` returns to earlier content",
		advice: "Endpoints and Secrets never wait. Change it when other types should reach all clients at once, or types " +
			"of your own should wait.",
		parse: untyped(listOf(",", parseStagedType)), format: shortNames,
	},
	whole("ROLLOUT_REFUSALS", "0", 0, 1_000_000, "Clients that may reject a change before it is rolled back",
		"Raise it when some clients of a stage are known to reject valid changes."),
	{
		name: "ROLLOUT_CHECK", defaultText: "`off`", secret: true,
		allowed: "`off`, or an `http` or `https` URL, which may have a user and a password",
		meaning: "URL that approves a change before each stage and every 15 s",
		advice: "It receives a POST. 200 and 204 approve, 403 and 409 roll the change back. " +
			"A user, a password and a query are masked. Set it when a health check of yours should stop a rollout.",
		parse: untyped(offOr(parseCheckURL)), format: maskURL,
	},
}
