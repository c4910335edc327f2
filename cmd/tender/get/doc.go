// Package get is the command tender get: a client of any xDS server that prints what the server sends.
//
// A stream (stream.go) receives responses, a collection (collect.go) applies them, and a printer
// (print.go) prints resources or changes of them. With --lint, lint.go follows references and prints findings.
//
// The package is not a stable API: programs that embed Tender use package relay.
package get
