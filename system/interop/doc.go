// Package interop tests the relay with programs of other projects. They are control planes (Envoy Gateway, the
// example server of go-control-plane) with Envoys as clients, and other clients (envoyproxy/ratelimit, MOSN).
//
// Flags name the programs. They take minutes to build, so `make interop` builds them and runs these tests; other runs
// skip them. The tests with gRPC clients for Go, Node.js and Python need only `make deps` and always run.
package interop
