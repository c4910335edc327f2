// Package tlsfiles keeps what the relay proves itself by and whom it trusts: certificates,
// keys, CAs and tokens, and who else it has to do with, in files that change while it runs.
//
// A [Watch] looks at all files every second, by reading them: whatever way a file was
// replaced, by writing over it, by renaming, by a link to a link that leads elsewhere now (as
// in Kubernetes), the next look sees it. What two looks found alike is taken; files that are
// still being written, or of which only one of two that belong together was written, so
// have a second. What cannot be used is logged, once, and what was read before stays in
// force.
//
// # Concurrency properties
//
// What is in force is an immutable value behind an atomic pointer: a handshake takes the one
// that it finds, and nothing that changes later concerns a connection that exists. Only
// [Watch.Run] looks at files, after they were opened. Credentials and Status may be used from
// any goroutine.
//
// It is no stable API: programs that embed Tender use package relay.
package tlsfiles
