// Package peers asks the other relays of a tier for their state, and forwards commands of operators to them. It keeps no
// state: names are resolved at each request, and a relay that cannot be reached is reported with the reason.
//
// The package is not a stable API: programs that embed Tender use package relay.
package peers
