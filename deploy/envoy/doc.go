// Package envoy has bootstraps for Envoys that have their configuration from Tender, one for each way
// to ask for it, and tests of them: that each is what Envoy's own definitions allow, and that a relay
// serves a client that does what it says. No Envoy takes part. deploy/docs/clients.md says which one to
// take.
package envoy
