package config

// A text describes a variable in the documentation. The meaning is one line without a period. The advice has details, and
// states when to change the variable.
type text struct{ name, meaning, advice string }

// A section has the texts of a topic.
type section struct {
	title string
	texts []text
}

// sections have all variables by topic, in the order of deploy/docs/configuration.md.
var sections = []section{
	{"Control plane", []text{
		{"ORIGIN", "Control plane; several targets are tried in this order",
			"Set it always. Add targets when the control plane has replicas that no balancer or DNS name joins."},
		{"ORIGINS", "Further control planes, by name",
			"Set it when resource types or xdstp authorities come from different control planes. `TENDER_ROUTES` " +
				"selects them."},
		{"ROUTES", "Control plane of each type or xdstp authority",
			"A route of an authority takes precedence over a route of a type. Other resources come from `default`, " +
				"which is `TENDER_ORIGIN`. Set it when `TENDER_ORIGINS` is set."},
		{"ORIGIN_PROTOCOL",
			"Variant of xDS for control planes; `auto` is Delta, or SotW if the control plane has no Delta",
			"Change it when a control plane implements one variant incorrectly."},
		{"ORIGIN_TLS", "TLS to the control plane",
			"The CAs of the system verify it unless `TENDER_ORIGIN_TLS_CA` is set. Set it to `on` when the control " +
				"plane has a certificate of a public CA. For a further origin, this variable and the next six are " +
				"`TENDER_ORIGIN_<NAME>_TLS` and so on: its name in capitals, with `_` for `-`."},
		{"ORIGIN_TLS_CA", "PEM file with the CAs of the control plane",
			"This file and the next two are read again when they change. Set it when a private CA signs the " +
				"certificate of the control plane."},
		{"ORIGIN_TLS_CERT", "PEM file with the client certificate of the relay, and its intermediates",
			"Set it when the control plane requires mTLS."},
		{"ORIGIN_TLS_KEY", "PEM file with the key of the client certificate of the relay",
			"Set it when `TENDER_ORIGIN_TLS_CERT` is set."},
		{"ORIGIN_TLS_SERVER_NAME", "Name that the certificate of the control plane must have",
			"A name or an address is also the `:authority` of requests. Set it when the certificate has another name " +
				"than the target."},
		{"ORIGIN_TOKEN_FILE", "File with a bearer token for the control plane",
			"A changed token is used from the next stream on. Set it when the control plane authenticates clients by " +
				"tokens."},
		{"ORIGIN_HEADERS", "gRPC metadata for the control plane",
			"Set it when the control plane, or a proxy before it, requires further headers."},
		{"ORIGIN_KEEPALIVE", "Time between HTTP/2 pings to the control plane",
			"Many servers close connections that ping more often than every 5m. Lower it when a NAT or balancer drops " +
				"idle connections earlier, and the server allows it."},
		{"NODE_ID", "ID of the Node that the relay presents to the control plane",
			"Change it when the control plane selects configuration by ID or requires a format. With `{cluster}`, for " +
				"example, each group has an ID of its own."},
		{"NODE_CLUSTER", "Cluster of the Node of the relay",
			"Change it when the control plane selects by cluster, and `cluster` is not in `TENDER_NODE_GROUP_BY`."},
		{"NODE_LOCALITY", "Locality of the Node of the relay",
			"Set it when the control plane orders endpoints by locality."},
		{"NODE_METADATA", "Metadata of the Node of the relay",
			"Set it when the control plane needs metadata that all clients of the relay share."},
		{"NODE_GROUP_BY", "Node fields that select configuration; clients that agree in them share one view",
			"Change it when the control plane uses other fields, as [node groups](#node-groups) describes. Use `none` " +
				"when it sends the same to all clients."},
	}},
	{"Listeners, TLS and authorization", []text{
		{"LISTEN", "Addresses for xDS clients",
			"Change it when the port is in use, or clients must reach one interface only."},
		{"REST_LISTEN", "Addresses for clients that poll by REST",
			"Set it when clients cannot use gRPC."},
		{"SOCKET_MODE", "Permissions of the Unix sockets on which the relay listens",
			"`0600` admits the user of the relay, `0660` also its group, and `0666` all users, except to " +
				"`TENDER_ADMIN_LISTEN`. Set it to `0666` when clients run as other users and cannot join the group of the " +
				"relay; rules or mTLS then restrict them."},
		{"TLS_LISTEN", "Addresses for TLS while `TENDER_LISTEN` stays plaintext",
			"Without it, `TENDER_LISTEN` has TLS. Set it when a fleet moves from plaintext to TLS."},
		{"TLS_CERT", "PEM file with the server certificate for clients, and its intermediates",
			"REST uses it too. This file and the next two are read again when they change. Set it when clients connect " +
				"over a network that you do not trust."},
		{"TLS_KEY", "PEM file with the key of the server certificate",
			"Set it when `TENDER_TLS_CERT` is set."},
		{"TLS_CLIENT_CA", "PEM file with the CAs of clients, which enables mTLS",
			"Set it when only known clients may connect. TLS clients without a certificate of these CAs are then " +
				"refused."},
		{"TLS_TRUST_DOMAINS", "SPIFFE trust domains of clients, each with the PEM file of its CAs",
			"Without a path, the CAs of `TENDER_TLS_CLIENT_CA` apply. The files are read again when they change. Set " +
				"it when clients come from several trust domains ([Trust domains](#trust-domains))."},
		{"AUTHZ", "YAML file of rules: which certificate may present which Nodes and receive which types and Secrets",
			"Changes apply to open streams too. Set it when node groups must not read the resources of others."},
		{"SECRETS", "Clients that may receive Secrets (SDS)",
			"`mtls` requires a certificate and a rule of `TENDER_AUTHZ`. `loopback` adds plaintext clients on this " +
				"host, if the rules allow them or `TENDER_AUTHZ` is not set. Set it to `loopback` when the relay is a sidecar, and to `off` " +
				"when no client needs Secrets."},
	}},
	{"Operators, logs and traces", []text{
		{"ADMIN_LISTEN", "Addresses for operators: status page, `/api/v1/…`, commands, probes and metrics",
			"Change it when operators or peers connect from other hosts, which requires mTLS."},
		{"PROBE_LISTEN", "Addresses for `/livez`, `/readyz` and `/metrics` alone",
			"Set it when a kubelet or Prometheus connects from another host."},
		{"PEERS", "Admin addresses of the relays of the same tier, for `--tier`, a first state and rollouts",
			"A `dns` name stands for all of its addresses, and may include the relay itself. A relay that starts without a " +
				"state takes [that of a peer](operations.md#the-state-of-a-peer), if no control plane answers. With " +
				"`TENDER_ROLLOUT`, relays follow [the halts and promotions](rollout.md#replicas-tiers-restarts) of peers. Set it " +
				"when the tier has several relays."},
		{"PEERS_TLS_CA", "PEM file with the CAs of peers",
			"Set it when a private CA signs the certificates of peers; without it, the CAs of the system apply."},
		{"PEERS_TLS_CERT", "PEM file with the certificate that the relay presents to peers",
			"Set it when `TENDER_PEERS` is set. The rules of peers list it under `peers`."},
		{"PEERS_TLS_KEY", "PEM file with the key of the certificate for peers",
			"Set it when `TENDER_PEERS` is set."},
		{"PEERS_TLS_SERVER_NAME", "Name that the certificates of peers must have",
			"Set it when peers are found by another name than the one in their certificates."},
		{"LOG_LEVEL", "Minimum level of log records",
			"Change it when you investigate a problem; `tender log-level` changes it at run time."},
		{"LOG_FORMAT", "Format of the log, which is written to stderr",
			"Change it when the log collector expects the other format."},
		{"TRACE_DELIVERIES", "One of this many deliveries of a traced change is traced",
			"Slow and rejected deliveries are always traced; `0` traces only these. `OTEL_…` variables enable " +
				"[tracing](tracing.md). Raise it when traces cost too much."},
		{"METRICS_GROUPS", "Node groups with metrics of their own; all further groups have the label `other`",
			"A group keeps its label for as long as it exists, so no counter decreases. Raise it when there are more " +
				"groups and the metrics system can store the [series](metrics.md#number-of-series)."},
		{"TRACE_SLOW", "Duration from which a delivery counts as slow, and is traced",
			"It runs from the receipt of the response to the answer of the client. Change it when your delivery " +
				"objective differs."},
		{"HISTORY", "Changes per resource that `tender history` and the status page show",
			"Secrets have none. All changes use at most 32 MiB. Raise it when resources change often, or turn it off " +
				"to save memory when nobody reads it."},
		{"DEBUG", "Profiles of the process at `/debug/pprof/` on the admin address",
			"Turn it on when you profile the relay."},
	}},
	{"Snapshots and rollout", []text{
		{"SNAPSHOT_DIR", "Directory that keeps the configuration across a restart",
			"Set it when clients must start while the control plane is unavailable. The relay serves the snapshot at " +
				"once, and updates it when the control plane responds."},
		{"MAX_SNAPSHOT_AGE", "Maximum age of a snapshot that is restored",
			"Raise it when old configuration is better than none."},
		{"SNAPSHOT_SENSITIVE", "Include resources with sensitive fields, or with unknown types, in snapshots",
			"Secrets are never stored. Turn it on when clients need such resources after a restart, and the directory " +
				"is protected."},
		{"ROLLOUT", "Stages in which changes reach clients",
			"Set it when canaries should receive changes first, as in `metadata.canary=true 10m, 5% 10m, 25% approve`. " +
				"All other clients follow the last stage ([rollout.md](rollout.md))."},
		{"ROLLOUT_TYPES",
			"Types whose changes are distributed in stages, and which `tender rollback` returns to earlier content",
			"Endpoints and Secrets never wait. Change it when other types should reach all clients at once, or types " +
				"of your own should wait."},
		{"ROLLOUT_REJECTIONS", "Clients that may reject a change before it is halted",
			"Raise it when some clients of a stage are known to reject valid changes."},
		{"ROLLOUT_CHECK", "URL that approves a change before each stage and every 15 s",
			"It receives a POST. 200 and 204 approve, 403 and 409 roll the change back. A user, a password and a query " +
				"are masked. Set it when a health check of yours should stop a rollout."},
		{"FOLLOW_HALTS", "Halt what the relay above has halted",
			"With `off`, `tender status` shows it only. With `on` and rollouts, the same change halts here until it is " +
				"resumed above, or an operator promotes it here ([Tiers](rollout.md#replicas-tiers-restarts)). Turn it on when a " +
				"control plane of yours is a relay that you trust to stop changes here."},
		{"CHECK_ENVOY", "Envoy on this machine that receives a change before any client",
			"The relay halts a change that this Envoy rejects, or with which it crashes twice ([A local " +
				"Envoy](#a-local-envoy)). Linux only. Set it when a change that your Envoys would reject should reach none of them."},
	}},
	{"Subscriptions, versions and removals", []text{
		{"REPORT_REJECTS", "Tell the control plane which resources clients reject",
			"The relay acknowledges responses itself, so the control plane does not see the NACKs of clients. With `on`, the " +
				"relay sends a NACK once clients reject a resource. It has the name, the number of clients and the first error. An " +
				"ACK follows once they reject it no more. Any client can cause it. Turn it on when you watch the NACKs of the " +
				"control plane, and it does not undo a change because of one."},
		{"RESYNC", "After a reconnect, send the held versions to the control plane, or request everything again",
			"Change it to `full` when the control plane misuses `initial_resource_versions`."},
		{"PREWARM", "Types to subscribe to by wildcard for every node group, before a client asks",
			"Set it when the first client of a group must not wait for the control plane."},
		{"DELTA_VERSIONS", "Source of resource versions in Delta: the control plane, or the bytes",
			"Change it to `content` when the versions of the control plane are counters, which differ between its " +
				"replicas."},
		{"EDS_AFTER_CDS", "Resend the endpoints, Secrets and discovered filters of a cluster or listener after it changed",
			"Envoy waits for them while it warms the cluster or listener. Turn it off when no client is an Envoy."},
		{"COMPRESSION", "Compression of responses to gRPC clients and relays that accept gzip",
			"Set it to `gzip` when the bytes between relays, or to clients in other zones, cost more than CPU. " +
				"[Compression](#compression) has the details."},
		{"DYNAMIC_PARAMETERS",
			"Variants of one resource name, selected by the dynamic parameters of the client (xDS TP2)",
			"Turn it on when the control plane sends such variants."},
		{"COLD_WAIT", "How long a client waits for a control plane that never responded, before its stream is closed",
			"It is also the time without a new name after which a wildcard set counts as complete. Raise it when the " +
				"control plane starts slowly and clients have no other server."},
		{"MASS_DELETE_HOLD",
			"How long large removals are held that are inferred, or sent in the first responses of a connection",
			"Raise it when operators need more time to decide."},
		{"HOLD_EXPLICIT_REMOVALS", "Hold large removals also if a connected control plane sends them after its first responses",
			"Turn it on when a wrong mass deletion at the control plane is a risk, and a delay of intended ones is " +
				"acceptable."},
		{"HOLD_GROWTH", "Maximum factor by which a resource, or the number of resources of a type, grows in one change",
			"A change that exceeds it, and adds at least 1 MiB or 1,000 names, waits for `TENDER_MASS_DELETE_HOLD`. Raise it " +
				"when your control plane grows in larger steps, such as one that adds a region at once."},
		{"REQUIRED", "Resources whose removal waits for an operator, whatever the control plane says",
			"Set it when the loss of one resource, such as the cluster of an authorization service, stops all traffic."},
		{"VALIDATE",
			"Check resources of known types, and whether the resources exist that they name; `warn` reports findings, " +
				"`hold` also keeps the last good resource when a change would break clients",
			"Set `hold` when clients must not receive changes that they cannot use. Turn it off when a twentieth of a " +
				"core matters more than reports of broken resources."},
		{"STATIC_CLUSTERS",
			"Clusters that clients have from their bootstrap: `TENDER_VALIDATE` neither reports them as missing nor " +
				"holds changes that name them",
			"Set it when routes name clusters of the bootstrap."},
		{"LINGER",
			"How long an unused upstream subscription to a name is kept; one to a wildcard or a glob, three times as " +
				"long",
			"Raise it when short-lived clients request the same names again, or all clients of a group can be away for " +
				"longer. Lower it to save memory."},
		{"LRS", "Load reports of clients: refused, relayed one by one, or summed for the control plane",
			"Change it when the control plane balances by load ([load reports](#load-reports))."},
	}},
	{"Limits and timeouts", []text{
		{"MAX_CONNECTIONS", "Maximum number of open client connections",
			"Raise it when more clients connect to one relay, and it has the memory ([cost of " +
				"clients](#cost-of-clients))."},
		{"MAX_CONNECTIONS_PER_ADDRESS", "Maximum number of open connections per client IP address",
			"As many may connect at once, with 500 resource names each, and a fiftieth of them per second from then on. " +
				"Raise it when clients connect through a balancer or NAT, which has one address."},
		{"MAX_STREAMS", "Maximum number of open streams of all services, and polls",
			"While more than half are open, one client may have a tenth, and at least 100. A client is an identity of " +
				"a certificate, or else an IP address. Raise it together with `TENDER_MAX_CONNECTIONS`."},
		{"MAX_REQUEST_RATE",
			"Maximum number of requests per second of one stream beside ACKs and NACKs; further ones are delayed",
			"The burst is ten times as many. Raise it when clients subscribe to many names one by one."},
		{"MAX_NAMES",
			"Maximum number of names that one stream may subscribe to, or report in `initial_resource_versions`",
			"Raise it when a client needs more resources."},
		{"MAX_REQUEST_BYTES", "Maximum size of a client request",
			"Raise it when a client reports more names than fit."},
		{"MAX_ORIGIN_RESPONSE_BYTES", "Maximum size of a response of the control plane",
			"Raise it when the log shows that a response exceeds it."},
		{"MAX_RESOURCE_BYTES", "Maximum size of a resource in a response of the control plane",
			"The relay keeps the old version of a larger resource, accepts the others, and names it in the NACK. Set " +
				"it when clients cannot receive larger resources."},
		{"MAX_GROUPS", "Maximum number of node groups",
			"The relay removes groups without clients for new ones, and keeps their snapshots. Raise it when there are more kinds " +
				"of clients, such as one group per proxy."},
		{"MAX_GROUPS_PER_CLIENT",
			"Maximum number of node groups that one client may create while more than half of `TENDER_MAX_GROUPS` exist",
			"A client is an identity of a certificate, or else an IP address. It is also the number per minute once a " +
				"client has created `TENDER_MAX_GROUPS`. Raise it when many kinds of clients share an address, such as " +
				"that of a balancer."},
		{"MAX_ORIGIN_NAMES", "Maximum number of names that clients may request of one control plane",
			"A name counts once per node group; an xdstp name counts once. While more than half are in use, one client " +
				"may request a tenth, and at least 100. Cached resources are served regardless. Raise it when clients need " +
				"more resources by name."},
		{"FIRST_REQUEST_TIMEOUT", "Time for the first request of a stream, a handshake, or the body of a poll",
			"Raise it when clients send their first request later, such as [MOSN](clients.md#mosn)."},
		{"ACK_WAIT", "How long a response may stay unanswered before the next one of its type is sent",
			"Raise it when clients need longer to apply a response."},
		{"MIN_PUSH_INTERVAL", "Minimum time between two changes of a type that clients are sent",
			"Changes within it become one response per client. First state does not wait; types that refer to " +
				"clusters also wait while clusters or endpoints do. Set it when the control plane sends many small changes " +
				"([changes in quick succession](#changes-in-quick-succession))."},
		{"SEND_TIMEOUT", "How long one send may block before the stream is closed",
			"Lower it when stalled clients should release their memory earlier."},
		{"DRAIN", "Time in which a stopping relay closes its streams",
			"For the first ninth, new streams are still accepted. In the next two thirds, nearly all streams are " +
				"closed, one by one. Change it when the termination grace period differs; it must be shorter."},
		{"TRANSPORT", "Server side of HTTP/2 for client connections: `grpc` is that of gRPC, `ads` is made for xDS streams",
			"`ads` takes less CPU and memory for each client, with the same limits. Set it when many clients connect to a relay."},
		{"CONNECTION_AGE", "Age at which the streams of a client connection are closed, one by one, without an error",
			"Clients then spread over all relays. Turn it off when a balancer distributes streams."},
	}},
}

