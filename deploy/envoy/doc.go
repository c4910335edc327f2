// Package envoy has bootstraps for Envoys that get their configuration from Tender, one for each transport, and tests of
// them: each satisfies Envoy's own definitions, scripted clients that follow it are served by a relay, and a real Envoy
// accepts it and becomes ready below a relay. deploy/docs/clients.md says which one to take.
package envoy
