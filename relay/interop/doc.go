// Package interop tests the relay with programs of other projects, which take minutes to build: control planes above it
// (Envoy Gateway, the example server of go-control-plane) with real Envoys below, and clients that are no Envoys
// (envoyproxy/ratelimit, MOSN).
//
// Each test is given the programs that it needs by flags. make interop builds them and runs the tests.
package interop