// needs has the ends of descriptions of allowed values, which depend on the use of a type or on other variables, with
// the variables that they describe.
var needs = map[string][]string{
	" (the control plane is not verified)":                                                  {"ORIGIN_TLS"},
	" to a directory that no other relay uses; it is made if only its last part is missing": {"SNAPSHOT_DIR"},
	", beside its certificate":                                                              {"ORIGIN_TLS_KEY", "PEERS_TLS_KEY", "TLS_KEY"},
	", beside its key":                                                                      {"ORIGIN_TLS_CERT", "PEERS_TLS_CERT", "TLS_CERT"},
	", in which `{field}` may be a field of `TENDER_NODE_GROUP_BY`":                         {"NODE_ID"},
	", which needs `TENDER_ORIGIN_TLS_CA`":                                                  {"ORIGIN_TLS_SERVER_NAME"},
	", which needs `TENDER_PEERS_TLS_CA`":                                                   {"PEERS_TLS_SERVER_NAME"},
	", with TLS that is not `insecure`":                                                     {"ORIGIN_TOKEN_FILE"},
	", with `TENDER_TLS_CERT`":                                                              {"TLS_CLIENT_CA"},
	", with `TENDER_TLS_CLIENT_CA`":                                                         {"AUTHZ"},
	". It needs `TENDER_SNAPSHOT_DIR` and `TENDER_DELTA_VERSIONS=content`":                  {"CHECK_ENVOY", "ROLLOUT"},
	"; others than loopback and `unix:` with `TENDER_TLS_CLIENT_CA` and `TENDER_AUTHZ`":     {"ADMIN_LISTEN"},
	"; only `off` if `TENDER_ORIGIN` is a directory":                                        {"LRS"},
	"; with `TENDER_TLS_CERT`":                                                              {"TLS_LISTEN"},
	"; with `TENDER_PEERS_TLS_CERT` and `TENDER_PEERS_TLS_KEY`":                             {"PEERS"},
}

// unset describes an unset variable whose effect depends on something else.
var unset = map[string]string{
	"AUTHZ":                  "empty: any client, any Node",
	"LOG_FORMAT":             "`json`, or `text` on a terminal",
	"NODE_ID":                "`tender/<hostname>`",
	"ORIGIN":                 "required by `tender serve`",
	"ORIGIN_TLS":             "`off`; `on` if any file is given",
	"ORIGIN_TLS_SERVER_NAME": "the host of the target",
	"PEERS_TLS_SERVER_NAME":  "the host of the peer",
	"TLS_CERT":               "empty: plaintext",
	"TLS_TRUST_DOMAINS":      "empty: any",
}
