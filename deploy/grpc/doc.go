// Package grpc has bootstraps for gRPC clients that have their configuration from Tender, and tests of
// them: gRPC-Go's own client reads each, finds a backend by it through a relay, and calls that.
// deploy/docs/clients.md says which one to take.
package grpc
