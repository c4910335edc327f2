package conformance_test

import (
	"flag"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/transcript"
)

var update = flag.Bool("update", false, "write the transcripts")

// TestTranscripts plays the conversations under testdata/transcripts and compares the relay's responses with the
// recorded ones. -update records them; review the diff. A file whose name begins with codes (R124_…) tests these
// rules, as a test of that name would.
//
// [transcript] says how scenes, repetitions, resources and the events of origins are written; each scene has a new relay.
// "envoy < cds web@1 -old" is a response to the client envoy. Errors that the relay itself reports are written with their
// message.
//
// For the scene:
//
//	> relay TENDER_ACK_WAIT=1s          (variables of the relay; with TENDER_ROUTES there is a second origin, west)
//	> relay stops
//	> write merged                      (merges the responses of an event by type, where order and number vary)
//	> write states                      (writes the clients' resources after each event; "write responses" ends both)
//	> log text                          (writes how often the relay has logged this message)
//	> operator freezes                  (also: thaws, passes, drops, passes what was dropped, lists removals)
//
// For clients: names that begin with grpc are gRPC clients, those with tender are relays, all others are Envoys.
//
//	> envoy connects delta              (or sotw; options follow)
//	  auto-ack, auto-nack               (answers each response at once)
//	  auto-eds                          (subscribes to the endpoints of new clusters, then ACKs)
//	  wrapper, ttl, feature=x           (client features)
//	  cluster=x                         (of its node)
//	  untyped                           (its requests have no type URL, on a stream of one type)
//	  versions                          (its responses are written with the number of their version)
//	  below                             (connects to a second relay, whose origin is the first one)
//	> envoy/eds/2 connects delta        (a stream of one type of the same Envoy)
//	> envoy subscribes cds a b{1..9}    (no names: the legacy wildcard; also: unsubscribes)
//	> a+b subscribes cds+lds a          (each of these clients, to each of these types)
//	> envoy returns to cds a b, holding a c@1
//	                                    (first request of a client that holds an unknown version of a, and v1 of c)
//	> envoy acks cds+eds                (the last responses; no types: all unanswered ones; also: nacks)
//	> envoy sends cds a -b, nonce=@2 version=@2 error=text
//	                                    (any request; @2 is the second response of its type, @rds:2 that of another
//	                                    type, other@2 that of another client; the type none is empty)
//	> envoy closes its stream           (also: half-closes, reconnects)
func TestTranscripts(t *testing.T) {
	t.Parallel()
	transcript.Play(t, "testdata/transcripts/*.txt", *update, scenery)
}
