// Package lint checks the resources that an origin sends. It decodes them, runs the validators of Envoy's generated API
// code, and verifies that the resources to which they refer exist.
//
//	Inspect    decodes one resource, runs its validators and returns its references
//	Absent     reports why a referenced resource does not exist in a view
//	Linter     does both for all views of a relay, and again after each change (TENDER_VALIDATE)
//
// # Checked types
//
// The package checks the types of the discovery services, and the few extensions that most configurations use
// (types.go). Other types and extensions are skipped without a finding, since a proxy may support types that the relay
// does not. For the same reason, unknown fields and enum values have a kind of their own, [Unknown].
//
// The package never changes a resource. A finding contains the name of a field, a rule or a resource. It never contains
// a value, which might be a secret.
//
// # Concurrency
//
// Inspect may be called from any goroutine. A [Linter] works on the goroutine that calls Run; its other methods may be
// called from any goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package lint
