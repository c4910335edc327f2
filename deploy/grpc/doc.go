// Package grpc contains bootstraps for gRPC clients that get their configuration from Tender, and their tests. In the
// tests, gRPC-Go reads each bootstrap, resolves a backend through a relay, and calls it. deploy/docs/clients.md
// describes which bootstrap to use.
package grpc
