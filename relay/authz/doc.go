// Package authz reads the file of TENDER_AUTHZ and decides by it: which identities, as
// certificates have them, may be which nodes, and what those may ask for (B.36, B.37).
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
//	operators: ["spiffe://example.org/ns/ops/sa/*"]
//
// A rule is about a client if one of the client's identities and its Node meet the rule's
// patterns. Who is met by no rule is refused; who is met by several has what any of them
// allows. Of node, types and xdstp what is left out limits nothing, but Secrets are had only
// if secrets names them. Who meets one of the operators may ask whatever there is to ask for at
// the relay's admin address, and has no more as a client for that.
//
// In a pattern, * stands for any text without a slash or a tilde, in a DNS name also without a dot; **
// stands for any text; and {name}, in an identity, for a whole part between slashes or dots,
// which it stands for in the rest of the rule then.
//
// # Concurrency properties
//
// A [Policy] and a [Grant] are immutable. The package does no I/O and starts no goroutine.
//
// It is no stable API: programs that embed Tender use package relay.
package authz
