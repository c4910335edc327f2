// Package conformance tests the relay against the rules of the xDS protocol in relay/PROTOCOL.md: rule by rule,
// as conversations where these read better (testdata/transcripts; TestTranscripts has their grammar), and with random
// histories (the tests named property). Most tests run a relay, its origin and its clients in memory and in virtual
// time.
//
// Tests and transcripts are named after the codes of the rules that they hold: go test ./relay -run TestProtocolPage
// finds rules without.
package conformance
