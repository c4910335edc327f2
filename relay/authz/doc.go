// Package authz reads the rules of TENDER_AUTHZ and applies them. They bind the identities of client certificates to
// nodes, and nodes to the resources that they may subscribe to (B.36, B.37).
//
// A file is YAML:
//
//	version: 1
//	rules:
//	- name: shop
//	  identities: ["spiffe://example.org/ns/{ns}/sa/*"]
//	  node:
//	    id: ["sidecar~*~*.{ns}~*"]
//	    cluster: ["{ns}"]
//	  types: [lds, rds, cds, eds]
//	  secrets: ["{ns}/*", ca]
//	  xdstp: ["xdstp://example.org/*/{ns}/**"]
//	operators:
//	  read: ["spiffe://example.org/ns/ops/sa/*"]
//	  act: ["spiffe://example.org/ns/ops/sa/lead"]
//	peers: ["spiffe://example.org/ns/tender/sa/tender"]
//	snapshots:
//	  take: ["spiffe://example.org/ns/tender/sa/tender"]
//	  secrets: ["spiffe://example.org/ns/tender/sa/tender"]
//
// A rule applies to a client if one of the client's identities and its Node match the rule's patterns. A client that
// matches no rule is refused. A client that matches several rules may subscribe to what any of them allows. A rule
// without node, types or xdstp does not restrict these. Secrets are allowed only by the patterns in secrets.
//
// An identity that matches operators may use the relay's admin address; this grants no rights as a client. read permits
// GET requests, act permits commands, and neither includes the other. A list without read and act grants both. Peers
// are relays that may read clients and send commands on behalf of an operator that they name. snapshots are relays that
// may take the state of this one: take all but Secrets and sensitive content, and secrets also these. A list without take
// and secrets grants take.
//
// In a pattern, * matches any text without a slash or a tilde, in a DNS name also without a dot. ** matches any text.
// {name} in an identity matches a whole part between slashes or dots, and has that value in the rest of the rule.
//
// # Concurrency properties
//
// A [Policy] and a [Grant] are immutable. The package does no I/O and starts no goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package authz
