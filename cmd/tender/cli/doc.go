// Package cli has what the commands of tender share: flags for TLS and for the form of the output, completions of a shell,
// tables that fit a terminal, and text that no peer can use to control a terminal.
//
// The package is not a stable API: programs that embed Tender use package relay.
package cli
