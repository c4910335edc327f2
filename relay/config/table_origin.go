package config

import (
	"time"
)

// originRows are the variables on the connection to control planes, and on the Node that the relay presents there.
var originRows = []spec{
	{
		name: "ORIGIN", defaultText: "required by `tender serve`",
		allowed: "`host:port`, `dns:///host:port`, `unix:///path`, several separated by commas, or one `file:///dir`",
		meaning: "Control plane; several targets are tried in this order",
		advice:  "Set it always. Add targets when the control plane has replicas that no balancer or DNS name joins.",
		parse:   untyped(parseOrigin),
	},
	{
		name: "ORIGINS",
		allowed: "`name=target`, several separated by `;`, at most 31, each target as for `TENDER_ORIGIN`; names of " +
			"`a-z`, `0-9` and `-` except `default`",
		meaning: "Further control planes, by name",
		advice: "Set it when resource types or xdstp authorities come from different control planes. `TENDER_ROUTES` " +
			"selects them.",
		parse: untyped(parseOrigins),
	},
	{
		name: "ROUTES",
		allowed: "`type:<type>=name`, `authority:<authority>=name`, several separated by `;`: a short name or a type URL; " +
			"an xdstp authority in canonical form, or `*` for all others; a name of `TENDER_ORIGINS`, each of which needs a " +
			"route, or `default`",
		meaning: "Control plane of each type or xdstp authority",
		advice: "A route of an authority takes precedence over a route of a type. Other resources come from `default`, " +
			"which is `TENDER_ORIGIN`. Set it when `TENDER_ORIGINS` is set.",
		parse: untyped(parseRoutes),
	},
	choice("ORIGIN_PROTOCOL", "Variant of xDS for control planes; `auto` is Delta, or SotW if the control plane has no "+
		"Delta",
		"Change it when a control plane implements one variant incorrectly.", ProtocolAuto, ProtocolDelta, ProtocolSotW),
	{
		name: "ORIGIN_TLS", defaultText: "`off`; `on` if any file is given",
		allowed: "`off`, `on` or `insecure` (the control plane is not verified)",
		meaning: "TLS to the control plane",
		advice: "The CAs of the system verify it unless `TENDER_ORIGIN_TLS_CA` is set. Set it to `on` when the control " +
			"plane has a certificate of a public CA. " +
			"For a further origin, this variable and the next six are `TENDER_ORIGIN_<NAME>_TLS` and so on: its name in " +
			"capitals, with `_` for `-`.",
		parse: untyped(oneOf(TLSOff, TLSOn, TLSInsecure)),
	},
	file("ORIGIN_TLS_CA", "", "PEM file with the CAs of the control plane",
		"This file and the next two are read again when they change. Set it when a private CA signs the certificate of "+
			"the control plane."),
	file("ORIGIN_TLS_CERT", ", beside its key", "PEM file with the client certificate of the relay, and its intermediates",
		"Set it when the control plane requires mTLS."),
	file("ORIGIN_TLS_KEY", ", beside its certificate", "PEM file with the key of the client certificate of the relay",
		"Set it when `TENDER_ORIGIN_TLS_CERT` is set."),
	{
		name: "ORIGIN_TLS_SERVER_NAME", defaultText: "the host of the target",
		allowed: "a DNS name, an IP address, or a SPIFFE ID with a path, which needs `TENDER_ORIGIN_TLS_CA`",
		meaning: "Name that the certificate of the control plane must have",
		advice: "A name or an address is also the `:authority` of requests. Set it when the certificate has another name " +
			"than the target.",
		parse: untyped(parseServerName),
	},
	file("ORIGIN_TOKEN_FILE", ", with TLS that is not `insecure`", "File with a bearer token for the control plane",
		"A changed token is used from the next stream on. Set it when the control plane authenticates clients by tokens."),
	{
		name: "ORIGIN_HEADERS", secret: true,
		allowed: "`name=value`, several separated by `;`: names of gRPC metadata, values of printable ASCII",
		meaning: "gRPC metadata for the control plane",
		advice:  "Set it when the control plane, or a proxy before it, requires further headers.",
		parse:   untyped(parseHeaders),
	},
	duration("ORIGIN_KEEPALIVE", "5m30s", 10*time.Second, 24*time.Hour, "Time between HTTP/2 pings to the control plane",
		"Many servers close connections that ping more often than every 5m. Lower it when a NAT or balancer drops idle "+
			"connections earlier, and the server allows it."),
	{
		name: "NODE_ID", defaultText: "`tender/<hostname>`",
		allowed: "printable text of at most 4KiB, in which `{field}` may be a field of `TENDER_NODE_GROUP_BY`",
		meaning: "ID of the Node that the relay presents to the control plane",
		advice: "Change it when the control plane selects configuration by ID or requires a format. With `{cluster}`, " +
			"for example, each group has an ID of its own.",
		parse: untyped(parseText),
	},
	{
		name: "NODE_CLUSTER", defaultValue: "tender",
		allowed: "printable text of at most 4KiB",
		meaning: "Cluster of the Node of the relay",
		advice:  "Change it when the control plane selects by cluster, and `cluster` is not in `TENDER_NODE_GROUP_BY`.",
		parse:   untyped(parseText),
	},
	{
		name:    "NODE_LOCALITY",
		allowed: "`region`, `region/zone` or `region/zone/sub_zone`",
		meaning: "Locality of the Node of the relay",
		advice:  "Set it when the control plane orders endpoints by locality.",
		parse:   untyped(parseLocality),
	},
	{
		name:    "NODE_METADATA",
		allowed: "a JSON object",
		meaning: "Metadata of the Node of the relay",
		advice:  "Set it when the control plane needs metadata that all clients of the relay share.",
		parse:   untyped(parseMetadata),
	},
	{
		name: "NODE_GROUP_BY", defaultValue: "user_agent_name", emptyText: groupByNone,
		allowed: "`none`, or a list of " + groupFieldList + ", `metadata.<path>`",
		meaning: "Node fields that select configuration; clients that agree in them share one view",
		advice: "Change it when the control plane uses other fields, as [node groups](#node-groups) describes. Use " +
			"`none` when it sends the same to all clients.",
		parse: untyped(parseGroupBy),
	},
}

