// Package peers requests the state of the other relays of a tier, forwards commands and queries of operators to
// them, and watches what their rollouts decide. It keeps no state between requests: it resolves names at each request, and
// reports an error for each unreachable relay.
//
// The package is not a stable API: programs that embed Tender use package relay.
package peers
