// Package grpc contains bootstraps for gRPC clients that get their configuration from Tender, and their tests: the xDS
// client of gRPC-Go reads each bootstrap, resolves a backend through a relay, and calls it.
// deploy/docs/clients.md describes which bootstrap to use.
package grpc