// contentRows are the variables on subscriptions, versions and removals.
var contentRows = []spec{
	choice("RESYNC", "After a reconnect, send the held versions to the control plane, or request everything again",
		"Change it to `full` when the control plane misuses `initial_resource_versions`.", ResyncTrustVersions, ResyncFull),
	types("PREWARM", parseWildcardType, "Types to subscribe to by wildcard for every node group, before a client asks",
		"Set it when the first client of a group must not wait for the control plane."),
	choice("DELTA_VERSIONS", "Source of resource versions in Delta: the control plane, or the bytes",
		"Change it to `content` when the versions of the control plane are counters, which differ between its replicas.",
		VersionsOfOrigin, VersionsOfContent),
	onOff("EDS_AFTER_CDS", "on", "Resend the endpoints of a cluster after the cluster changed",
		"Envoy waits for them while it warms the cluster. Turn it off when no client is an Envoy."),
	onOff("DYNAMIC_PARAMETERS", "off", "Variants of one resource name, selected by the dynamic parameters of the "+
		"client (xDS TP2)",
		"Turn it on when the control plane sends such variants."),
	duration("COLD_WAIT", "10s", 100*time.Millisecond, 10*time.Minute,
		"How long a client waits for a control plane that never responded, before its stream is closed",
		"It is also the time without a new name after which a wildcard set counts as complete. Raise it when the control "+
			"plane starts slowly and clients have no other server."),
	duration("MASS_DELETE_HOLD", "10m", time.Second, 24*time.Hour,
		"How long large removals are held that are inferred, or sent in the first responses of a connection",
		"Raise it when operators need more time to decide."),
	onOff("HOLD_EXPLICIT_REMOVALS", "off",
		"Hold large removals also if the control plane requests them later",
		"Turn it on when a wrong mass deletion at the control plane is a risk, and a delay of intended ones is acceptable."),
	choice("VALIDATE", "Check resources of known types, and whether the resources exist that they name; `warn` reports "+
		"findings, `hold` also keeps the last good resource when a change would break clients",
		"Set `hold` when clients must not receive changes that they cannot use. Turn it off when a twentieth of a core "+
			"matters more than reports of broken resources.",
		ValidateWarn, ValidateHold, ValidateOff),
	{
		name:    "STATIC_CLUSTERS",
		allowed: "names of clusters, separated by commas, in which `*` stands for any characters",
		meaning: "Clusters that clients have from their bootstrap: `TENDER_VALIDATE` neither reports them as missing nor " +
			"holds changes that name them",
		advice: "Set it when routes name clusters of the bootstrap.",
		parse:  untyped(listOf(",", parsePattern)),
	},
	duration("LINGER", "5m", time.Second, 24*time.Hour, "How long an unused upstream subscription to a name is kept; one to a wildcard or a glob, three times as long",
		"Raise it when short-lived clients request the same names again, or all clients of a group can be away for longer. "+
			"Lower it to save memory."),
	{
		name: "LRS", defaultValue: LRSOff,
		allowed: "`off`, `passthrough` or `aggregate`; only `off` if `TENDER_ORIGIN` is a directory",
		meaning: "Load reports of clients: rejected, relayed one by one, or summed for the control plane",
		advice:  "Change it when the control plane balances by load ([load reports](#load-reports)).",
		parse:   untyped(oneOf(LRSOff, LRSPassthrough, LRSAggregate)),
	},
}
