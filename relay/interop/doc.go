// Package interop tests the relay with programs of other projects, which take minutes to build: control planes above it
// (Envoy Gateway, the example server of go-control-plane) with real Envoys below, and clients that are no Envoys
// (envoyproxy/ratelimit, MOSN).
//
// These tests are given the programs that they need by flags. make interop builds them and runs the tests. The clients of
// gRPC (for Go, Node.js and Python) need what make deps installs, and are tested with the rest.
package interop
