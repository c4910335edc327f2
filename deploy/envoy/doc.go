// Package envoy contains bootstraps for Envoys that get their configuration from Tender, one for each transport, and
// their tests. Each bootstrap satisfies Envoy's validation, and a relay serves scripted clients that follow it. A real
// Envoy accepts it and becomes ready with a relay. deploy/docs/clients.md describes which bootstrap to use.
package envoy
