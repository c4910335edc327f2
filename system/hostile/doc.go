// Package hostile contains only tests. Malicious clients attack a relay over real sockets, and the tests check that
// another client is served meanwhile. Attacks that take time rather than load are tested in package conformance,
// which simulates time.
package hostile
