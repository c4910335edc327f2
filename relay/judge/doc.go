// Package judge gives an edition of a rollout to a local Envoy before any client is served it (TENDER_CHECK_ENVOY, B.52).
// DESIGN.md has an overview ("A local Envoy as a judge").
//
// A [Judge] starts an Envoy for each node group of an edition, one after the other. The Envoy is first served the last good
// and then the edition, by a server of the relay that serves only this Envoy, on a Unix socket. It runs in its own user, network
// and mount namespaces, so it can bind every address and reach nothing.
//
// The program starts itself under another name in these namespaces ([Program]), prepares them, and then executes the Envoy. So
// its package initialization handles that name.
//
// # Reading order
//
//	output.go        the output of an Envoy
//	program.go       the Envoy that an operator has chosen, and its processes
//	start_linux.go   namespaces and limits of a process
//	start_other.go   the error on other systems
//	bootstrap.go     the bootstrap of an Envoy
//	judge.go         what an Envoy is served, and what its answers mean
//
// The package is not a stable API: programs that embed Tender use package relay.
package judge
