// Package lint checks resources that an origin sends: can they be decoded, do they pass the validators that Envoy's
// authors generate, and do the resources exist that they name?
//
//	Inspect    decodes one resource, runs its validators and lists what it names
//	References finds the references of several resources that lead nowhere
//	Linter     does both for all views of a relay, and again whenever they change (TENDER_VALIDATE)
//
// # What is checked
//
// The types of the discovery services and the few extensions that nearly every configuration has (types.go). Other types
// and extensions are skipped without a finding: a proxy may know types that the relay does not. For the same reason
// unknown fields and enum values are findings of their own kind, which only warn.
//
// Nothing here changes a resource. The content of a finding is the name of a field, a rule or a resource; it never
// contains a value, which might be a secret.
//
// # Concurrency
//
// Inspect may be called from any goroutine. A [Linter] works on the goroutine that calls Run; its other methods may be
// called from any goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package lint
