// Package get implements the command tender get: an xDS client for any ADS server that prints the resources it
// receives.
//
// The stream (stream.go) receives and acknowledges responses, a collection (collect.go) applies them, and a printer
// (print.go) prints resources or their changes. With --lint, lint.go also requests referenced resources and prints
// findings.
//
// The package is not a stable API: programs that embed Tender use package relay.
package get
