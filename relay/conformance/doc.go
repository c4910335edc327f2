// Package conformance tests the relay against the rules of the xDS protocol in deploy/docs/protocol.md: rule by rule,
// with random histories (the tests named property), and with whole conversations (testdata/transcripts). Most tests run
// a relay, its origin and its clients in memory and in virtual time.
//
// A test is named after the codes of the rules that it holds: go test ./relay -run TestProtocolPage finds those without.
package conformance
