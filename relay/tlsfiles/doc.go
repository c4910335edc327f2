// Package tlsfiles reads certificates, keys, CAs, tokens and other files of credentials, and reloads them when they
// change while the relay runs.
//
// A [Watch] reads all files every second. It therefore detects each kind of replacement: an overwritten file, a renamed
// file, or a symbolic link with a new target (as in Kubernetes). Changed content is loaded once two consecutive reads
// return it. This leaves one second to finish writing a file, or the second file of a pair. Invalid content is logged
// once, and the previous content stays in force.
//
// # Concurrency properties
//
// The content in force is an immutable value behind an atomic pointer. A handshake uses the current value; later
// changes do not affect existing connections. After the files were opened, only [Watch.Run] reads them. Credentials and
// Status may be used from any goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package tlsfiles
