// Package tlsfiles reads certificates, keys, CAs, tokens and other files of credentials, and reloads them when they
// change while the relay runs.
//
// A [Watch] reads all files every second, so it notices a change however the file was replaced: overwritten, renamed,
// or by a symbolic link that points elsewhere (as in Kubernetes). It uses content that two reads agree on, so a file
// that is being written, or one of a pair, has a second to be completed. Content that cannot be used is logged once,
// and the previous content stays in force.
//
// # Concurrency properties
//
// The content in force is an immutable value behind an atomic pointer. A handshake uses the current one; later changes
// do not affect existing connections. After the files were opened, only [Watch.Run] reads them. Credentials and Status
// may be used from any goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package tlsfiles
