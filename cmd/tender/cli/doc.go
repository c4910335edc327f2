// Package cli contains shared parts of the commands of tender: flags for TLS and output formats, shell completions,
// tables, and functions that escape text from peers, so that it cannot control a terminal.
//
// The package is not a stable API: programs that embed Tender use package relay.
package cli
